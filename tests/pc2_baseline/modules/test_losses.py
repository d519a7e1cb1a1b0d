"""Losses by hand, by the obvious loop, and at their known starting values."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pc2_baseline.methods.pc2.released import own_entropy
from pc2_baseline.modules.losses import (
    pseudo_class_loss,
    relatively_likeliest,
    soft_margin,
    triplet_costs,
    triplet_hardest,
    triplet_mean,
)


def test_soft_margin_by_hand():
    """m(.5) = .2 (√10 − 1)/9 = .0481; m(.8) = .2 (10^.8 − 1)/9 = .1180."""
    found = soft_margin(torch.tensor([0.0, 0.5, 0.8, 1.0]), 0.2)
    assert torch.allclose(found, torch.tensor([0.0, 0.0481, 0.1180, 0.2]), atol=1e-4)


def loop_hardest(similarity, margins, negatives):
    """Each query with its own margin, one negative at a time."""
    costs = []
    for i in range(len(similarity)):
        others = [j for j in range(len(similarity)) if negatives[i][j]]
        own = similarity[i][i]
        i2t = max([0.0, *(float(margins[i] + similarity[i][j] - own) for j in others)])
        others = [j for j in range(len(similarity)) if negatives[j][i]]
        t2i = max([0.0, *(float(margins[i] + similarity[j][i] - own) for j in others)])
        costs.append(i2t + t2i)
    return torch.tensor(costs)


@settings(max_examples=30)
@given(size=st.integers(1, 6), seed=st.integers(0, 10_000))
def test_hardest_negatives_take_the_margin_of_the_query_both_ways(size, seed):
    generator = torch.Generator().manual_seed(seed)
    similarity = torch.rand(size, size, generator=generator)
    margins = torch.rand(size, generator=generator)
    negatives = torch.rand(size, size, generator=generator) > 0.3
    negatives = negatives & negatives.T & ~torch.eye(size, dtype=torch.bool)
    found = triplet_hardest(similarity, margins, negatives)
    assert torch.allclose(found, loop_hardest(similarity, margins, negatives), atol=1e-6)


@pytest.mark.parametrize(
    ("axis", "i2t", "t2i"), [("query", 0.1, 0.3), ("image", 0.1, 0.1), ("caption", 0.3, 0.3)]
)
def test_the_margin_of_a_cell_is_that_of_the_query_the_image_or_the_caption(axis, i2t, t2i):
    """Cell of image 0 and caption 1, both pairs scored alike: the cost is the margin itself."""
    similarity, margins = torch.full((2, 2), 0.5), torch.tensor([0.1, 0.3])
    costs = triplet_costs(similarity, margins, axis=axis)
    assert [found[0, 1].item() for found in costs] == pytest.approx([i2t, t2i])
    assert [found.diagonal().sum().item() for found in costs] == [0, 0]
    pairs = {"query": [0.2, 0.6], "image": [0.4, 0.4], "caption": [0.4, 0.4]}[axis]
    for loss, share in ((triplet_hardest, 1.0), (triplet_mean, 0.5)):
        found = loss(similarity, margins, axis=axis) / share
        assert found.tolist() == pytest.approx(pairs)


def test_the_own_entropy_is_averaged_over_predictions():
    """One even prediction over four classes (log 4), one sure (0): their mean, not its entropy."""
    logits = torch.tensor([[0.0, 0, 0, 0], [60.0, 0, 0, 0]])
    assert own_entropy(logits).item() == pytest.approx(math.log(4) / 2)


def test_only_the_image_learns_from_the_captions_class():
    image = torch.randn(4, 5, requires_grad=True)
    caption = torch.randn(4, 5, requires_grad=True)
    pseudo_class_loss(image, caption.argmax(1)).backward()
    assert caption.grad is None
    assert image.grad.abs().sum() > 0


def test_a_class_that_all_favour_tells_nothing_of_any():
    """All like class 0 best; the second likes class 1 more than the others do."""
    logits = torch.tensor([[3.0, 0.0, 0.0], [3.0, 0.5, 0.0], [3.0, 0.0, 0.2]])
    assert relatively_likeliest(logits).tolist() == [0, 1, 2]
    dead = torch.tensor([[0.0, 1.0, -110.0], [1.0, 0.0, -110.0]])  # e^-110 is 0 in float32
    assert relatively_likeliest(dead).tolist() == [1, 0]
