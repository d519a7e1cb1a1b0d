"""CRCL: how a pair's confidence arises, what it does to the loss, and what a schedule begins."""

import math

import numpy as np
import pytest
import torch

from now_builder.errors import ConfigError
from pc2_baseline.methods import crcl
from pc2_baseline.methods.crcl import active_complementary
from pc2_baseline.modules.contrastive import info_nce, matching_probability

SCHEDULES = ["train.warmup_epochs=2", "train.epochs=4", "method.schedules=[1]"]
"""Epochs 0 to 2, of which 0 and 1 leave the confidences; then 3 to 5, of which 3 and 4 do."""


def slow_costs(similarity, confidence, tau, weight):
    """The loss of each pair straight from the equation."""
    costs = []
    for i, y in enumerate(confidence.tolist()):
        cost = 0.0
        for scores in (similarity, similarity.T):
            own = (scores[i] / tau).softmax(0).tolist()
            tangents = [math.tan(p) for p in own]
            others = sum(tangents) - tangents[i]
            cost += -y * math.log(own[i]) + weight * others / sum(tangents) ** (1 - y)
        costs.append(cost)
    return torch.tensor(costs, dtype=similarity.dtype)


@pytest.mark.parametrize("weight", [0.0, 5.0])
def test_the_loss_is_that_of_the_equation_done_slowly(weight):
    similarity = torch.rand(7, 7, dtype=torch.float64)
    confidence = torch.linspace(0, 1, 7, dtype=torch.float64)
    found = active_complementary(similarity, confidence, 0.05, weight)
    assert torch.allclose(found, slow_costs(similarity, confidence, 0.05, weight))


def test_confidences_through_two_schedules_are_those_of_the_rules(on_tiny, steps, spy):
    """Epoch by epoch: what the loss is given, and what is kept of it for the next."""
    calls = spy(crcl, "active_complementary")
    method, pairs = on_tiny("crcl", *SCHEDULES)
    kept = np.ones(24)
    for epoch in range(6):
        calls.clear(), steps.clear()
        method.fit_epoch(pairs, epoch)
        new, lost = np.full(24, np.nan), np.full(24, np.nan)
        for (_, (similarity, confidence, tau, weight), _), (loss, step) in zip(
            calls, steps, strict=True
        ):
            rows = step.pair_index
            matching = matching_probability(similarity.detach(), 0.05).numpy()
            believed = kept[rows]
            if epoch in (2, 5):
                believed = 0.8 * believed + 0.2 * matching
                believed[believed < 0.1] = 0
            assert np.allclose(confidence, believed, atol=1e-6), epoch
            lost[rows] = info_nce(similarity.detach(), 0.05)
            new[rows] = matching if epoch == 1 else believed
            expected = slow_costs(similarity.detach().double(), confidence, 0.05, 5.0).mean()
            assert loss == pytest.approx(float(expected), rel=1e-4)
            assert (tau, weight, confidence.requires_grad) == (0.05, 5.0, False)
        kept = new
        assert np.allclose(method.statistics["loss"], lost, atol=1e-5), epoch
        assert np.allclose(method.statistics["clean_prob"], kept, atol=1e-6), epoch
        assert np.array_equal(method.statistics["is_clean"].numpy(), kept >= 0.1)


def test_each_schedule_draws_the_network_anew_and_keeps_the_confidences(on_tiny, monkeypatch):
    method, pairs = on_tiny("crcl", *SCHEDULES)
    first, drawn, own = method.learner.network_state(), [], method.draw

    def draw(number):
        before = method.learner.network_state()
        own(number)
        drawn.append((epoch, number, before, method.learner.network_state()))
        assert not method.learner.optimiser.state, "the optimiser begins anew too"

    monkeypatch.setattr(method, "draw", draw)
    for epoch in range(6):
        belief = method.statistics["clean_prob"]
        method.fit_epoch(pairs, epoch)
        if epoch in (0, 3, 4):
            assert torch.equal(method.statistics["clean_prob"], belief)
    ((epoch, number, before, after),) = drawn
    assert (epoch, number) == (3, 1)
    name = "images.project.weight"
    assert not torch.equal(before[name], after[name])
    assert not torch.equal(first[name], after[name]), "not the weights of the first schedule"


def test_too_few_epochs_for_the_schedules_are_refused_in_one_line(on_tiny):
    with pytest.raises(ConfigError, match=r"train\.epochs = 19, expected 22 or more"):
        on_tiny("crcl", "train.epochs=19")
