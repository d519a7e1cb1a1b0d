"""CREAM: two networks agree or not, and a pair's target says how far they believe in it."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from pc2_baseline.methods import cream
from pc2_baseline.methods.cream import CLEAN, HARD, NOISY, Predicted, mined_targets
from pc2_baseline.modules.contrastive import info_nce
from pc2_baseline.modules.division import Division


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
        Predicted(np.zeros(len(prob)), Division(prob, is_clean), prediction.astype(np.float32))
        for prob, is_clean, prediction in zip(probs, both, predictions, strict=True)
    ]


def test_the_warm_up_is_info_nce_at_the_temperature(made, steps, scored):
    method, pairs = made("model.dropout=0", "train.batch=24", "method.temperature=0.3")
    scores = [scored(net, pairs, training=True) for net in method.nets]
    method.fit_epoch(pairs, 0)
    expected = [info_nce(own, 0.3).mean().item() for own in scores]
    assert [loss for loss, _ in steps] == pytest.approx(expected, abs=1e-5)


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
def test_hard_pairs_act_from_their_epoch_on_and_noisy_ones_from_theirs(made, steps, spy, epoch):
    """Twelve clean pairs, six hard ones of both kinds, six noisy ones; each with its own target."""
    method, pairs = made("method.hard_from_epoch=1", "method.noisy_from_epoch=2", "train.batch=6")
    kinds = np.repeat([CLEAN, HARD, NOISY], [12, 6, 6])
    probs = np.linspace(0.9, 0.1, 24)
    believe(method, kinds >= CLEAN, kinds >= HARD, [probs, probs / 2])
    believed = {"a": method.correspondence(0), "b": method.correspondence(1)}
    calls = spy(cream, "mined_targets")
    method.fit_epoch(pairs, epoch)
    taken = [step.pair_index for _, step in steps if step.peer == "a"]
    for (_, (_, labels, _), _), (_, step) in zip(calls, steps, strict=True):
        assert np.allclose(labels, believed[step.peer][step.pair_index])
    by_kind = [set(kinds[rows]) for rows in taken]
    assert all(len(found) == 1 for found in by_kind), "a step is of one kind of pairs"
    noisy = [CLEAN, HARD, NOISY, CLEAN, NOISY]
    expected = {1: [CLEAN, CLEAN], 2: [CLEAN, HARD, CLEAN], 3: noisy}[epoch]
    assert [found.pop() for found in by_kind] == expected
    clean = [rows for rows in taken if kinds[rows[0]] == CLEAN]
    assert sorted(np.concatenate(clean)) == list(range(12))


def test_negatives_are_mined_from_the_hard_epoch_on_unless_most_pairs_are_clean(made):
    method, _ = made("method.hard_from_epoch=3")
    few = np.repeat([CLEAN, HARD, NOISY], [8, 1, 1])
    y = np.array([0.9] * 8 + [0.4, 0.2])
    mean = float(y.mean())
    assert method._mining_floors(few, y, 2) == {CLEAN: math.inf, HARD: mean, NOISY: mean}
    assert method._mining_floors(few, y, 3) == {CLEAN: mean, HARD: mean, NOISY: mean}
    most = np.repeat([CLEAN, NOISY], [9, 1])
    assert method._mining_floors(most, y, 0) == {CLEAN: 0.0, HARD: 0.0, NOISY: mean}


def test_a_pairs_loss_and_prediction_are_its_own_in_evaluation_mode(made, scored):
    method, pairs = made("method.temperature=0.2")
    method.fit_epoch(pairs, 0)
    for net, found in zip(method.nets, method.statistics, strict=True):
        matrix = scored(net, pairs) / 0.2
        chances = torch.stack([matrix.softmax(way).diagonal() for way in (0, 1)])
        assert torch.allclose(torch.from_numpy(found.prediction), chances.mean(0), atol=1e-5)
        assert torch.allclose(torch.from_numpy(found.loss), -chances.log().mean(0), atol=1e-4)


def slow_targets(similarity, correspondence, floor):
    """Straight from the formula, a cell at a time."""
    size = len(similarity)
    similarity = similarity.detach()
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
    similarity = torch.rand(5, 5, dtype=torch.float64, requires_grad=True)
    y = torch.rand(5, dtype=torch.float64)
    found, expected = mined_targets(similarity, y, floor), slow_targets(similarity, y, floor)
    for own, other in zip(found, expected, strict=True):
        assert torch.allclose(own, other, atol=1e-9)
        assert not own.requires_grad
