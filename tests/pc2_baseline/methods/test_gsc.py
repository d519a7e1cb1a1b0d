"""GSC: pairs weigh as much as the learned geometry, across and within modalities, fits them."""

from functools import partial

import numpy as np
import pytest
import torch

from pc2_baseline.methods import gsc
from pc2_baseline.modules.division import clean_posterior


@pytest.fixture
def made(on_tiny):
    """Make GSC on the tiny release, and its pairs."""
    return partial(on_tiny, "gsc", "train.warmup_epochs=1")


def test_every_pair_counts_fully_in_the_warm_up_and_by_its_weight_after_it(made, spy):
    method, pairs = made("train.warmup_epochs=2")
    calls = spy(method, "_batch_loss")
    for epoch in range(3):
        calls.clear()
        before = method.statistics["clean_prob"]
        method.fit_epoch(pairs, epoch)
        for _, (batch, weights), (_, estimates) in calls:
            rows = batch.pair_index
            expected = before[rows] if epoch == 2 else torch.ones(len(rows))
            assert torch.equal(weights, expected)
            assert torch.equal(method.statistics["loss"][rows], estimates[0])
    assert not torch.equal(before, torch.ones(24)), "weights are not all 1 by then"


def test_a_weight_is_the_smaller_of_two_averages_over_the_epochs(made):
    """Two epochs by hand, beta 0.7; the posterior of agreement is the mixture's."""
    method, _ = made()
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
        found["prediction"], 0.7 * 0.5 * predictions + 0.3 * (0.7 * predictions + 0.3)
    )
    assert torch.allclose(found["structure"], 0.7 * fit + 0.3 * (0.7 * fit + 0.3))
    smaller = [min(a, b) for a, b in zip(found["prediction"], found["structure"], strict=True)]
    assert torch.equal(found["clean_prob"], torch.stack(smaller))
    assert torch.equal(found["is_clean"], found["clean_prob"] > 0.5)
    assert found["loss"] is losses
    less = found["prediction"] < found["structure"]
    assert less.any()
    assert not less.all()


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
def test_the_loss_agrees_with_the_formula(made, monkeypatch, structures):
    monkeypatch.setattr(gsc, "STRUCTURE_WEIGHT", 0.7)
    own = "model.dropout=0", "method.temperature=0.3", f"method.structures={structures}"
    method, pairs = made(*own)
    batch, weights = pairs.batch(np.arange(6)), torch.rand(6)
    net = method.net.eval()
    with torch.no_grad():
        loss, found = method._batch_loss(batch, weights)
        images = net.encode_images(batch.regions)
        captions = net.encode_captions(batch.tokens, batch.lengths)
        as_images, as_captions = gsc.as_images(captions), gsc.as_captions(images)
        within = net.score(images, as_captions), net.score(as_images, captions)
        if structures == "pooled":
            sides = images.pooled, captions.pooled
            within = [torch.cosine_similarity(own[:, None], own[None], dim=2) for own in sides]
        for row, length in enumerate(captions.lengths.tolist()):
            places = np.arange(captions.words.shape[1]) % length
            assert torch.equal(as_images.regions[row], captions.words[row, places])
        expected, kept = slow_loss(net.score(images, captions), *within, weights, 0.3, 0.7)
    assert torch.allclose(loss, expected, atol=1e-5)
    assert torch.allclose(found, kept, atol=1e-5)
