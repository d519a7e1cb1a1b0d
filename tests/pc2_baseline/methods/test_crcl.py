"""CRCL: how a pair's confidence arises, what it does to the loss, and what a schedule begins."""

import math

import numpy as np
import pytest
import torch

from now_builder.errors import ConfigError
from pc2_baseline.methods import crcl
from pc2_baseline.methods.crcl import active_complementary, refined
from pc2_baseline.modules.contrastive import matching_probability

SCHEDULES = ["train.warmup_epochs=2", "train.epochs=4", "method.schedules=[1]"]
"""Epochs 0 to 2, of which 0 and 1 leave the confidences; then 3 to 5, of which 3 and 4 do."""

SIMILARITY = torch.tensor([[0.0, math.log(3)], [0.0, 0.0]], dtype=torch.float64)
"""Rows: probabilities 1/4, 3/4 and 1/2, 1/2; columns: 1/2, 1/2 and 3/4, 1/4."""


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


def test_the_loss_by_hand():
    """Pair 0: of its image 1/4 and 3/4, of its caption 1/2 and 1/2; confidence 0.3, weight 5."""
    tan = math.tan
    active = 0.3 * (math.log(4) + math.log(2))
    image = tan(0.75) / (tan(0.25) + tan(0.75)) ** 0.7
    caption = tan(0.5) / (2 * tan(0.5)) ** 0.7
    found = active_complementary(SIMILARITY, torch.tensor([0.3, 1.0]).double(), 1.0, 5.0)
    assert float(found[0]) == pytest.approx(active + 5 * (image + caption), abs=1e-7)


@pytest.mark.parametrize("weight", [0.0, 5.0])
def test_the_loss_is_that_of_the_equation_done_slowly(weight):
    similarity = torch.rand(7, 7, dtype=torch.float64)
    confidence = torch.linspace(0, 1, 7, dtype=torch.float64)
    found = active_complementary(similarity, confidence, 0.05, weight)
    assert torch.allclose(found, slow_costs(similarity, confidence, 0.05, weight))


def test_a_pair_of_no_confidence_is_not_drawn_together_and_costs_at_most_the_weight_both_ways():
    similarity = 1e3 * torch.eye(6).roll(1, 0)
    costs = active_complementary(similarity, torch.zeros(6), 0.05, 5.0)
    assert torch.allclose(costs, torch.full((6,), 10.0))
    assert float(active_complementary(similarity, torch.ones(6), 0.05, 5.0).min()) > 1e4


def test_the_loss_has_the_right_gradient_and_is_finite_at_the_extremes():
    similarity = torch.rand(4, 4, dtype=torch.float64, requires_grad=True)
    confidence = torch.tensor([0.0, 0.2, 0.9, 1.0]).double()
    assert torch.autograd.gradcheck(
        lambda s: active_complementary(s, confidence, 0.3, 5.0), similarity
    )
    for scores in (torch.zeros(2, 2), torch.zeros(9, 9), torch.randn(9, 9) * 1e3):
        for belief in (0.0, 1.0):
            asked = scores.clone().requires_grad_()
            value = active_complementary(asked, torch.full((len(asked),), belief), 0.05, 5.0).sum()
            (gradient,) = torch.autograd.grad(value, asked)
            assert torch.isfinite(value)
            assert torch.isfinite(gradient).all()


def test_confidences_keep_eight_tenths_take_two_and_are_cut_below_a_tenth():
    old, matching = torch.tensor([1.0, 0.5, 0.1, 0.1]), torch.tensor([0.5, 1.0, 0.1, 0.09])
    found = refined(old, matching, 0.8, 0.1 - 1e-6)
    assert torch.allclose(found, torch.tensor([0.9, 0.6, 0.1, 0.0]))
    assert refined(torch.zeros(1), torch.ones(1), 0.8, 0.1) == pytest.approx(0.2)


def test_confidences_through_two_schedules_are_those_of_the_rules(on_tiny, steps, spy):
    """Epoch by epoch: what the loss is given, and what is kept of it for the next."""
    calls = spy(crcl, "active_complementary")
    method, pairs = on_tiny("crcl", *SCHEDULES)
    kept = np.ones(24)
    for epoch in range(6):
        calls.clear(), steps.clear()
        method.fit_epoch(pairs, epoch)
        new = np.full(24, np.nan)
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
            new[rows] = matching if epoch == 1 else believed
            expected = slow_costs(similarity.detach().double(), confidence, 0.05, 5.0).mean()
            assert loss == pytest.approx(float(expected), rel=1e-4)
            assert (tau, weight, confidence.requires_grad) == (0.05, 5.0, False)
        kept = new
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
