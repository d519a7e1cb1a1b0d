"""DECL: evidence of clean and noisy pairs, the hinge of the clean ones, and how it hardens."""

import numpy as np
import pytest
import torch

from pc2_baseline.methods import decl
from pc2_baseline.methods.decl import dirichlet_loss


def test_the_number_of_negatives_falls_with_each_step_of_the_training(on_tiny):
    """At the paper's settings: 127, 103 at the 1,000th step, 5 from step 4,881 on."""
    method, _ = on_tiny("decl", "train.batch=128")
    found = [method.negatives(step) for step in (1, 1000, 4880, 4881, 99999)]
    assert found == [127, 103, 6, 5, 5]


def test_steps_are_counted_from_the_first_of_the_warm_up(on_tiny, monkeypatch):
    method, pairs = on_tiny("decl", "train.warmup_epochs=1", "method.hardening=1")
    asked = []
    own = decl.triplet_top
    monkeypatch.setattr(decl, "triplet_top", lambda s, m, n: (asked.append(n), own(s, m, n))[1])
    for epoch in range(2):
        method.fit_epoch(pairs, epoch)
    assert asked == [7, 6, 5, 5, 5, 5]


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


def test_gradients_are_those_of_the_loss(on_tiny):
    method, _ = on_tiny("decl", "method.temperature=0.5")
    torch.manual_seed(0)
    logits = torch.randn(5, 5, dtype=torch.float64, requires_grad=True)
    clean = torch.tensor([True, False, True, True, False])
    assert torch.autograd.gradcheck(lambda values: method._loss(values, clean, 2), logits)


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
    on_tiny, monkeypatch
):
    """In evaluation mode, of the logits, rows of e + eᵀ, in the batches of the dividing pass."""
    method, pairs = on_tiny("decl", "train.warmup_epochs=1", "train.batch=24")
    asked = []
    own = decl.Decl._loss

    def spy(self, logits, clean, negatives):
        asked.append(clean)
        return own(self, logits, clean, negatives)

    monkeypatch.setattr(decl.Decl, "_loss", spy)
    method.fit_epoch(pairs, 0)
    assert asked[0].all()
    (rows,) = decl.dividing_batches(24, 128, method.train.seed)
    with torch.no_grad():
        logits = method.net.eval().score_batch(pairs.batch(rows), logits=True).double()
    both = (logits.tanh() / 0.1).exp()
    both = both + both.T
    expected = torch.zeros(24, dtype=torch.bool)
    expected[rows] = both.argmax(1) == torch.arange(24)
    prob = torch.zeros(24, dtype=torch.float64)
    prob[rows] = both.diagonal() / both.sum(1)
    assert torch.equal(method.statistics["is_clean"], expected)
    assert torch.allclose(method.statistics["clean_prob"].double(), prob, atol=1e-5)


def test_after_the_warm_up_the_division_says_which_pairs_are_clean(on_tiny, steps, monkeypatch):
    method, pairs = on_tiny("decl", "train.warmup_epochs=1", "train.batch=24")
    method.fit_epoch(pairs, 0)
    is_clean = torch.arange(24) % 3 == 0
    method.statistics["is_clean"] = is_clean
    asked = []
    own = decl.Decl._loss
    monkeypatch.setattr(
        decl.Decl, "_loss", lambda self, s, c, n: (asked.append(c), own(self, s, c, n))[1]
    )
    method.fit_epoch(pairs, 1)
    assert torch.equal(asked[0], is_clean[torch.from_numpy(steps[-1][1].pair_index)])
