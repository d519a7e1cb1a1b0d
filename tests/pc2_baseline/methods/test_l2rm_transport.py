"""Partial optimal transport: masses, masks, the authors' dummies, and the loss by a plan."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from pc2_baseline.methods.l2rm import CostFunction, partial_plan, rematching, sinkhorn


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


def test_masses_of_rows_and_columns_are_as_asked():
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.1, 0.2, 0.3, 0.4])
    plan = sinkhorn(costs(3, columns=4), p, q, 0.05)
    assert torch.allclose(plan.sum(1), p.double(), atol=1e-6)
    assert torch.allclose(plan.sum(0), q.double(), atol=1e-9)


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


def test_several_problems_at_once_are_as_one_by_one():
    cost = torch.stack([costs(6, seed) for seed in range(3)])
    together = partial_plan(cost, 0.1, 0.05, others(6))
    for own, plan in zip(cost, together, strict=True):
        assert torch.allclose(partial_plan(own, 0.1, 0.05, others(6)), plan, atol=1e-7)


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


def test_rematching_is_the_mean_of_the_library_s_divergences_each_way():
    similarity, plan = costs(5, seed=4), costs(5, seed=5) / 100
    total = 0.0
    for scores, moved in ((similarity, plan), (similarity.T, plan.T)):
        own = (scores / 0.05).log_softmax(1)
        target = (moved / moved.sum(1, keepdim=True)).log()
        for asked, given in ((own, target), (target, own)):
            total += torch.nn.functional.kl_div(
                asked, given, log_target=True, reduction="batchmean"
            )
    assert torch.allclose(rematching(similarity, plan, 0.05).mean(), total / 2)


def test_rematching_is_nothing_where_the_matches_are_the_plan():
    plan = torch.full((4, 4), 1 / 16, dtype=torch.float64)
    assert torch.allclose(
        rematching(torch.zeros(4, 4).double(), plan, 0.05), torch.zeros(4).double()
    )


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
