"""GSC: pairs weigh as much as the learned geometry, across and within modalities, fits them."""

from functools import partial

import numpy as np
import pytest
import torch

from pc2_baseline.config import read_settings
from pc2_baseline.methods.gsc import (
    STRUCTURES,
    Gsc,
    as_captions,
    as_images,
    structure_agreement,
    structure_loss,
)
from pc2_baseline.methods.networks import make_network
from pc2_baseline.modules.division import clean_posterior
from pc2_baseline.networks.codes import CaptionCodes, ImageCodes
from pc2_baseline.training.method import Sizes

AVERAGES = ("prediction", "structure", "clean_prob")


@pytest.fixture
def made(on_tiny):
    """Make GSC on the tiny release, and its pairs."""
    return partial(on_tiny, "gsc", "train.warmup_epochs=1")


def test_every_pair_counts_fully_in_the_warm_up_and_by_its_weight_after_it(made, monkeypatch):
    method, pairs = made("train.warmup_epochs=2")
    asked, compute = [], method._batch_loss

    def spy(batch, weights):
        asked.append((batch.pair_index, weights))
        return compute(batch, weights)

    monkeypatch.setattr(method, "_batch_loss", spy)
    for epoch in range(3):
        asked.clear()
        before = method.statistics["clean_prob"]
        method.fit_epoch(pairs, epoch)
        for rows, weights in asked:
            expected = before[rows] if epoch == 2 else torch.ones(len(rows))
            assert torch.equal(weights, expected)
    assert not torch.equal(before, torch.ones(24)), "weights are not all 1 by then"


def test_a_weight_is_the_smaller_of_two_averages_over_the_epochs(made):
    """Two epochs by hand, beta 0.6; the posterior of agreement is the mixture's."""
    method, _ = made("method.newest_weight=0.6")
    generator = np.random.default_rng(0)
    agreement = np.where(np.arange(24) < 12, 0.9, 0.1) + generator.normal(0, 0.02, 24)
    agreement = torch.from_numpy(agreement).float()
    predictions = torch.linspace(0, 1, 24)
    fit = torch.from_numpy(clean_posterior(-agreement.numpy(), 0)).float()
    assert fit[:12].min() > 0.9, "high agreement means clean"
    assert fit[12:].max() < 0.1
    losses = torch.rand(24)
    method._weigh(losses, predictions, agreement)
    method._weigh(losses, 0.5 * predictions, agreement)
    found = method.statistics
    assert torch.allclose(
        found["prediction"], 0.6 * 0.5 * predictions + 0.4 * (0.6 * predictions + 0.4)
    )
    assert torch.allclose(found["structure"], 0.6 * fit + 0.4 * (0.6 * fit + 0.4))
    smaller = [min(a, b) for a, b in zip(found["prediction"], found["structure"], strict=True)]
    assert torch.equal(found["clean_prob"], torch.stack(smaller))
    assert torch.equal(found["is_clean"], found["clean_prob"] > 0.5)
    assert found["loss"] is losses
    assert {(a < b).item() for a, b in zip(*(found[n] for n in AVERAGES[:2]), strict=True)} == {
        True, False,
    }  # fmt: skip


def slow_loss(matrix, of_images, of_captions, weights, temperature, gamma):
    """Straight from the formulas, a pair at a time."""
    size, total, kept = len(matrix), 0.0, []
    of_images, of_captions = of_images * weights[None], of_captions * weights[None]
    for i in range(size):
        row, column = (matrix[i] / temperature).exp(), (matrix[:, i] / temperature).exp()
        chances = row[i] / row.sum(), column[i] / column.sum()
        matching = -(chances[0].log() + chances[1].log()) / 2
        products = torch.stack([of_images[i] @ of_captions[j] for j in range(size)])
        inside = -(products.exp()[i] / products.exp().sum()).log()
        total += weights[i] * (matching + gamma * inside) / size
        own, other = of_images[i], of_captions[i]
        kept.append([matching, sum(chances) / 2, own @ other / own.norm() / other.norm()])
    return total, torch.tensor(kept).T


@pytest.mark.parametrize("structures", ["network", "pooled"])
def test_the_loss_agrees_with_the_formula(made, structures):
    method, pairs = made(
        "model.dropout=0", "method.temperature=0.3", "method.structure_weight=0.7",
        f"method.structures={structures}",
    )  # fmt: skip
    batch, weights = pairs.batch(np.arange(6)), torch.rand(6)
    net = method.net.eval()
    with torch.no_grad():
        loss, found = method._batch_loss(batch, weights)
        images = net.encode_images(batch.regions)
        captions = net.encode_captions(batch.tokens, batch.lengths)
        within = method.compare(net, images, captions)
        expected, kept = slow_loss(net.score(images, captions), *within, weights, 0.3, 0.7)
    assert torch.allclose(loss, expected, atol=1e-5)
    assert torch.allclose(found, kept, atol=1e-5)


def test_what_a_batch_says_of_a_pair_is_kept_by_pair_index(made, monkeypatch):
    method, pairs = made()
    monkeypatch.setattr(
        method, "_batch_loss",
        lambda batch, weights: (
            sum(p.sum() for p in method.net.parameters()) * 0,
            torch.stack([batch.pair_index + shift for shift in (0.0, 0.5, 100.0)]),
        ),
    )  # fmt: skip
    asked = []
    monkeypatch.setattr(
        method, "_weigh", lambda *found: (asked.append(found), Gsc._weigh(method, *found))
    )
    method.fit_epoch(pairs, 0)
    for own, shift in zip(asked[0], (0.0, 0.5, 100.0), strict=True):
        assert torch.equal(own, torch.arange(24) + shift)


@pytest.mark.parametrize("weight", [0.0, 1.0])
@pytest.mark.parametrize("count", [2, 9])
def test_a_step_is_finite_at_the_extremes(made, weight, count):
    """Equal scores, as fresh networks have on equal pages; a batch of two; all noisy, or none."""
    method, pairs = made()
    batch = pairs.batch(np.zeros(count, dtype=np.int64))
    loss, found = method._batch_loss(batch, torch.full((count,), weight))
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(found).all()
    assert all(torch.isfinite(p.grad).all() for p in method.net.parameters() if p.grad is not None)


def codes(lengths, dim=32):
    """Encode nothing: unit vectors at random, zeros from each caption's length on."""
    unit = torch.nn.functional.normalize
    words = unit(torch.randn(len(lengths), max(lengths), dim), dim=2)
    for row, length in enumerate(lengths):
        words[row, length:] = 0.0
    count = len(lengths)
    images = ImageCodes(unit(torch.randn(count, 36, dim), dim=2), unit(torch.randn(count, dim)))
    captions = CaptionCodes(words, unit(torch.randn(count, dim)), torch.tensor(lengths))
    return images, captions


@pytest.fixture(scope="module")
def net():
    small = ["model.embed_dim=32", "model.word_dim=8", "model.similarity_dim=8"]
    return make_network(read_settings("gsc", small).model, Sizes(4, 8, 9)).eval()


def test_words_stand_for_regions_again_and_again_and_padding_never_does():
    _, captions = codes([2, 5])
    words = as_images(captions).regions
    assert words.shape == (2, 5, 32)
    assert torch.equal(words[0], captions.words[0, [0, 1, 0, 1, 0]])
    assert torch.equal(words[1], captions.words[1])


def test_a_caption_whose_words_come_equally_often_is_attended_to_as_itself(net):
    """Alone it has its two words, in company of one of four words each of them twice."""
    _, captions = codes([2, 4])
    with torch.no_grad():
        among = net.score(as_images(captions), captions)
        alone = net.score(as_images(captions[:1]), captions)
    assert torch.allclose(alone[0], among[0], atol=1e-5)


def test_all_regions_stand_for_words():
    images, _ = codes([3, 3])
    found = as_captions(images)
    assert found.words is images.regions
    assert found.lengths.tolist() == [36, 36]


def test_structures_are_within_a_modality(net):
    """Other captions leave the images' structure as it was, and the reverse."""
    images, captions = codes([3, 5, 4])
    other_images, other_captions = codes([4, 2, 5])
    for compare in STRUCTURES.values():
        with torch.no_grad():
            of_images, of_captions = compare(net, images, captions)
            assert torch.equal(compare(net, images, other_captions)[0], of_images)
            assert torch.equal(compare(net, other_images, captions)[1], of_captions)
            assert of_images.shape == of_captions.shape == (3, 3)


def test_pooled_structures_are_cosines(net):
    images, captions = codes([3, 5, 4])
    for found, own in zip(
        STRUCTURES["pooled"](net, images, captions), (images, captions), strict=True
    ):
        expected = torch.cosine_similarity(own.pooled[:, None], own.pooled[None], dim=2)
        assert torch.allclose(found, expected, atol=1e-6)


def test_agreement_is_the_cosine_of_rows_and_the_loss_their_info_nce():
    images = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    captions = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    expected = torch.tensor([1.0, 2**-0.5])
    assert torch.allclose(structure_agreement(images, captions), expected)
    logits = torch.tensor([[1.0, 0.0], [1.0, 2.0]])
    expected = torch.tensor([1 + torch.e**-1, 1 + torch.e**-1]).log()
    assert torch.allclose(images @ captions.T, logits)
    assert torch.allclose(structure_loss(images, captions), expected)
