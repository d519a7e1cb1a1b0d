"""A shortlist: against slow loops and full scoring, and in a run whose predictions are full."""

import numpy as np
import pytest
import torch

from now_builder.errors import ConfigError
from pc2_baseline.config import read_settings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.methods import make_method
from pc2_baseline.modules.losses import triplet_hardest
from pc2_baseline.modules.retrieval import similarity_matrix
from pc2_baseline.networks.codes import CaptionCodes, ImageCodes
from pc2_baseline.networks.network import MatchingNetwork
from pc2_baseline.networks.shortlist import shortlisted
from pc2_baseline.networks.similarity import SgrSimilarity
from pc2_baseline.runs.open_run import open_run
from pc2_baseline.runs.train import train
from pc2_baseline.training.method import Sizes
from tests.pc2_baseline.networks.test_active_cells import NETWORKS, codes

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def noisy_pairs():
    generator = np.random.default_rng(0)
    regions = generator.normal(size=(40, 36, 24)).astype(np.float32)
    captions = [generator.integers(4, 30, length) for length in generator.integers(2, 9, 40)]
    return PairSet(regions, captions, "", CPU, np.arange(40))


@pytest.mark.parametrize("number", [1, 3, 20])
@pytest.mark.parametrize("own", [None, [0, 1, 2, 3, 4, 5], [2, 2, 0, 6, 1, 2]])
def test_the_nearest_of_each_image_and_of_each_caption_are_listed(number, own):
    torch.manual_seed(0)
    cosines = torch.rand(6, 7)
    columns = None if own is None else torch.tensor(own)
    found = shortlisted(cosines, number, columns)
    expected = set() if own is None else set(enumerate(own))
    others = {cell for cell in np.ndindex(6, 7) if cell not in expected}
    for axis in (0, 1):
        for line in range(cosines.shape[axis]):
            mine = [cell for cell in others if cell[axis] == line]
            expected |= set(sorted(mine, key=lambda cell: -cosines[cell])[:number])
    assert {tuple(cell) for cell in found.nonzero().tolist()} == expected


@pytest.mark.parametrize("column", [None, [3, 3, 0, 1, 2, 5, 3, 0, 9, 8, 7, 6, 12, 13]])
@pytest.mark.parametrize("number", [3, 13])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_hinge_and_its_gradients_are_those_of_the_listed_cells(name, number, column):
    torch.manual_seed(0)
    similarity = NETWORKS[name]().double().train()
    net = MatchingNetwork(torch.nn.Identity(), torch.nn.Identity(), similarity)
    columns = torch.arange(14) if column is None else torch.tensor(column)

    def learn(shortlist):
        *leaves, lengths = codes()
        leaves = [leaf.requires_grad_() for leaf in leaves]
        images, captions = ImageCodes(*leaves[:2]), CaptionCodes(*leaves[2:], lengths)
        net.shortlist = shortlist
        scores = net.score_pairs(images, captions, None if column is None else columns)
        if not shortlist:  # the same by full scores, blanked
            listed = shortlisted(images.pooled @ captions.pooled.T, number, columns)[:, columns]
            scores = scores.masked_fill(~listed, -torch.inf)
        loss = triplet_hardest(scores, torch.linspace(0, 0.2, 14, dtype=torch.float64)).sum()
        wanted = (*leaves, *similarity.parameters())
        return scores, torch.autograd.grad(loss, wanted, materialize_grads=True)

    (full, expected), (few, found) = learn(0), learn(number)
    torch.testing.assert_close(few, full, rtol=1e-9, atol=1e-11)
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def chosen(name, *changes):
    small = ["model.embed_dim=16", "model.word_dim=8", "model.similarity_dim=8", "train.batch=12",
             "train.warmup_epochs=1", "train.epochs=1", "train.device=cpu", "data.tokenizer=jieba",
             "train.tensorboard=false", "train.pictures=false"]  # fmt: skip
    return read_settings(name, [*small, *changes])


@pytest.mark.parametrize(
    "name", ["sgr-hardest", "scan-t2i", "ncr", "crossfit", "pc2-paper", "pc2-released", "pcsr"]
)
def test_a_run_with_a_long_list_is_the_run_without(name, noisy_pairs):
    sizes = Sizes(len(noisy_pairs), noisy_pairs.features, 30)
    found = []
    for shortlist in (0, 100):
        own = make_method(chosen(name, f"model.shortlist={shortlist}"), sizes, CPU)
        figures = [own.fit_epoch(noisy_pairs, epoch) for epoch in range(2)]
        found.append((figures[-1], own.similarity(noisy_pairs)))
    (full, matrix), (listed, again) = found
    assert listed == pytest.approx(full, rel=1e-3, abs=1e-6)
    np.testing.assert_allclose(again, matrix, rtol=1e-3, atol=1e-3)


def test_what_is_not_listed_ranks_below_by_the_pooled_cosine(noisy_pairs):
    sizes = Sizes(len(noisy_pairs), noisy_pairs.features, 30)
    net = make_method(chosen("sgr", "model.shortlist=2"), sizes, CPU).net
    assert isinstance(net.similarity, SgrSimilarity)
    few = similarity_matrix(net, noisy_pairs, block=7)
    net.shortlist = 0
    full = similarity_matrix(net, noisy_pairs)
    rows = np.arange(len(noisy_pairs))
    images = net.encode_images(noisy_pairs.image_batch(rows)).pooled
    captions = net.encode_captions(*noisy_pairs.caption_batch(rows)).pooled
    cosines = (images @ captions.T).detach()
    listed = shortlisted(cosines, 2).numpy()
    np.testing.assert_allclose(few[listed], full[listed], atol=1e-5)
    assert few[~listed].max() < few[listed].min()
    order = np.argsort(cosines.numpy()[~listed])
    assert (np.diff(few[~listed][order]) >= 0).all()


def test_predictions_of_a_run_with_a_shortlist_are_full(tiny, tmp_path):
    train(tiny, tmp_path / "run", chosen("sgr", "model.shortlist=2"))
    opened = open_run(tmp_path / "run")
    with opened.open("test") as split:
        found = opened.method.similarity(split)
        assert not opened.method.net.shortlist
        opened.method.net.shortlist = 2
        assert not np.allclose(opened.method.similarity(split), found)


def test_a_network_without_single_cells_is_refused():
    with pytest.raises(ConfigError, match=r"model\.shortlist needs .*sgr.* found saf"):
        chosen("saf", "model.shortlist=4")
