"""L2RM: clean pairs, what the cost function learns, and how transport rematches noisy pairs."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from now_builder.errors import TrainingError
from pc2_baseline.methods import l2rm
from pc2_baseline.methods.l2rm import CostFunction, partial_plan, rematching, sinkhorn
from pc2_baseline.modules.beta_mixture import divide_by_beta
from pc2_baseline.modules.division import Division
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


def test_the_warm_up_learns_all_pairs_by_the_symmetric_cross_entropy(on_tiny, spy):
    calls = spy(l2rm, *ASKED)
    method, pairs = on_tiny("l2rm", "train.warmup_epochs=1", "train.batch=12")
    method.fit_epoch(pairs, 0)
    assert [(name, tau) for name, (_, tau), _ in calls] == [("symmetric_cross_entropy", 0.05)] * 2


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


def test_up_to_a_share_of_the_clean_pairs_teach_the_cost_function(halved, monkeypatch):
    method, pairs = halved
    counts = []
    monkeypatch.setattr(Learner, "step", lambda self, loss, at: counts.append(len(at.pair_index)))
    monkeypatch.setattr(l2rm, "COST_SHARE", 0.25)
    generator = np.random.default_rng(0)
    for _ in range(30):
        method._learn_cost(pairs, np.arange(12), 1, generator)
    assert set(counts) == {1, 2, 3}


def test_both_learning_rates_drop_together(halved):
    method, pairs = halved
    method.train = method.train.model_copy(update={"lr_drop_epoch": 1})
    rates = []
    for epoch in (1, 2):
        method.fit_epoch(pairs, epoch)
        learners = (method.learner, method.cost_learner)
        rates.append([learner.optimiser.param_groups[0]["lr"] for learner in learners])
    assert np.allclose(rates, [[1e-3, 2e-6], [1e-4, 2e-7]], rtol=1e-6)


@pytest.mark.parametrize("noisy", [0, 1, 22])
def test_it_goes_on_with_hardly_any_noisy_or_clean_pair(halved, spy, noisy):
    method, pairs = halved
    method.statistics["is_clean"] = torch.arange(24) < 24 - noisy
    calls = spy(l2rm, "rematching")
    assert np.isfinite(method.fit_epoch(pairs, 1)["loss"])
    assert bool(calls) == (noisy > 1)


def test_without_a_clean_pair_it_stops_in_one_line(halved):
    method, pairs = halved
    method.statistics["is_clean"] = torch.zeros(24, dtype=torch.bool)
    with pytest.raises(TrainingError, match="0 of 24 pairs are clean"):
        method.fit_epoch(pairs, 1)


@pytest.mark.parametrize("count", [2, 5])
def test_equal_scores_give_a_finite_loss_and_gradient(count):
    similarity = torch.full((count, count), 0.5, requires_grad=True)
    cost = CostFunction(count)(similarity.detach())
    plan = partial_plan(cost, 0.1, 0.07, ~torch.eye(count, dtype=torch.bool))
    value = rematching(similarity, plan, 0.05).mean()
    (gradient,) = torch.autograd.grad(value, similarity)
    assert torch.isfinite(value)
    assert torch.isfinite(gradient).all()
    assert gradient.diagonal().min() > 0, "off the own captions, towards the others"


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


def test_what_a_dummy_costs_where_both_meet_is_the_highest_cost():
    """At a high regularisation it shows: two dummies that meet for nothing take mass together."""
    cost = costs(5, seed=2)
    moved = float(partial_plan(cost, 0.1, 0.5).sum())
    expected = float(slow_plan(cost.numpy(), 0.1, 0.5, np.ones((5, 5), dtype=bool)).sum())
    assert moved == pytest.approx(expected, abs=1e-5)
    assert moved > 0.11


@pytest.mark.parametrize("mass", [0.05, 0.1, 0.5, 0.9])
def test_the_share_that_is_moved_is_rho_and_no_pair_gives_more_than_it_has(mass):
    plan = partial_plan(costs(12, columns=9), mass, 0.01)
    assert float(plan.sum()) == pytest.approx(mass, abs=1e-5)
    assert float(plan.sum(1).max()) <= 1 / 12 + 1e-6
    assert float(plan.sum(0).max()) <= 1 / 9 + 1e-6


def test_a_masked_diagonal_holds_nothing_even_where_it_is_cheapest():
    cost = 1 - torch.eye(8, dtype=torch.float64)
    assert float(partial_plan(cost, 0.1, 0.05).diagonal().sum()) > 0.09
    masked = partial_plan(cost, 0.1, 0.05, others(8))
    assert not masked.diagonal().any()
    assert float(masked.sum()) == pytest.approx(0.1, abs=1e-5)


def test_it_moves_what_is_cheapest():
    """With little regularisation the plan costs what a linear program finds."""
    cost = costs(6, seed=3).numpy()
    sums = np.zeros((13, 36))
    for i in range(6):
        sums[i, 6 * i : 6 * i + 6] = 1
        sums[6 + i, i::6] = 1
    sums[12] = 1
    best = linprog(
        cost.ravel(), A_ub=sums[:12], b_ub=np.full(12, 1 / 6), A_eq=sums[12:], b_eq=[0.4]
    ).fun
    plan = partial_plan(torch.from_numpy(cost), 0.4, 0.002).numpy()
    assert (plan * cost).sum() == pytest.approx(best, rel=0.01)


def test_a_plan_by_hand():
    """Two images, two captions, alike: half of the mass is a quarter of a half in each cell."""
    plan = partial_plan(torch.full((2, 2), 0.3, dtype=torch.float64), 0.5, 0.01)
    assert torch.allclose(plan, torch.full((2, 2), 0.125, dtype=torch.float64), atol=1e-6)


@pytest.mark.parametrize("count", [2, 3, 128])
@pytest.mark.parametrize("value", [0.0, 1e-10, 1.0, 1e4])
def test_equal_costs_of_any_size_give_a_finite_even_plan(count, value):
    plan = partial_plan(torch.full((count, count), value), 0.1, 0.07, others(count))
    assert torch.isfinite(plan).all()
    cells = plan[others(count)]
    assert torch.allclose(cells, cells.mean().expand_as(cells), rtol=1e-4)


def test_problems_that_have_no_plan_say_why():
    half = torch.full((2,), 0.5)
    with pytest.raises(ValueError, match="masses of rows 1, of columns 2: not the same"):
        sinkhorn(costs(2), half, 2 * half, 0.1)
    with pytest.raises(ValueError, match="no allowed cell"):
        sinkhorn(costs(2), half, half, 0.1, torch.tensor([[True, True], [False, False]]))


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


def test_rematching_is_finite_at_the_extremes_and_its_gradient_right():
    for plan in (torch.zeros(4, 4), torch.eye(4) / 4):
        similarity = (torch.eye(4).roll(1, 0) * 1e3).requires_grad_()
        value = rematching(similarity, plan, 0.05).mean()
        (gradient,) = torch.autograd.grad(value, similarity)
        assert torch.isfinite(value)
        assert torch.isfinite(gradient).all()
    similarity = costs(4).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: rematching(s, costs(4, seed=1), 0.3), similarity)


def test_a_cost_begins_as_one_minus_the_similarity_for_batches_of_any_size():
    cost = CostFunction(6)
    for images, captions in ((6, 6), (2, 4)):
        similarity = torch.rand(images, captions)
        assert torch.allclose(cost(similarity), 1 - similarity)
    assert not cost(torch.full((2, 2), 1.5)).any(), "no cost is below zero"


def test_a_cost_is_made_of_all_similarities_of_its_image():
    cost = CostFunction(3)
    with torch.no_grad():
        cost.weight[0, 2] = 0.5
    similarity = torch.tensor([[0.1, 0.2, 0.4], [0.3, 0.3, 0.2]])
    assert torch.allclose(cost(similarity)[:, 0], torch.tensor([0.9 + 0.2, 0.7 + 0.1]))
