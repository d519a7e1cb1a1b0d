"""CREAM: two networks agree or not, and a pair's target says how far they believe in it."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from now_builder.errors import TrainingError
from pc2_baseline.config import read_settings
from pc2_baseline.methods import cream
from pc2_baseline.methods.cream import CLEAN, HARD, NOISY, mined_targets
from pc2_baseline.modules.contrastive import info_nce, soft_info_nce
from pc2_baseline.modules.learner import Learner
from pc2_baseline.networks.network import MatchingNetwork

CPU = torch.device("cpu")


@pytest.fixture
def made(on_tiny):
    """Make CREAM on the tiny release, and its pairs."""
    return partial(on_tiny, "cream", "train.warmup_epochs=1")


def believe(method, clean_a, clean_b, probs=None, predictions=None):
    """Set the division of both peers; by default clean pairs have probability 0.9, others 0.1."""
    both = np.array([clean_a, clean_b], dtype=bool)
    probs = np.where(both, 0.9, 0.1) if probs is None else np.array(probs)
    predictions = np.full(both.shape, 0.5) if predictions is None else np.array(predictions)
    method.statistics = [
        {
            "clean_prob": torch.from_numpy(prob), "is_clean": torch.from_numpy(is_clean),
            "loss": torch.zeros(len(prob)), "prediction": torch.from_numpy(prediction).float(),
        }
        for prob, is_clean, prediction in zip(probs, both, predictions, strict=True)
    ]  # fmt: skip


def steps_of(method, pairs, epoch, monkeypatch):
    """Train an epoch and return the pairs of each step of the first peer."""
    taken, own = [], Learner.step
    monkeypatch.setattr(
        Learner, "step", lambda self, loss, step: (taken.append(step), own(self, loss, step))[1]
    )
    method.fit_epoch(pairs, epoch)
    return [step.pair_index for step in taken if step.peer == "a"]


def test_the_defaults_are_the_published_schedule():
    settings = read_settings("cream", [], on="f30k")
    method, life = settings.method, settings.train
    assert method.temperature == 0.07
    assert (method.hard_from_epoch, method.noisy_from_epoch) == (10, 15)
    assert (life.warmup_epochs, life.epochs, life.lr_drop_epoch, method.lr_decay) == (
        5,
        40,
        10,
        0.1,
    )
    assert read_settings("cream", [], on="coco").train.epochs == 20


def test_the_warm_up_is_info_nce_at_the_temperature(made, monkeypatch):
    method, pairs = made("model.dropout=0", "train.batch=24", "method.temperature=0.3")
    expected, own = [], Learner.step
    score, asked = MatchingNetwork.score_batch, []
    monkeypatch.setattr(
        MatchingNetwork, "score_batch", lambda *a: (asked.append(score(*a)), asked[-1])[1]
    )

    def step(self, loss, step):
        expected.append(loss.item() - info_nce(asked[-1], 0.3).mean().item())
        return own(self, loss, step)

    monkeypatch.setattr(Learner, "step", step)
    method.fit_epoch(pairs, 0)
    assert expected == pytest.approx([0.0, 0.0], abs=1e-5)


def test_a_pair_is_clean_where_both_say_so_noisy_where_both_do_else_hard(made):
    method, _ = made()
    believe(method, [1, 1, 0, 0], [1, 0, 1, 0])
    assert method._kinds().tolist() == [CLEAN, HARD, HARD, NOISY]


def test_a_target_is_refined_by_the_other_peer_where_clean_by_both_where_hard(made):
    """Of each kind a pair, worked by hand for both peers; all numbers differ."""
    method, _ = made()
    probs = [[0.9, 0.7, 0.2], [0.6, 0.4, 0.3]]
    predictions = [[0.5, 0.3, 0.1], [0.2, 0.8, 0.7]]
    believe(method, [1, 1, 0], [1, 0, 0], probs, predictions)
    clean_a, clean_b = 0.6 + 0.4 * 0.5, 0.9 + 0.1 * 0.2
    hard_a, hard_b = 0.55 + 0.45 * 0.3, 0.55 + 0.45 * 0.8
    assert method.correspondence(0) == pytest.approx([clean_a, hard_a, 0.4])
    assert method.correspondence(1) == pytest.approx([clean_b, hard_b, 0.4])


@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_hard_pairs_act_from_their_epoch_on_and_noisy_ones_from_theirs(made, monkeypatch, epoch):
    """Twelve clean pairs, six hard ones of both kinds, six noisy ones."""
    method, pairs = made("method.hard_from_epoch=1", "method.noisy_from_epoch=2", "train.batch=6")
    kinds = np.repeat([CLEAN, HARD, NOISY], [12, 6, 6])
    believe(method, kinds >= CLEAN, kinds >= HARD)
    taken = steps_of(method, pairs, epoch, monkeypatch)
    by_kind = [set(kinds[rows]) for rows in taken]
    assert all(len(found) == 1 for found in by_kind), "a step is of one kind of pairs"
    order = [found.pop() for found in by_kind]
    assert (
        order
        == {
            1: [CLEAN, CLEAN],
            2: [CLEAN, HARD, CLEAN],
            3: [CLEAN, HARD, NOISY, CLEAN, NOISY],
        }[epoch]
    )
    assert sorted(np.concatenate([rows for rows in taken if kinds[rows[0]] == CLEAN])) == list(
        range(12)
    )


def test_a_clean_pair_alone_is_named_and_a_single_hard_one_is_left_out(made, monkeypatch):
    method, pairs = made("method.hard_from_epoch=0")
    believe(method, np.arange(24) < 24, np.arange(24) < 23)
    assert 23 not in np.concatenate(steps_of(method, pairs, 1, monkeypatch))
    believe(method, np.arange(24) < 1, np.arange(24) < 1)
    with pytest.raises(TrainingError, match="1 of 24 pairs are clean"):
        method.fit_epoch(pairs, 1)


def test_targets_reach_the_pairs_that_they_are_of(made, monkeypatch):
    """Each peer is taught its own correspondence, pair by pair."""
    method, pairs = made("train.batch=24")
    own = np.linspace(0.01, 0.99, 24)
    monkeypatch.setattr(method, "correspondence", lambda peer: own / (peer + 1))
    believe(method, np.ones(24), np.ones(24))
    asked, make = [], cream.mined_targets
    monkeypatch.setattr(cream, "mined_targets", lambda *a: (asked.append(a), make(*a))[1])
    taken = steps_of(method, pairs, 1, monkeypatch)
    assert asked[0][1].tolist() == pytest.approx(own[taken[0]])
    assert sorted(asked[1][1].tolist()) == pytest.approx(sorted(own / 2))


def test_negatives_are_mined_from_the_hard_epoch_on_unless_most_pairs_are_clean(made):
    method, _ = made("method.hard_from_epoch=3")
    few = np.repeat([CLEAN, HARD, NOISY], [8, 1, 1])
    y = np.array([0.9] * 8 + [0.4, 0.2])
    mean = float(y.mean())
    assert method._mining_floors(few, y, 2) == {CLEAN: math.inf, HARD: mean, NOISY: mean}
    assert method._mining_floors(few, y, 3) == {CLEAN: mean, HARD: mean, NOISY: mean}
    most = np.repeat([CLEAN, NOISY], [9, 1])
    assert method._mining_floors(most, y, 0) == {CLEAN: 0.0, HARD: 0.0, NOISY: mean}


def test_the_rate_falls_again_and_again_after_the_warm_up(made, monkeypatch):
    method, pairs = made(
        "train.lr_drop_epoch=2", "train.warmup_epochs=3", "method.lr_decay=0.5", "train.batch=24"
    )
    believe(method, np.ones(24), np.ones(24))
    asked = []
    monkeypatch.setattr(Learner, "set_rate", lambda _, factor: asked.append(factor))
    for epoch in range(8):
        method._learn(pairs, epoch, 0)
    assert asked == [1, 1, 1, 1, 1, 0.5, 0.5, 0.25]


def test_a_pairs_loss_and_prediction_are_its_own_in_evaluation_mode(made):
    method, pairs = made("method.temperature=0.2")
    method.fit_epoch(pairs, 0)
    for net, found in zip(method.nets, method.statistics, strict=True):
        batch = pairs.batch(np.arange(24))
        with torch.no_grad():
            matrix = net.eval().score(
                net.encode_images(batch.regions), net.encode_captions(batch.tokens, batch.lengths)
            )
        by_image, by_caption = (matrix / 0.2).softmax(1), (matrix / 0.2).softmax(0)
        chances = torch.stack([by_image.diagonal(), by_caption.diagonal()])
        assert torch.allclose(found["prediction"], chances.mean(0), atol=1e-5)
        assert torch.allclose(found["loss"], -chances.log().mean(0), atol=1e-4)


def slow_targets(similarity, correspondence, floor):
    """Straight from the formula, a cell at a time."""
    size = len(similarity)
    by_image, by_caption = torch.zeros(2, size, size, dtype=similarity.dtype)
    for i in range(size):
        for j in range(size):
            row = sum(similarity[i, k] for k in range(size) if k != i) + 1e-6
            column = sum(similarity[k, j] for k in range(size) if k != j) + 1e-6
            if i == j:
                by_image[i, j] = by_caption[i, j] = correspondence[i]
                continue
            of_row = (1 - correspondence[i]) * similarity[i, j] / row
            of_column = (1 - correspondence[j]) * similarity[i, j] / column
            by_image[i, j] = of_row if of_row >= floor else 0.0
            by_caption[i, j] = of_column if of_column >= floor else 0.0
    return by_image, by_caption


@pytest.mark.parametrize("floor", [0.0, 0.2, math.inf])
def test_mined_targets_agree_with_the_formula(floor):
    similarity, y = torch.rand(5, 5, dtype=torch.float64), torch.rand(5, dtype=torch.float64)
    found, expected = mined_targets(similarity, y, floor), slow_targets(similarity, y, floor)
    for own, other in zip(found, expected, strict=True):
        assert torch.allclose(own, other, atol=1e-9)


def test_mined_targets_by_hand():
    """Pair 0 is half believed: its caption's other half goes 1 : 3 to the images that fit it."""
    similarity = torch.tensor([[0.9, 0.2, 0.2], [0.1, 0.9, 0.5], [0.3, 0.5, 0.9]])
    by_image, by_caption = mined_targets(similarity, torch.tensor([0.5, 1.0, 1.0]), 0.0)
    assert torch.allclose(by_image[0], torch.tensor([0.5, 0.25, 0.25]), atol=1e-4)
    assert torch.allclose(by_caption[:, 0], torch.tensor([0.5, 0.125, 0.375]), atol=1e-4)
    assert by_image[1].tolist() == [0, 1, 0]
    kept = mined_targets(similarity, torch.tensor([0.5, 1.0, 1.0]), 0.2)[1][:, 0]
    assert kept.tolist() == pytest.approx([0.5, 0.0, 0.375], abs=1e-4)


def test_no_gradient_flows_through_the_mined_targets():
    similarity = torch.rand(4, 4, dtype=torch.float64, requires_grad=True)
    y = torch.rand(4, dtype=torch.float64)
    constant = mined_targets(similarity, y, 0.0)
    loss = soft_info_nce(similarity, 0.3, *mined_targets(similarity, y, 0.0)).sum()
    expected = torch.autograd.grad(soft_info_nce(similarity, 0.3, *constant).sum(), similarity)[0]
    assert not any(own.requires_grad for own in constant)
    assert torch.equal(torch.autograd.grad(loss, similarity)[0], expected)
    assert torch.autograd.gradcheck(lambda s: soft_info_nce(s, 0.3, *constant), similarity)


@pytest.mark.parametrize("y", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("score", [0.0, 0.5, -1.0])
@pytest.mark.parametrize("count", [2, 9])
def test_targets_and_losses_are_finite_at_the_extremes(y, score, count):
    """Equal scores, also at or below nothing; a batch of two; all pairs noisy, or none."""
    similarity = torch.full((count, count), score, requires_grad=True)
    targets = mined_targets(similarity, torch.full((count,), y), 0.0)
    losses = soft_info_nce(similarity, 0.07, *targets)
    assert torch.isfinite(losses).all()
    assert torch.isfinite(torch.autograd.grad(losses.sum(), similarity)[0]).all()
