"""NPC: the memory bank, what a step on a batch does to it, and what the pairs weigh for it."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

from pc2_baseline.methods import npc
from pc2_baseline.methods.npc import nearest
from pc2_baseline.modules.division import Division

STILL = ["model.dropout=0", "method.temperature=0.3"]
HALF = np.arange(24) % 2 == 0
"""Pairs that the mixture is made to call surely clean."""


@pytest.fixture
def banked(warm, monkeypatch):
    """NPC after its warm-up, with the even pairs as its bank."""
    posterior = np.where(HALF, 0.95, 0.89)
    monkeypatch.setattr(npc, "divide", lambda *_: Division(posterior, posterior > 0.5))
    return lambda *overrides: warm("npc", *STILL, *overrides)


def slow_losses(matrix, tau=0.3):
    """InfoNCE of each pair straight from the equation, the mean of both directions."""
    found = []
    for i in range(len(matrix)):
        row, column = (matrix[i] / tau).exp(), (matrix[:, i] / tau).exp()
        found.append(-((row[i] / row.sum()).log() + (column[i] / column.sum()).log()) / 2)
    return torch.stack(found)


def test_the_nearest_entry_is_that_of_a_loop_and_an_entry_is_its_own():
    vectors = torch.nn.functional.normalize(torch.randn(300, 5), dim=1)
    entries = torch.randperm(300)[:70]
    found = nearest(vectors, entries)
    for pair, entry in enumerate(found):
        assert entry in entries
        assert all(vectors[pair] @ vectors[entry] >= vectors[pair] @ vectors[e] for e in entries)
    assert torch.equal(found[entries], entries)


def test_the_bank_is_of_surely_clean_pairs_by_image_and_by_caption(banked):
    """With images as a noise file assigns them: each that of the pair before."""
    method, pairs = banked()
    image_of = np.roll(np.arange(24), 1)
    method._remember(replace(pairs, image_of=image_of))
    with torch.no_grad():
        net, batch = method.net.eval(), pairs.batch(np.arange(24))
        images = net.encode_images(batch.regions).pooled[image_of]
        captions = net.encode_captions(batch.tokens, batch.lengths).pooled
    even = torch.from_numpy(np.flatnonzero(HALF))
    for name, vectors in (("image_entry", images), ("caption_entry", captions)):
        assert torch.equal(method.statistics[name], nearest(vectors, even)), name
    assert not torch.equal(*(method.statistics[name] for name in npc._BANK))


def entry_losses(net, pairs, method, rows, *, training=False):
    net = net.train(training)
    return [
        slow_losses(net.score_batch(pairs.batch(method.statistics[name].numpy()[rows])))
        for name in npc._BANK
    ]


def test_a_weight_is_what_one_step_of_a_copy_on_the_batch_does_to_the_entries(banked):
    """The copy's first steps by PyTorch's own AdamW, without dropout, batch statistics or clipping.

    The network itself stays.
    """
    sets = ["train.lr=1e-2", "train.clip=1e-6", "train.weight_decay=0.1", "model.dropout=0.5"]
    method, pairs = banked(*sets)
    rows = np.array([5, 2, 17, 8, 11, 20])
    state = deepcopy(method.net.state_dict())
    copy = deepcopy(method.net)
    with torch.no_grad():
        before = entry_losses(copy, pairs, method, rows)
    optimiser = torch.optim.AdamW(copy.parameters(), lr=1e-2, weight_decay=0.1)
    slow_losses(copy.eval().score_batch(pairs.batch(rows))).mean().backward()
    optimiser.step()
    with torch.no_grad():
        after = entry_losses(copy, pairs, method, rows)
    ratio = sum(old / new for old, new in zip(before, after, strict=True)) / 2
    found = method._weigh(pairs, npc.Step(1, 0, None, rows))
    assert torch.allclose(found, torch.where(ratio < 1, ratio.tanh(), 1.0), atol=1e-3)
    assert len(set(found.tolist())) > 1, "weights that tell pairs apart"
    assert all(torch.equal(value, state[name]) for name, value in method.net.state_dict().items())
    assert method.net.training


def test_the_loss_weighs_each_pair_and_adds_both_entries(banked):
    method, pairs = banked()
    rows, weights = np.arange(3, 15), torch.linspace(0, 1, 12)
    net = deepcopy(method.net)
    own = slow_losses(net.train().score_batch(pairs.batch(rows)))
    entries = entry_losses(net, pairs, method, rows, training=True)
    expected = sum(w * o + a + b for w, o, a, b in zip(weights, own, *entries, strict=True)) / 12
    method.net.train()
    assert torch.allclose(method._weighed_loss(pairs, rows, weights), expected, atol=1e-5)


def test_an_epoch_weighs_before_it_learns_and_keeps_the_weights_by_pair(banked, monkeypatch, spy):
    method, pairs = banked("train.batch=12")
    monkeypatch.setattr(
        method, "_weigh", lambda _, step: torch.from_numpy(step.pair_index / 24).float()
    )
    calls = spy(method, "_weighed_loss")
    method.fit_epoch(pairs, 1)
    given = [(rows, weights) for _, (_, rows, weights), _ in calls]
    assert sorted(np.concatenate([rows for rows, _ in given])) == list(range(24))
    assert all(np.allclose(weights, rows / 24) for rows, weights in given)
    assert np.allclose(method.statistics["weight"], np.arange(24) / 24)
