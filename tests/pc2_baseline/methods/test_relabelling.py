"""NCR and BiCro: who teaches, who labels, whose margin, which pairs, and from when on."""

import numpy as np
import pytest
import torch

from pc2_baseline.methods import relabelling
from pc2_baseline.modules import coteaching
from pc2_baseline.modules.coteaching import DividedPairs
from pc2_baseline.modules.division import Division

BOTH = pytest.mark.parametrize("preset", ["ncr", "bicro"])
ONE_BATCH = ("train.warmup_epochs=1", "train.batch=24", "model.dropout=0", "data.tokenizer=jieba")


def statistics(pairs, third):
    """Two thirds are clean, with posteriors of their own."""
    number = np.arange(pairs)
    prob = 0.55 + 0.4 * number / pairs - 0.02 * third
    return DividedPairs(np.zeros(pairs, np.float32), Division(prob, number % 3 != third))


@pytest.fixture
def divided(on_tiny):
    """Before the first epoch after the warm-up; the peers call different pairs clean."""

    def make(preset, *overrides):
        method, pairs = on_tiny(preset, *ONE_BATCH, *overrides)
        method.fit_epoch(pairs, 0)
        method.statistics = [statistics(len(pairs), third) for third in (0, 1)]
        return method, pairs

    return make


def slow_hinges(matrix, margins):
    """The loss of each pair against its hardest negative of both directions."""
    found = []
    for i in range(len(matrix)):
        others = [j for j in range(len(matrix)) if j != i]
        own, margin = matrix[i][i], margins[i]
        i2t = max(max(0.0, margin + matrix[i][j] - own) for j in others)
        t2i = max(max(0.0, margin + matrix[j][i] - own) for j in others)
        found.append(i2t + t2i)
    return found


def soft(labels):
    return [0.2 * (10**label - 1) / 9 for label in labels]


@torch.no_grad()
def trained_score(net, pairs, rows):
    """The matrix of a batch in training mode, without moving the running statistics."""
    kept = {name: value.clone() for name, value in net.state_dict().items()}
    matrix = net.train().score_batch(pairs.batch(rows)).tolist()
    net.load_state_dict(kept)
    return matrix


@BOTH
@pytest.mark.parametrize("peer", [0, 1])
def test_a_peer_learns_the_pairs_that_the_other_calls_clean(divided, steps, preset, peer):
    method, pairs = divided(preset, "method.noisy_from_epoch=9")
    method._learn(pairs, 1, peer)
    _, step = steps[-1]
    assert sorted(step.pair_index) == method.statistics[1 - peer].division.clean.tolist()


@BOTH
def test_the_other_that_labels_is_the_other_peer_as_the_last_epoch_left_it(divided, preset):
    method, pairs = divided(preset)
    before = [net.state_dict() for net in method.nets]
    before = [{name: value.clone() for name, value in state.items()} for state in before]
    method.fit_epoch(pairs, 1)
    for peer, other in enumerate(method.others):
        assert not other.training
        found = other.state_dict()
        assert all(torch.equal(found[name], before[1 - peer][name]) for name in found)


@BOTH
def test_the_loss_is_the_hinges_of_both_kinds_with_the_labels_as_soft_margins(
    divided, steps, preset
):
    """Hardest negatives, the margin of the query, clean and noisy pairs in one sum."""
    method, pairs = divided(preset)
    own, expected, parts = method.labels, [], []

    def spy(train, peer, clean, noisy):
        assert not method.nets[peer].training
        labels = own(train, peer, clean, noisy)
        for rows, values in zip((clean, noisy), labels, strict=True):
            matrix = trained_score(method.nets[peer], pairs, rows)
            expected.append(sum(slow_hinges(matrix, soft(values.tolist()))))
            parts.extend(rows)
        return labels

    method.labels = spy
    method._learn(pairs, 1, 0)
    clean_loss, noisy_loss = expected
    assert sorted(parts) == list(range(24))
    assert clean_loss > 0.1
    assert noisy_loss > 0.1
    assert steps[-1][0] == pytest.approx(clean_loss + noisy_loss, rel=1e-4)


@BOTH
def test_noisy_pairs_act_from_their_epoch_on(divided, steps, preset):
    method, pairs = divided(preset, "method.noisy_from_epoch=1")
    counts = []
    for epoch in (1, 2):
        method.statistics = [statistics(len(pairs), third) for third in (0, 1)]
        steps.clear()
        method._learn(pairs, epoch, 0)
        counts.append(sum(len(step.pair_index) for _, step in steps))
    assert counts == [16, 24]


@pytest.mark.parametrize(("preset", "noisy_place"), [("ncr", 1), ("bicro", 0)])
def test_of_two_steps_the_noisy_one_has_its_place(divided, steps, preset, noisy_place):
    method, pairs = divided(preset, "method.steps=two")
    figures = method._learn(pairs, 1, 0)
    losses = [loss for loss, _ in steps[-2:]]
    assert losses[noisy_place] == pytest.approx(figures["loss_noisy"])
    assert losses[1 - noisy_place] == pytest.approx(figures["loss"])


@BOTH
def test_negatives_harden_after_the_warm_up_and_the_mean_epochs(divided, monkeypatch, preset):
    asked = []
    for module, name in (
        (coteaching, "triplet_mean"), (relabelling, "triplet_mean"),
        (relabelling, "triplet_hardest"),
    ):  # fmt: skip
        own = getattr(module, name)

        def spy(similarity, *more, own=own, name=name):
            if similarity.requires_grad:
                asked.append(name)
            return own(similarity, *more)

        monkeypatch.setattr(module, name, spy)
    method, pairs = divided(preset, "method.mean_epochs=1", "method.noisy_from_epoch=9")
    asked.clear()
    for epoch in range(3):
        method._learn(pairs, epoch, 0)
    assert asked == ["triplet_mean", "triplet_mean", "triplet_hardest"]


@BOTH
@pytest.mark.parametrize("noisy", [0, 1, 2, 22])
@pytest.mark.parametrize("batch", [2, 24])
def test_it_trains_with_any_number_of_noisy_pairs(on_tiny, preset, noisy, batch):
    method, pairs = on_tiny(preset, "train.warmup_epochs=1", f"train.batch={batch}")
    clean = np.arange(len(pairs)) >= noisy
    own = DividedPairs(np.zeros(24, np.float32), Division(np.where(clean, 0.9, 0.1), clean))
    method.statistics = [own, own]
    figures = method._learn(pairs, 1, 0)
    assert all(np.isfinite(value) for value in figures.values())
    assert (figures["loss_noisy"] > 0) == (noisy > 1)
