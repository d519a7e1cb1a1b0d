"""One vector a screenshot, one a caption: poolings against slow ones, and what scores them."""

import pytest
import torch
from torch.nn import functional

from now_builder.errors import ConfigError
from pc2_baseline.config import read_settings
from pc2_baseline.methods.one_network import make_network
from pc2_baseline.networks.encoders import CaptionCodes, ImageCodes
from pc2_baseline.networks.pooled import (
    CosineSimilarity,
    GeneralizedPooling,
    PooledCaptionEncoder,
    PooledImageEncoder,
)
from pc2_baseline.process_groups import ProcessGroup
from pc2_baseline.training.method import Sizes


def codes(images, captions):
    ones = torch.ones(len(captions), dtype=torch.int64)
    return ImageCodes(images[:, None], images), CaptionCodes(captions[:, None], captions, ones)


def test_the_score_is_the_cosine_and_the_logit_that_of_half_of_it_and_one():
    images = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    captions = torch.tensor([[0.6, 0.8], [-0.8, 0.6], [1.0, 0.0]])
    cosines = torch.tensor([[0.6, -0.8, 1.0], [0.8, 0.6, 0.0]])
    block, both = CosineSimilarity(), codes(images, captions)
    assert torch.allclose(block(*both), cosines)
    logits = block(*both, logits=True)
    assert torch.isfinite(logits).all()
    assert torch.allclose(logits.sigmoid(), (1 + cosines) / 2, atol=1e-6)


def test_generalized_pooling_weighs_sorted_values_dimension_by_dimension():
    torch.manual_seed(0)
    pool = GeneralizedPooling()
    vectors = torch.randn(3, 7, 5)
    weights = pool.weights(7).tolist()
    assert sum(weights) == pytest.approx(1)
    assert len(set(weights)) == 7
    found = pool(vectors)
    for row in range(3):
        for dim in range(5):
            ordered = sorted(vectors[row, :, dim].tolist(), reverse=True)
            slow = sum(weight * value for weight, value in zip(weights, ordered, strict=True))
            assert found[row, dim].item() == pytest.approx(slow, abs=1e-6)
    assert torch.allclose(pool(vectors[:, torch.randperm(7)]), found)


def test_the_mean_of_regions_is_that_of_their_projections():
    encoder = PooledImageEncoder(11, 6).eval()
    regions = torch.randn(4, 36, 11)
    found = encoder(regions)
    slow = functional.normalize(encoder.project(regions).mean(1), dim=1)
    assert torch.allclose(found.pooled, slow, atol=1e-6)
    assert torch.equal(found.regions, found.pooled[:, None])
    assert torch.allclose(found.pooled.norm(dim=1), torch.ones(4))


def test_a_bag_of_words_is_the_mean_of_embeddings_and_knows_no_order():
    encoder = PooledCaptionEncoder(20, 5, 6).eval()
    tokens, lengths = torch.tensor([[1, 7, 7, 2], [1, 3, 2, 0]]), torch.tensor([4, 3])
    found = encoder(tokens, lengths)
    for row, length in enumerate(lengths.tolist()):
        mean = sum(encoder.embed.weight[token] for token in tokens[row, :length].tolist()) / length
        slow = functional.normalize(encoder.read(mean), dim=0)
        assert torch.allclose(found.pooled[row], slow, atol=1e-6)
    turned = encoder(torch.tensor([[7, 1, 2, 7], [2, 3, 1, 0]]), lengths)
    assert torch.allclose(turned.pooled, found.pooled, atol=1e-6)
    assert found.lengths.tolist() == [1, 1]
    assert torch.equal(found.words, found.pooled[:, None])


@pytest.mark.parametrize("reader", ["words", "gru"])
def test_padding_is_no_word(reader):
    encoder = PooledCaptionEncoder(20, 5, 6, reader).eval()
    alone = encoder(torch.tensor([[1, 3, 2]]), torch.tensor([3])).pooled
    padded = encoder(torch.tensor([[1, 3, 2, 9, 9], [4, 4, 4, 4, 4]]), torch.tensor([3, 5])).pooled
    assert torch.allclose(alone[0], padded[0], atol=1e-6)


def test_what_needs_regions_and_words_is_refused_by_name():
    with pytest.raises(ConfigError, match=r'method\.class_input = "slots" needs regions and words'):
        read_settings("pc2-paper", ["model.similarity=pooled"])
    settings = read_settings("pc2-paper", ["model.similarity=pooled", "method.class_input=pooled"])
    assert settings.model.similarity == "pooled"
    with pytest.raises(ConfigError, match="method pc2-released needs regions and words"):
        read_settings("pc2-released", ["model.similarity=pooled"])


def test_each_kind_of_network_is_built_for_its_ranks():
    group = ProcessGroup(1, 2)
    for kind in ("sgr", "saf", "pooled"):
        small = ["model.embed_dim=8", "model.word_dim=6", f"model.similarity={kind}"]
        own = ["model.image_pooling=gpo"] if kind == "pooled" else []
        model = read_settings("sgr", [*small, *own]).model
        net = make_network(model, Sizes(4, 5, 20), group)
        assert net.similarity.group is group
        assert ("images.pool.weigh.weight" in net.state_dict()) is True
        assert any(name.startswith("similarity.") for name in net.state_dict()) is (
            kind != "pooled"
        )
    group.sum_gradients(CosineSimilarity().parameters())  # of nothing: no message is sent
