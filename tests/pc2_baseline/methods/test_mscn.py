"""MSCN: the meta set, the step of the meta net one step ahead, and what begins the mixture."""

from copy import deepcopy
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from now_builder.errors import ConfigError, TrainingError
from pc2_baseline.config import read_settings
from pc2_baseline.methods import mscn
from pc2_baseline.methods.mscn import divide_by_known, draw_meta_pairs
from pc2_baseline.modules.seeds import stream

STILL = ["model.dropout=0", "model.feature_dropout=0"]
QUARTER = "method.meta_share=0.25"
"""Six of 24 pairs."""
HEAD = "similarity.evaluate."


@pytest.fixture
def taught(divided):
    """MSCN after its warm-up: each peer calls two thirds of the pairs clean."""
    return lambda *overrides: divided("mscn", QUARTER, *overrides)


def test_the_meta_set_is_of_matching_pairs_the_same_in_every_epoch(on_tiny):
    method, pairs = on_tiny("mscn", QUARTER)
    rows = method.meta_rows(pairs)
    assert len(rows) == 6
    assert pairs.matched[rows].all()
    assert np.array_equal(method.meta_rows(pairs), rows)
    assert not np.array_equal(on_tiny("mscn", QUARTER, "train.seed=5")[0].meta_rows(pairs), rows)
    few, _ = on_tiny("mscn", "method.meta_share=0.001")
    assert len(few.meta_rows(pairs)) == 2


def test_as_many_random_mismatches_stand_beside_the_matches(on_tiny):
    """With images as a noise file assigns them, some captions sharing one."""
    _, opened = on_tiny("mscn")
    pairs = replace(opened, image_of=np.roll(np.arange(24), 1) // 2)
    rows, images = np.array([3, 8, 20]), set()
    for draw in range(300):
        found = draw_meta_pairs(pairs, rows, stream(draw))
        assert found.labels.tolist() == [1, 1, 1, 0, 0, 0]
        assert found.captions[:3].tolist() == rows.tolist()
        own = pairs.image_of[found.captions]
        assert (found.images == own).tolist() == [True] * 3 + [False] * 3
        images |= set(found.images[3:])
    assert images == set(range(24))


def test_all_but_the_meta_set_is_learned_first_then_what_the_other_calls_clean(taught, steps):
    method, pairs = taught("train.batch=5")
    rest = np.setdiff1d(np.arange(24), method.meta_rows(pairs))
    for peer, name in enumerate("ab"):
        steps.clear()
        method._warm_up(pairs, 0, peer)
        rows = [step.pair_index for _, step in steps]
        assert [len(own) for own in rows] == [9, 9], "twice a batch"
        assert sorted(np.concatenate(rows)) == rest.tolist()
        steps.clear()
        method._learn(pairs, 1, peer)
        both = [step.pair_index for _, step in steps]
        assert all(np.array_equal(*both[at : at + 2]) for at in range(0, len(both), 2))
        clean = method.statistics[1 - peer].division.clean
        assert sorted(np.concatenate(both[1::2])) == np.intersect1d(clean, rest).tolist()
        assert {step.peer for _, step in steps} == {name}


def slow_loss(net, batch, margins=None):
    """Hardest negatives, the margin the query's, straight from the equations."""
    matrix = net.score_batch(batch)
    own = matrix.diagonal()
    if margins is None:
        p = own.detach()
        margins = 0.2 / (1 + (p / (1 - p)) ** -2)
    total = 0
    for i in range(len(matrix)):
        others = [j for j in range(len(matrix)) if j != i]
        for line in (matrix[i], matrix[:, i]):
            total = total + (margins[i] + line[others] - own[i]).clamp(min=0).max()
    return total, margins


def test_the_loss_has_hardest_negatives_and_margins_by_similarity(taught):
    method, pairs = taught(*STILL)
    net, batch = method.nets[0].train(), pairs.batch(np.arange(12))
    expected, margins = slow_loss(net, batch)
    assert torch.allclose(method._loss(net.score_batch(batch), 0), expected, atol=1e-5)
    assert not margins.requires_grad


def encoded(net, batch):
    return net.encode_images(batch.regions), net.encode_captions(batch.tokens, batch.lengths)


def precise(method, pairs, kind=torch.float64):
    """A network with its copy ahead, a batch, and the meta loss from the equation."""
    net, ahead = (own[0].to(kind).train() for own in (method.nets, method.aheads))
    batch = pairs.batch(np.array([1, 4, 7, 10, 13, 16]))
    batch = replace(batch, regions=batch.regions.to(kind))
    asked = draw_meta_pairs(pairs, method.meta_rows(pairs), stream(3))
    regions = pairs.image_batch(asked.images).to(kind)
    tokens, lengths = pairs.caption_batch(asked.captions)
    labels = torch.from_numpy(asked.labels).to(kind)

    def meta_loss(own):
        images, captions = own.encode_images(regions), own.encode_captions(tokens, lengths)
        p = own.similarity.score_own(images, captions).sigmoid()
        return -(labels * p.log() + (1 - labels) * (1 - p).log()).mean()

    return net, ahead, batch, meta_loss


@pytest.mark.parametrize("kind", ["sgr", "saf"])
def test_the_gradient_of_the_meta_net_is_that_of_the_meta_loss_a_step_ahead(
    taught, monkeypatch, kind
):
    """Against the definition: the meta net moved a little, the step taken, the loss read."""
    monkeypatch.setattr(mscn, "_SHIFT", 1e-5)
    method, pairs = taught(*STILL, f"model.similarity={kind}")
    net, ahead, batch, meta_loss = precise(method, pairs)
    state, rate = deepcopy(net.state_dict()), 0.5
    _, margins = slow_loss(deepcopy(net), batch)

    def one_step_ahead(name, place, move):
        copy = deepcopy(net)
        copy.similarity.few_active = False
        parameters = dict(copy.named_parameters())
        with torch.no_grad():
            parameters[name].view(-1)[place] += move
        body = [own for own in parameters if not own.startswith(HEAD)]
        loss, _ = slow_loss(copy, batch, margins)
        weights = [parameters[own] for own in body]
        gradients = torch.autograd.grad(loss, weights, materialize_grads=True)
        with torch.no_grad():
            for own, gradient in zip(body, gradients, strict=True):
                parameters[own] -= rate * gradient
        return meta_loss(copy).item()

    encode, loss = partial(encoded, ahead, batch), partial(method._loss, since=0)
    both = net, ahead
    value, gradients = mscn.meta_gradients(both, rate, encode, loss, partial(meta_loss, ahead))
    direct = torch.autograd.grad(meta_loss(ahead), list(ahead.similarity.evaluate.parameters()))
    assert value == pytest.approx(one_step_ahead(f"{HEAD}0.bias", 0, 0.0), abs=1e-9)
    places, far = 0, 0
    for (name, own), gradient, alone in zip(
        net.similarity.evaluate.named_parameters(), gradients, direct, strict=True
    ):
        for place in np.unique(np.linspace(0, own.numel() - 1, 5, dtype=int)):
            ends = [one_step_ahead(f"{HEAD}{name}", place, move) for move in (1e-6, -1e-6)]
            slope, found = (ends[0] - ends[1]) / 2e-6, gradient.view(-1)[place].item()
            assert found == pytest.approx(slope, rel=1e-3, abs=1e-7)
            places += 1
            far += abs(alone.view(-1)[place].item() - found) > 0.05 * abs(found)
    assert far > places / 3, "the step counts, not the meta loss alone"
    assert all(torch.equal(own, state[name]) for name, own in net.state_dict().items())


def parts_of(net):
    state = {name: own.clone() for name, own in net.named_parameters()}
    return [{name: own for name, own in state.items() if name.startswith(HEAD) == head}
            for head in (True, False)]  # fmt: skip


def moved(before, after):
    return any(not torch.equal(own, after[name]) for name, own in before.items())


def test_the_meta_net_moves_in_its_own_step_alone_and_the_network_in_the_other(taught, monkeypatch):
    method, pairs = taught("method.meta_lr=1e-3", "train.weight_decay=0.5")
    own, seen = mscn.Learner.step, []

    def step(learner, loss, at):
        before = parts_of(method.nets[0])
        value = own(learner, loss, at)
        after = parts_of(method.nets[0])
        seen.append([moved(*both) for both in zip(before, after, strict=True)])
        return value

    monkeypatch.setattr(mscn.Learner, "step", step)
    method._learn(pairs, 1, 0)
    assert seen == [[True, False], [False, True]]


def test_pairs_are_divided_by_their_similarity_from_what_is_known_of_the_meta_set(
    taught, scored, spy
):
    method, pairs = taught()
    calls = spy(mscn, "divide_by_known")
    method._epoch = 1
    found = method._divide(pairs, 0)
    own = 1 - scored(method.nets[0], pairs).diagonal()
    assert np.allclose(found.loss, own, atol=1e-5)
    ((_, (losses, known, labels), division),) = calls
    assert np.array_equal(losses, found.loss)
    assert division is found.division
    assert labels.tolist() == [1] * 6 + [0] * 6
    assert np.allclose(known[:6], own[method.meta_rows(pairs)], atol=1e-5)


def test_the_mixture_begins_as_the_betas_of_matches_and_mismatches(spy):
    """Shapes of the same mean and variance, by the equations of the beta distribution."""
    draw = np.random.default_rng(0)
    known = np.append(draw.beta(2, 8, 40), draw.beta(8, 2, 40)).astype(np.float32)
    labels = np.repeat([1.0, 0.0], 40)
    losses = np.append(draw.beta(2, 8, 300), draw.beta(8, 2, 100)).astype(np.float32)
    calls = spy(mscn, "posterior_from")
    division = divide_by_known(losses, known, labels)
    ((_, (values, shapes), _),) = calls
    assert np.allclose(values, losses.clip(1e-3, 1 - 1e-3))
    for label, (a, b) in zip((1, 0), shapes, strict=True):
        own = known[labels == label].astype(np.float64)
        assert a / (a + b) == pytest.approx(own.mean())
        assert a * b / ((a + b) ** 2 * (a + b + 1)) == pytest.approx(own.var())
    truth = np.arange(400) < 300
    assert (division.is_clean == truth).mean() > 0.97


def test_a_peer_without_two_clean_pairs_that_are_not_known_stops(taught):
    method, pairs = taught()
    is_clean = method.statistics[1].division.is_clean
    is_clean[:] = False
    is_clean[method.meta_rows(pairs)] = True
    with pytest.raises(TrainingError, match="0 of 24 pairs are clean"):
        method._learn(pairs, 1, 0)


def test_another_network_than_sgr_and_saf_is_refused():
    with pytest.raises(ConfigError, match=r'similarity is "pooled", expected "sgr" or "saf"'):
        read_settings("mscn", ["model.similarity=pooled"])
