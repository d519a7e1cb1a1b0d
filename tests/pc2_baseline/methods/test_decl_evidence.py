"""Evidence and its losses agree with slow references and with values worked by hand."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats

from pc2_baseline.methods.decl import (
    dirichlet_loss,
    evidence,
    evidential_loss,
    match_probabilities,
    uniform_divergence,
)


def slow_loss(row, target, weight):
    alpha = [value + 1 for value in row]
    total, loss = sum(alpha), 0.0
    for a, y in zip(alpha, target, strict=True):
        mean = a / total
        loss += (y - mean) ** 2 + mean * (1 - mean) / (total + 1)
    kept = [value * (1 - y) + 1 for value, y in zip(row, target, strict=True)]
    whole = sum(kept)
    divergence = math.lgamma(whole) - math.lgamma(len(kept))
    for a in kept:
        divergence += (a - 1) * (special.digamma(a) - special.digamma(whole)) - math.lgamma(a)
    return loss + weight * divergence


def test_evidence_by_hand():
    """Of r = 0 it is 1; of r without end exp(1 / tau)."""
    found = evidence(torch.tensor([[0.0, 1e3], [-1e3, math.atanh(0.5)]]), 0.1)
    expected = [1.0, math.e**10, math.e**-10, math.e**5]
    assert found.flatten().tolist() == pytest.approx(expected, rel=1e-4)


def test_the_loss_of_no_evidence_by_hand():
    """K = 2, alpha = (1, 1): squares 2 / 4, variances 2 / 12, no divergence."""
    target = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    found = dirichlet_loss(torch.zeros(2, 2), target, 0.1)
    assert found.tolist() == pytest.approx([0.5 + 1 / 6, 0.5 + 1 / 6], abs=1e-6)


def test_the_divergence_is_the_integral_that_it_stands_for():
    """For two classes a beta distribution against the uniform one."""
    found = uniform_divergence(torch.tensor([[3.0, 1.5], [1.0, 1.0]], dtype=torch.float64))
    density = stats.beta(3, 1.5)
    value, _ = integrate.quad(lambda x: density.pdf(x) * density.logpdf(x), 1e-9, 1 - 1e-9)
    assert found.tolist() == pytest.approx([value, 0.0], abs=1e-6)


@pytest.mark.parametrize("weight", [0.0, 0.1, 2.0])
def test_the_loss_agrees_with_the_slow_version_in_both_directions(weight):
    torch.manual_seed(1)
    found = evidence(torch.randn(6, 6, dtype=torch.float64), 0.5)
    clean = torch.tensor([True, False, True, True, False, True])
    rows = found.tolist()
    expected = []
    for i in range(6):
        target = [float(i == j and bool(clean[i])) for j in range(6)]
        column = [row[i] for row in rows]
        expected.append(slow_loss(rows[i], target, weight) + slow_loss(column, target, weight))
    assert np.allclose(evidential_loss(found, clean, weight), expected)


def test_match_probabilities_by_hand():
    """(1 + 1, 2 + 4) and (4 + 2, 3 + 3)."""
    found = match_probabilities(torch.tensor([[1.0, 2.0], [4.0, 3.0]]))
    assert found.tolist() == [[0.25, 0.75], [0.5, 0.5]]


def test_gradients_are_those_of_the_loss():
    torch.manual_seed(2)
    logits = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    clean = torch.tensor([True, False, True, False])
    assert torch.autograd.gradcheck(
        lambda values: evidential_loss(evidence(values, 0.4), clean, 0.1), logits
    )


@pytest.mark.parametrize("value", [-100.0, 0.0, 100.0])
@pytest.mark.parametrize("clean", [False, True])
def test_loss_and_gradient_are_finite_where_all_scores_are_equal(value, clean):
    logits = torch.full((2, 2), value, requires_grad=True)
    loss = evidential_loss(evidence(logits, 0.1), torch.full((2,), clean), 0.1).sum()
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(logits.grad).all()
