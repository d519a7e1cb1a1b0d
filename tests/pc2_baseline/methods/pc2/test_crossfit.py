"""PC2 by cross-fit division: no peer learns its fold, which it alone judges."""

import numpy as np
import pytest
import torch

from pc2_baseline.methods.pc2 import crossfit
from pc2_baseline.methods.pc2.paper import rectified
from pc2_baseline.modules.division import Division, assign_folds

CLEAN = np.arange(24) % 3 > 0
PROB = np.linspace(0.3, 0.9, 24)


@pytest.fixture
def made(on_tiny, monkeypatch):
    """Four peers whose division is known."""
    asked = []

    def divided(losses, fold, seed, *how):
        asked.append(how)
        return Division(PROB, CLEAN)

    monkeypatch.setattr(crossfit, "divide_by_fold", divided)

    def make(*overrides):
        method, pairs = on_tiny("pc2-crossfit", "train.warmup_epochs=2", *overrides)
        return method, pairs, assign_folds(pairs.image_of, pairs.captions, 4, 0)

    make.asked = asked
    return make


@pytest.mark.parametrize(("overrides", "first"), [
    ([], 2), (["method.noisy_from_epoch=1"], 3), (["method.pseudo_captions=false"], 9),
])  # fmt: skip
def test_a_peer_learns_the_pairs_outside_its_fold_noisy_ones_from_their_epoch(
    made, steps, overrides, first
):
    method, pairs, fold = made("train.batch=24", *overrides)
    for epoch in range(4):
        steps.clear()
        method.fit_epoch(pairs, epoch)
        for peer in range(4):
            (rows,) = [step.pair_index for _, step in steps if step.peer == str(peer)]
            noisy = epoch < 2 or epoch >= first
            expected = (fold != peer) & (CLEAN | noisy)
            assert sorted(rows) == np.flatnonzero(expected).tolist()
            if epoch >= 2:
                clean = (CLEAN & (fold != peer)).sum()
                assert CLEAN[rows[:clean]].all()


def test_a_pair_is_judged_by_its_folds_peer_among_its_fold(made, scored, mean_losses):
    """Loss, prediction, and how far that moved since the epoch before."""
    method, pairs, fold = made("method.division_threshold=0.75", "method.division_scale=log")
    method.fit_epoch(pairs, 0)
    assert not method.statistics["oscillation"].any()
    old = method.bank.predictions.double()
    method.fit_epoch(pairs, 1)
    new = method.bank.predictions.double()
    for peer, net in enumerate(method.nets):
        rows = np.flatnonzero(fold == peer)
        losses = mean_losses(scored(net.matching, pairs, rows))
        assert torch.allclose(method.statistics["loss"][rows], losses, atol=1e-6)
        with torch.no_grad():
            found = net.predict(net.eval().matching.encode_images(pairs.batch(rows).regions))
        assert torch.allclose(new[rows].float(), found, atol=1e-6)
    moved = (old * (old / new).log()).sum(1)
    assert torch.allclose(method.statistics["oscillation"].double(), moved, rtol=1e-2, atol=1e-6)
    assert made.asked == [(0.75, "log")] * 2


def test_stable_pairs_are_found_fold_by_fold_and_rectify_the_margins(made, spy):
    method, pairs, fold = made()
    calls = spy(crossfit, "stable_pairs", "training_step")
    for epoch in range(3):
        before, state = len(calls), method.statistics
        method.fit_epoch(pairs, epoch)
        own = calls[before:]
        stable = [(args[0], found) for name, args, found in own if name == "stable_pairs"]
        assert len(stable) == 4
        for number, (moved, (prob, is_stable)) in enumerate(stable):
            kept = method.statistics
            rows = fold == number
            assert np.array_equal(moved, kept["oscillation"].numpy()[rows])
            assert np.array_equal(prob, kept["stable_prob"].numpy()[rows])
            assert np.array_equal(is_stable, kept["is_stable"].numpy()[rows])
    (_, args, _) = own[0]
    stable = (state[name].numpy() for name in ("stable_prob", "is_stable"))
    assert np.array_equal(args[1].correspondence, rectified(PROB, *stable))
    assert not np.array_equal(args[1].correspondence, PROB)
