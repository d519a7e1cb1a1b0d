"""DECL: evidence of clean and noisy pairs, the hinge of the clean ones, and how it hardens."""

import math

import numpy as np
import pytest
import torch
from scipy import special

from pc2_baseline.methods import decl
from pc2_baseline.methods.decl import dirichlet_loss, evidence, evidential_loss


def test_the_number_of_negatives_falls_with_each_step_of_the_training(on_tiny):
    """At the paper's settings: 127, 103 at the 1,000th step, 5 from step 4,881 on."""
    method, _ = on_tiny("decl", "train.batch=128")
    found = [method.negatives(step) for step in (1, 1000, 4880, 4881, 99999)]
    assert found == [127, 103, 6, 5, 5]


def test_steps_are_counted_from_the_first_of_the_warm_up(on_tiny, spy):
    method, pairs = on_tiny("decl", "train.warmup_epochs=1", "train.batch=8", "method.hardening=1")
    calls = spy(decl, "triplet_top")
    for epoch in range(2):
        method.fit_epoch(pairs, epoch)
    assert [negatives for _, (*_, negatives), _ in calls] == [7, 6, 5, 5, 5, 5]


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


def test_a_pair_is_clean_where_it_is_the_likeliest_of_its_image_and_all_are_in_the_warm_up(
    on_tiny, spy, steps
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
    method.fit_epoch(pairs, 1)
    assert torch.equal(calls[1][1][2], found["is_clean"][steps[1][1].pair_index])
    assert not calls[1][1][2].all()


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
