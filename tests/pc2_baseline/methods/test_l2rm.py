"""L2RM: clean pairs, what the cost function learns, and how transport rematches noisy pairs."""

import math

import numpy as np
import pytest
import torch

from pc2_baseline.methods import l2rm
from pc2_baseline.methods.l2rm import CostFunction, partial_plan, rematching
from pc2_baseline.modules.division import Division, divide_by_beta
from pc2_baseline.modules.learner import Learner

CLEAN_PROB = np.linspace(0.95, 0.05, 24)
HALVES = Division(CLEAN_PROB, CLEAN_PROB > 0.5)
"""Of so few pairs: the first half is clean."""
ASKED = ("symmetric_cross_entropy", "triplet_hardest", "partial_plan", "rematching")


@pytest.fixture
def halved(on_tiny, monkeypatch):
    """L2RM in batches of twelve after its warm-up; the mixture calls the first half clean."""
    monkeypatch.setattr(l2rm, "divide_by_beta", lambda _: HALVES)
    method, pairs = on_tiny("l2rm", "train.warmup_epochs=1", "train.batch=12")
    method.fit_epoch(pairs, 0)
    return method, pairs


def test_the_pairs_are_divided_by_the_beta_mixture_of_mean_negative_losses(
    warm, scored, mean_losses
):
    method, pairs = warm("l2rm", "method.division_batch=24")
    kept = method.statistics
    assert torch.allclose(kept["loss"], mean_losses(scored(method.net, pairs)), atol=1e-5)
    expected = divide_by_beta(kept["loss"].numpy())
    assert np.array_equal(kept["clean_prob"].numpy(), expected.clean_prob)
    assert np.array_equal(kept["is_clean"].numpy(), expected.is_clean)
    assert method.epoch_outputs()["divisions"] is kept


def test_clean_pairs_are_learned_by_triplets_and_noisy_ones_by_the_plan_in_one_step(
    halved, spy, monkeypatch
):
    """The plan is of the costs, which the cost function makes of the noisy similarities."""
    method, pairs = halved
    method.cost_learner.lr = 0.0
    with torch.no_grad():
        method.cost.weight += 0.3 * torch.randn(12, 12)
    scores, calls, taken = spy(method.net, "score_batch"), spy(l2rm, *ASKED), spy(Learner, "step")
    method.fit_epoch(pairs, 1)
    (clean, clean_scores), (noisy, noisy_scores) = (
        (batch.pair_index, found) for _, (batch,), found in scores[:2]
    )
    assert sorted(clean) == HALVES.clean.tolist()
    assert sorted(noisy) == HALVES.noisy.tolist()
    by_name = {name: (args, found) for name, args, found in calls}
    assert by_name.keys() == {*ASKED[1:]}
    (given, margins), triplets = by_name["triplet_hardest"]
    assert given is clean_scores
    assert torch.allclose(margins, torch.full((12,), 0.2))
    (cost, mass, regularisation, allowed), plan = by_name["partial_plan"]
    assert (mass, regularisation) == (0.1, 0.07)
    assert torch.equal(allowed, ~torch.eye(12, dtype=torch.bool))
    assert not plan.diagonal().any()
    assert float(plan.sum()) == pytest.approx(0.1, abs=1e-3)
    assert not plan.requires_grad
    weight, bias = method.cost.weight.detach(), method.cost.bias.detach()
    expected = (noisy_scores.detach() @ weight.T + bias).clamp(min=0)
    assert torch.allclose(cost, expected, atol=1e-5)
    (given, used, tau), gaps = by_name["rematching"]
    assert (given is noisy_scores, used is plan, tau) == (True, True, 0.05)
    (_, (first, *_), _), (_, (second, loss, step), _) = taken
    assert (first, second) == (method.cost_learner, method.learner)
    assert loss.item() == pytest.approx(float((triplets.sum() + gaps.mean()).detach()), rel=1e-5)
    assert sorted(step.pair_index) == list(range(24))


def test_on_cc152k_an_image_may_be_rematched_with_its_own_caption(halved, spy):
    method, pairs = halved
    method.method = method.method.model_copy(update={"mask_diagonal": False})
    calls = spy(l2rm, "partial_plan")
    method.fit_epoch(pairs, 1)
    ((_, (*_, allowed), plan),) = calls
    assert allowed is None
    assert plan.diagonal().all()


def test_a_step_of_the_cost_function_and_one_of_the_network_leave_each_other_as_they_are(halved):
    method, pairs = halved
    before = {name: value.clone() for name, value in method.net.state_dict().items()}
    cost = method.cost.weight.detach().clone()
    method.net.train()
    method._learn_cost(pairs, np.arange(12), 1, np.random.default_rng(0))
    after = method.net.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before), "running means too"
    assert not torch.equal(cost, method.cost.weight)
    assert method.net.training
    for parameter in method.cost.parameters():
        parameter.grad = None
    method._noisy_loss(pairs, np.arange(12, 24)).backward()
    assert all(parameter.grad is None for parameter in method.cost.parameters())
    assert any(parameter.grad is not None for parameter in method.net.parameters())


def test_the_cost_function_lowers_the_costs_of_clean_pairs_as_among_noisy_images(
    halved, monkeypatch, steps
):
    """The authors' way, slowly: clean images in random places among noisy ones, in float64."""
    method, pairs = halved
    monkeypatch.setattr(l2rm, "COST_SHARE", 0.5)
    clean = np.arange(3, 12)
    steps.clear()
    method._learn_cost(pairs, clean, 1, np.random.default_rng(5))
    ((loss, step),) = steps
    chosen = step.pair_index
    assert 1 <= len(chosen) <= 4
    assert set(chosen) <= set(clean)
    places = np.random.default_rng(1).permutation(12)[: len(chosen)]
    images = np.arange(12, 24)
    images[places] = chosen
    with torch.no_grad():
        similarity = method.net.eval().score(
            method.net.encode_images(pairs.image_batch(pairs.image_of[images])),
            method.net.encode_captions(*pairs.caption_batch(clean)),
        )
    slow = CostFunction(12)
    costs = slow(similarity)
    total = sum(
        costs[place, np.flatnonzero(clean == row)[0]]
        for place, row in zip(places, chosen, strict=True)
    )
    assert loss == pytest.approx(float(total.detach()), rel=1e-5)
    total.backward()
    found = dict(method.cost.named_parameters())
    for name, parameter in slow.named_parameters():
        assert torch.allclose(found[name].grad, parameter.grad, atol=1e-6)


def costs(count: int, seed: int = 0, columns: int | None = None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, columns or count, generator=generator, dtype=torch.float64)


def slow_plan(cost, mass, regularisation, allowed):
    """The authors' problem as they put it, with plain loops and their dummies' costs."""
    rows, columns = cost.shape
    dummy = 100 * cost.max()
    padded = np.full((rows + 1, columns + 1), dummy)
    padded[:rows, :columns] = cost
    padded[rows, columns] = 2 * dummy + cost.max()
    p = [1 / rows] * rows + [1 - mass]
    q = [1 / columns] * columns + [1 - mass]
    u, v = np.zeros(rows + 1), np.zeros(columns + 1)
    inner = np.zeros((rows + 1, columns + 1), dtype=bool)
    inner[:rows, :columns] = ~allowed

    def exponents(i=None, j=None):
        cells = (-padded + u[:, None] + v[None]) / regularisation
        cells[inner] = -np.inf
        return cells[i] if i is not None else cells[:, j]

    def soft_maximum(values):
        top = values.max()
        return top + np.log(np.exp(values - top).sum())

    for _ in range(300):
        for i in range(rows + 1):
            u[i] += regularisation * (math.log(p[i]) - soft_maximum(exponents(i=i)))
        for j in range(columns + 1):
            v[j] += regularisation * (math.log(q[j]) - soft_maximum(exponents(j=j)))
    plan = np.array([np.exp(exponents(i=i)) for i in range(rows)])
    return plan[:, :columns]


def others(count: int) -> torch.Tensor:
    return ~torch.eye(count, dtype=torch.bool)


@pytest.mark.parametrize("mass", [0.1, 0.6])
@pytest.mark.parametrize("regularisation", [0.02, 0.2])
def test_a_plan_is_that_of_the_authors_dummies_done_slowly(mass, regularisation):
    cost, allowed = costs(5, seed=1), others(5)
    found = partial_plan(cost, mass, regularisation, allowed)
    expected = slow_plan(cost.numpy(), mass, regularisation, allowed.numpy())
    assert np.allclose(found.numpy(), expected, atol=1e-6)


SIMILARITY = torch.tensor([[0.0, math.log(3)], [0.0, 0.0]], dtype=torch.float64)
"""Rows: probabilities 1/4, 3/4 and 1/2, 1/2; columns: 1/2, 1/2 and 3/4, 1/4."""


def test_rematching_by_hand_is_both_divergences_of_both_directions():
    plan = torch.tensor([[0.1, 0.1], [0.3, 0.1]], dtype=torch.float64)

    def both(target, own):
        return sum((t - p) * math.log(t / p) for t, p in zip(target, own, strict=True))

    image = [both((0.5, 0.5), (0.25, 0.75)), both((0.75, 0.25), (0.5, 0.5))]
    caption = [both((0.25, 0.75), (0.5, 0.5)), both((0.5, 0.5), (0.75, 0.25))]
    expected = (torch.tensor(image) + torch.tensor(caption)) / 2
    assert torch.allclose(rematching(SIMILARITY, plan, 1.0), expected.double())
