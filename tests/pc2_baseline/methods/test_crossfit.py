"""Cross-fit division: no peer trains on its fold, and what it never saw it judges well."""

import copy
from functools import partial

import numpy as np
import pytest
import torch

from pc2_baseline.methods import crossfit
from pc2_baseline.modules.contrastive import complementary, generalised_cross_entropy, info_nce
from pc2_baseline.modules.division import Division, assign_folds
from pc2_baseline.modules.losses import soft_margin

DIVISION = Division(np.linspace(0, 1, 24), np.linspace(0, 1, 24) > 0.4)
"""Of so few pairs a mixture may call a single one clean."""
FULL = "method.mean_epochs=0"


@pytest.mark.parametrize("folds", [3])
def test_no_peer_ever_trains_on_its_fold(on_tiny, steps, monkeypatch, folds):
    monkeypatch.setattr(crossfit, "divide_by_fold", lambda *_: DIVISION)
    method, pairs = on_tiny("crossfit", FULL, f"method.folds={folds}")
    fold = assign_folds(pairs.image_of, pairs.captions, folds, 0)
    for epoch in range(4):
        steps.clear()
        method.fit_epoch(pairs, epoch)
        for peer in range(folds):
            rows = [step.pair_index for _, step in steps if step.peer == str(peer)]
            expected = (fold != peer) & (DIVISION.is_clean if epoch >= 2 else True)
            assert sorted(np.concatenate(rows)) == np.flatnonzero(expected).tolist()
    assert np.array_equal(method.statistics["fold"].numpy(), fold)


@pytest.mark.parametrize("loss", ["triplet", "info_nce", "gce"])
def test_a_pairs_loss_is_that_of_its_folds_peer_among_its_fold(on_tiny, scored, mean_losses, loss):
    """Mean negatives, or for any softmax loss InfoNCE."""
    method, pairs = on_tiny("crossfit", FULL, f"method.loss={loss}", "method.temperature=0.3")
    method.fit_epoch(pairs, 0)
    fold = method.statistics["fold"].numpy()
    for peer, net in enumerate(method.nets):
        rows = np.flatnonzero(fold == peer)
        matrix = scored(net, pairs, rows)
        expected = mean_losses(matrix) if loss == "triplet" else info_nce(matrix, 0.3)
        assert torch.allclose(method.statistics["loss"][rows], expected, atol=1e-6)


def test_margins_follow_the_belief(on_tiny, spy):
    method, pairs = on_tiny("crossfit", FULL, "train.warmup_epochs=1", "train.batch=24")
    calls = spy(crossfit, "triplet_mean", "triplet_hardest")
    for epoch in range(3):
        before = dict(method.statistics)
        calls.clear()
        method.fit_epoch(pairs, epoch)
        asked = [margins for _, (similarity, margins), _ in calls if similarity.requires_grad]
        for peer, margins in enumerate(asked):
            expected = torch.full((18,), 0.2)
            if epoch:
                rows = (before["fold"] != peer) & before["is_clean"]
                expected = soft_margin(before["clean_prob"][rows].float(), 0.2)
            assert torch.allclose(margins.sort().values, expected.sort().values, atol=1e-6)


@pytest.mark.parametrize("loss", ["info_nce", "complementary", "gce"])
def test_a_softmax_loss_is_weighed_by_the_clean_probabilities(
    on_tiny, steps, scored, monkeypatch, loss
):
    """One batch an epoch, without dropout: its loss follows from the weights before it."""
    monkeypatch.setattr(crossfit, "divide_by_fold", lambda *_: DIVISION)
    method, pairs = on_tiny(
        "crossfit-pooled/demo", "model.dropout=0", "model.word_dropout=0",
        "model.feature_dropout=0", "train.warmup_epochs=1", "method.folds=3", "train.batch=24",
        f"method.loss={loss}", "method.temperature=0.3",
    )  # fmt: skip
    each = {"info_nce": info_nce, "complementary": complementary,
            "gce": partial(generalised_cross_entropy, power=0.7)}[loss]  # fmt: skip
    fold = assign_folds(pairs.image_of, pairs.captions, 3, 0)
    for epoch in range(2):
        before = copy.deepcopy(method.nets)
        steps.clear()
        method.fit_epoch(pairs, epoch)
        for peer, (found, step) in enumerate(steps):
            rows = step.pair_index
            weights = torch.from_numpy(DIVISION.clean_prob[rows]).float() if epoch else 1.0
            expected = (fold != peer) & (DIVISION.is_clean if epoch else True)
            assert sorted(rows) == np.flatnonzero(expected).tolist()
            costs = weights * each(scored(before[peer], pairs, rows), temperature=0.3)
            assert found == pytest.approx(costs.mean().item(), rel=1e-4)
