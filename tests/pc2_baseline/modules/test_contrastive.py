"""Softmax losses: values worked by hand, and what each does to a mismatched pair."""

import math

import torch

from pc2_baseline.modules.contrastive import (
    generalised_cross_entropy,
    info_nce,
    soft_info_nce,
    symmetric_cross_entropy,
)

SIMILARITY = torch.tensor([[0.0, math.log(3)], [0.0, 0.0]], dtype=torch.float64)
"""Rows: probabilities 1/4, 3/4 and 1/2, 1/2; columns: 1/2, 1/2 and 3/4, 1/4."""


def test_soft_targets_weigh_the_log_probabilities_of_their_own_direction():
    """Pair 0: its row says half itself, half the other; its column a quarter. Pair 1: nothing."""
    by_image = torch.tensor([[0.5, 0.5], [0.0, 0.0]]).double()
    by_caption = torch.tensor([[0.25, 0.0], [0.75, 0.0]]).double()
    found = soft_info_nce(SIMILARITY, 1.0, by_image, by_caption)
    first = (0.5 * math.log(4) + 0.5 * math.log(4 / 3) + math.log(2)) / 2
    assert torch.allclose(found, torch.tensor([first, 0.0]).double())


def test_generalised_cross_entropy_is_between_info_nce_and_the_absolute_error():
    near = generalised_cross_entropy(SIMILARITY, 1.0, 1e-6)
    assert torch.allclose(near, info_nce(SIMILARITY, 1.0), atol=1e-5)
    one = generalised_cross_entropy(SIMILARITY, 1.0, 1.0)
    assert torch.allclose(one, torch.tensor([1 - 0.375, 1 - 0.375]).double())


def test_symmetric_cross_entropy_has_the_gradient_of_its_slow_form():
    similarity = torch.randn(5, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: symmetric_cross_entropy(s, 0.3), similarity)
    target = (torch.eye(5) + 1e-7).double().log()
    slow = 0.0
    for scores in (similarity, similarity.T):
        own = (scores / 0.3).softmax(1)
        slow = slow - own.diagonal().log().mean() - (own * target).sum(1).mean()
    assert torch.allclose(symmetric_cross_entropy(similarity, 0.3).mean(), slow / 2, atol=1e-5)
