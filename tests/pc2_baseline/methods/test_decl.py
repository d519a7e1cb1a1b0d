"""DECL: evidence of clean and noisy pairs, the hinge of the clean ones, and how it hardens."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats

from pc2_baseline.methods import decl
from pc2_baseline.methods.decl import (
    dirichlet_loss,
    evidence,
    evidential_loss,
    match_probabilities,
    uniform_divergence,
)


def test_the_number_of_negatives_falls_with_each_step_of_the_training(on_tiny):
    """At the paper's settings: 127, 103 at the 1,000th step, 5 from step 4,881 on."""
    method, _ = on_tiny("decl", "train.batch=128")
    found = [method.negatives(step) for step in (1, 1000, 4880, 4881, 99999)]
    assert found == [127, 103, 6, 5, 5]


def test_steps_are_counted_from_the_first_of_the_warm_up(on_tiny, spy):
    method, pairs = on_tiny("decl", "train.warmup_epochs=1", "method.hardening=1")
    calls = spy(decl, "triplet_top")
    for epoch in range(2):
        method.fit_epoch(pairs, epoch)
    assert [negatives for _, (*_, negatives), _ in calls] == [7, 6, 5, 5, 5, 5]


@pytest.mark.parametrize(("hardening", "warned"), [(1.5, True), (1, False), (0, False)])
def test_a_hardening_that_is_over_within_an_epoch_is_told(on_tiny, caplog, hardening, warned):
    """Three steps of eight pairs: from eight negatives to five at one a step."""
    method, pairs = on_tiny("decl", "train.warmup_epochs=2", f"method.hardening={hardening}")
    assert len(pairs) == 3 * method.train.batch == 24
    for epoch in range(2):
        method.fit_epoch(pairs, epoch)
    told = [record.message for record in caplog.records]
    expected = "method.hardening 1.5 leaves 5 of 8 negatives before the first epoch of 3 steps ends"
    assert [expected in text and "0.14 takes 7 epochs" in text for text in told] == [True] * warned


def reference(logits, clean, negatives):
    """tau 0.1, lambda 2 0.1, lambda 1 0.8, margin 0.2, each written out."""
    size = len(logits)
    tanh = np.tanh(logits)
    evidence = torch.from_numpy(np.exp(tanh / 0.1))
    target = torch.diag(torch.from_numpy(clean).double())
    loss = (dirichlet_loss(evidence, target, 0.1) + dirichlet_loss(evidence.T, target, 0.1)).mean()
    hinges = 0.0
    for i in np.flatnonzero(clean):
        for line in (tanh[i], tanh[:, i]):
            costs = sorted(max(0.0, 0.2 + line[j] - tanh[i, i]) for j in range(size) if j != i)
            hinges += sum(costs[-negatives:]) / negatives
    return loss.item() + 0.8 * hinges


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_the_loss_is_that_of_the_paper_with_hinges_of_clean_pairs_alone(on_tiny, share):
    method, _ = on_tiny("decl")
    rng = np.random.default_rng(0)
    logits, clean = rng.normal(size=(8, 8)), rng.permutation(8) < 8 * share
    found = method._loss(torch.from_numpy(logits), torch.from_numpy(clean), 3)
    assert found.item() == pytest.approx(reference(logits, clean, 3))


@pytest.mark.parametrize("value", [-50.0, 0.0, 50.0])
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("size", [2, 6])
def test_loss_and_gradient_are_finite_where_all_scores_are_equal(on_tiny, value, clean, size):
    method, _ = on_tiny("decl")
    logits = torch.full((size, size), value, requires_grad=True)
    loss = method._loss(logits, torch.full((size,), clean), 5)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(logits.grad).all()


def test_a_pair_is_clean_where_it_is_the_likeliest_of_its_image_and_all_are_in_the_warm_up(
    on_tiny, spy
):
    """In evaluation mode, of the logits, rows of e + eᵀ, in the batches of the dividing pass."""
    calls = spy(decl.Decl, "_loss")
    method, pairs = on_tiny("decl", "train.warmup_epochs=1", "train.batch=24")
    method.fit_epoch(pairs, 0)
    assert calls[0][1][2].all()
    (rows,) = decl.dividing_batches(24, 128, method.train.seed)
    with torch.no_grad():
        logits = method.net.eval().score_batch(pairs.batch(rows), logits=True).double()
    both = (logits.tanh() / 0.1).exp()
    both = both + both.T
    found = method.statistics
    assert torch.equal(found["is_clean"][rows], both.argmax(1) == torch.arange(24))
    expected = both.diagonal() / both.sum(1)
    assert torch.allclose(found["clean_prob"][rows].double(), expected, atol=1e-5)


def test_after_the_warm_up_the_division_says_which_pairs_are_clean(warm, steps, spy):
    calls = spy(decl.Decl, "_loss")
    method, pairs = warm("decl")
    is_clean = torch.arange(24) % 3 == 0
    method.statistics["is_clean"] = is_clean
    method.fit_epoch(pairs, 1)
    assert torch.equal(calls[-1][1][2], is_clean[torch.from_numpy(steps[-1][1].pair_index)])


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
