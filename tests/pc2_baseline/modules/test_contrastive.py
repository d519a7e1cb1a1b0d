"""Softmax losses: values worked by hand, and what each does to a mismatched pair."""

import math

import pytest
import torch

from pc2_baseline.modules.contrastive import (
    complementary,
    generalised_cross_entropy,
    info_nce,
    log_matches,
    matching_probability,
    soft_info_nce,
    symmetric_cross_entropy,
)

SIMILARITY = torch.tensor([[0.0, math.log(3)], [0.0, 0.0]], dtype=torch.float64)
"""Rows: probabilities 1/4, 3/4 and 1/2, 1/2; columns: 1/2, 1/2 and 3/4, 1/4."""


def test_probabilities_by_hand():
    by_image, by_caption = (logs.exp() for logs in log_matches(SIMILARITY, 1.0))
    assert torch.allclose(by_image, torch.tensor([[0.25, 0.75], [0.5, 0.5]]).double())
    assert torch.allclose(by_caption, torch.tensor([[0.5, 0.75], [0.5, 0.25]]).double())
    mean = torch.tensor([(0.25 + 0.5) / 2, (0.5 + 0.25) / 2]).double()
    assert torch.allclose(matching_probability(SIMILARITY, 1.0), mean)


def test_info_nce_by_hand():
    expected = torch.tensor([math.log(4) + math.log(2), math.log(2) + math.log(4)]).double() / 2
    assert torch.allclose(info_nce(SIMILARITY, 1.0), expected)


def test_soft_targets_weigh_the_log_probabilities_of_their_own_direction():
    """Pair 0: its row says half itself, half the other; its column a quarter. Pair 1: nothing."""
    by_image = torch.tensor([[0.5, 0.5], [0.0, 0.0]]).double()
    by_caption = torch.tensor([[0.25, 0.0], [0.75, 0.0]]).double()
    found = soft_info_nce(SIMILARITY, 1.0, by_image, by_caption)
    first = (0.5 * math.log(4) + 0.5 * math.log(4 / 3) + math.log(2)) / 2
    assert torch.allclose(found, torch.tensor([first, 0.0]).double())


def test_soft_info_nce_with_certain_targets_is_info_nce():
    similarity, own = torch.randn(6, 6), torch.eye(6)
    soft = soft_info_nce(similarity, 0.3, own, own)
    assert torch.allclose(soft, info_nce(similarity, 0.3), atol=1e-6)


def test_complementary_by_hand():
    """Pair 0: the other caption has 3/4 of its image, the other image 1/2 of its caption."""
    expected = -torch.tensor([
        math.log(1 - 0.75) + math.log(1 - 0.5), math.log(1 - 0.5) + math.log(1 - 0.75)
    ]).double() / 2  # fmt: skip
    assert torch.allclose(complementary(SIMILARITY, 1.0), expected)


def test_complementary_pushes_down_a_wrong_match_that_is_sure():
    """Image 0 and caption 1 look like a pair beyond what a float32 near 1 can tell."""
    scores = [[0.05, 0.95, 0.05], [0.05, 0.95, 0.05], [0.05, 0.05, 0.5]]
    found = []
    for kind in (torch.float32, torch.float64):
        similarity = torch.tensor(scores, dtype=kind, requires_grad=True)
        losses = complementary(similarity, 0.05)
        losses[0].backward()
        found.append((losses.detach().double(), similarity.grad.double()))
    assert torch.allclose(found[0][0], found[1][0], rtol=1e-4)
    assert torch.allclose(found[0][1], found[1][1], atol=1e-4)
    exact = (torch.tensor(scores).double() / 0.05).softmax(1)
    assert float(found[1][1][0, 1]) > 9
    assert float(found[1][0][2]) == pytest.approx(  # no P of pair 2 is near 1
        -float((1 - exact[2, :2]).log().sum() + (1 - (torch.tensor(scores).double() / 0.05)
        .softmax(0)[:2, 2]).log().sum()) / 2, rel=1e-6,
    )  # fmt: skip


def test_generalised_cross_entropy_is_between_info_nce_and_the_absolute_error():
    near = generalised_cross_entropy(SIMILARITY, 1.0, 1e-6)
    assert torch.allclose(near, info_nce(SIMILARITY, 1.0), atol=1e-5)
    one = generalised_cross_entropy(SIMILARITY, 1.0, 1.0)
    assert torch.allclose(one, torch.tensor([1 - 0.375, 1 - 0.375]).double())
    with pytest.raises(ValueError, match="power is 0"):
        generalised_cross_entropy(SIMILARITY, 1.0, 0.0)


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
@pytest.mark.parametrize("count", [1, 2, 9])
def test_values_and_gradients_are_finite_at_the_extremes(scale, count):
    similarity = (scale * torch.randn(count, count)).requires_grad_()
    for losses in (
        info_nce(similarity, 0.05),
        complementary(similarity, 0.05),
        generalised_cross_entropy(similarity, 0.05, 0.7),
    ):
        assert losses.shape == (count,)
        assert torch.isfinite(losses).all()
        (gradient,) = torch.autograd.grad(losses.sum(), similarity, retain_graph=True)
        assert torch.isfinite(gradient).all()


def test_a_mismatched_pair_costs_less_by_the_robust_losses():
    """A pair whose caption fits another image: InfoNCE grows with how sure that is, they do not."""
    costs = []
    for strength in (5.0, 50.0):
        similarity = torch.eye(8) * strength
        similarity[0, 0], similarity[0, 1] = 0.0, strength
        costs.append([
            float(losses[0])
            for losses in (
                info_nce(similarity, 1.0), generalised_cross_entropy(similarity, 1.0, 0.7)
            )
        ])  # fmt: skip
    assert costs[1][0] > 4 * costs[0][0]
    assert costs[1][1] < 1.5 * costs[0][1]


def test_symmetric_cross_entropy_by_hand():
    """InfoNCE, and what is not on the pair times -log 1e-7 = 16.1: here 1/4 and 1/2 are on it."""
    found = symmetric_cross_entropy(SIMILARITY, 1.0)
    expected = (math.log(4) + math.log(2)) / 2 + 16.118 * (1 - 0.375)
    assert torch.allclose(found, torch.full((2,), expected).double(), atol=1e-3)


def test_symmetric_cross_entropy_of_sure_and_of_equal_scores():
    assert torch.allclose(symmetric_cross_entropy(100 * torch.eye(9), 0.05), torch.zeros(9))
    uniform = symmetric_cross_entropy(torch.zeros(9, 9), 0.05)
    assert torch.allclose(uniform, torch.full((9,), math.log(9) + 8 / 9 * 16.118), atol=1e-3)


def test_symmetric_cross_entropy_has_the_gradient_of_its_slow_form():
    similarity = torch.randn(5, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: symmetric_cross_entropy(s, 0.3), similarity)
    target = (torch.eye(5) + 1e-7).double().log()
    slow = 0.0
    for scores in (similarity, similarity.T):
        own = (scores / 0.3).softmax(1)
        slow = slow - own.diagonal().log().mean() - (own * target).sum(1).mean()
    assert torch.allclose(symmetric_cross_entropy(similarity, 0.3).mean(), slow / 2, atol=1e-5)
