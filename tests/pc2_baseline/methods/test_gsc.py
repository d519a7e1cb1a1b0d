"""GSC: pairs weigh as much as the learned geometry, across and within modalities, fits them."""

from functools import partial

import numpy as np
import pytest
import torch

from now_builder.errors import TrainingError
from pc2_baseline.config import read_settings
from pc2_baseline.methods.gsc import Gsc
from pc2_baseline.modules.division import clean_posterior
from pc2_baseline.modules.learner import Learner

CPU = torch.device("cpu")
AVERAGES = ("prediction", "structure", "clean_prob")


@pytest.fixture
def made(on_tiny):
    """Make GSC on the tiny release, and its pairs."""
    return partial(on_tiny, "gsc", "train.warmup_epochs=1")


def test_the_defaults_are_the_published_schedule():
    settings = read_settings("gsc", [], on="f30k")
    method, life = settings.method, settings.train
    assert (method.temperature, method.newest_weight, method.structure_weight) == (0.07, 0.7, 0.01)
    assert (life.total_epochs, life.lr_drop_epoch, method.lr_decay) == (60, 15, 0.2)
    assert read_settings("gsc", [], on="coco").train.lr_drop_epoch == 20


def test_the_rate_falls_again_and_again_from_the_first_epoch_on(made, monkeypatch):
    method, pairs = made("train.lr_drop_epoch=2", "method.lr_decay=0.5", "train.batch=24")
    asked = []
    monkeypatch.setattr(Learner, "set_rate", lambda _, factor: asked.append(factor))
    for epoch in range(5):
        method.fit_epoch(pairs, epoch)
    assert asked == [1, 1, 0.5, 0.5, 0.25]


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


def test_all_structures_alike_are_named(made):
    method, _ = made()
    with pytest.raises(TrainingError, match=r"the statistic is -0\.5 for all 24 pairs"):
        method._weigh(torch.zeros(24), torch.zeros(24), torch.full((24,), 0.5))


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
