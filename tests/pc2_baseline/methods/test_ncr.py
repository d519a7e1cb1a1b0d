"""NCR: the labels of clean and of noisy pairs, and the warm-up."""

import numpy as np
import pytest
import torch

from pc2_baseline.modules.coteaching import DividedPairs
from pc2_baseline.modules.division import Division, divide


@pytest.fixture
def ncr(on_tiny):
    """NCR at its first epoch after the warm-up, and its pairs."""
    method, pairs = on_tiny("ncr", "train.warmup_epochs=1", "train.batch=24")
    method.fit_epoch(pairs, 0)
    for peer in (0, 1):
        prob = np.linspace(0.1, 0.9, 24) if peer else np.linspace(0.9, 0.3, 24)
        zeros = np.zeros(24, np.float32)
        method.statistics[peer] = DividedPairs(zeros, Division(prob, prob > 0.5))
    method.others[0].load_state_dict(method.nets[1].state_dict())
    method.others[1].load_state_dict(method.nets[0].state_dict())
    return method, pairs


@torch.no_grad()
def predicted(net, pairs, rows):
    """Half of a pair's mean-negative losses less than 0.2, in units of the highest tenth's mean."""
    matrix = net.eval().score_batch(pairs.batch(rows)).double()
    own, off = matrix.diagonal(), 1 - torch.eye(len(rows))
    losses = ((0.2 + matrix - own[:, None]).clamp(min=0) * off).mean(1)
    losses = losses + ((0.2 + matrix - own[None]).clamp(min=0) * off).mean(0)
    close = (0.2 - losses / 2).clamp(0, 0.2)
    top = close.sort().values[-(len(rows) // 10 + 1) :].mean()
    return (close / top).clamp(max=1).numpy()


@pytest.mark.parametrize("peer", [0, 1])
def test_a_clean_label_is_the_others_belief_and_ones_own_prediction(ncr, peer):
    """w + (1 - w) p: w of the other peer's division, p of the network that is trained."""
    method, pairs = ncr
    clean, noisy = np.array([3, 20, 7, 1, 15]), np.array([2, 9])
    method.nets[peer].eval()
    with torch.no_grad():
        labels, _ = method.labels(pairs, peer, clean, noisy)
    w = method.statistics[1 - peer].division.clean_prob[clean]
    expected = w + (1 - w) * predicted(method.nets[peer], pairs, clean)
    assert np.allclose(labels.numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("peer", [0, 1])
def test_a_noisy_label_is_the_mean_of_both_networks_predictions(ncr, peer):
    method, pairs = ncr
    clean, noisy = np.array([3, 20, 7]), np.array([2, 9, 13, 4])
    method.nets[peer].eval()
    with torch.no_grad():
        _, labels = method.labels(pairs, peer, clean, noisy)
    both = [predicted(net, pairs, noisy) for net in method.nets]
    assert not np.allclose(*both, atol=1e-4)
    assert np.allclose(labels.numpy(), (both[0] + both[1]) / 2, atol=1e-5)


def test_the_warm_up_learns_all_pairs_with_mean_negatives_and_one_margin(on_tiny, steps):
    method, pairs = on_tiny("ncr", "train.batch=24", "model.dropout=0")
    net = method.nets[0].train()
    rows = np.arange(24)
    with torch.no_grad():
        matrix = net.score_batch(pairs.batch(rows))
    method._learn(pairs, 0, 0)
    own, off = matrix.diagonal(), 1 - torch.eye(24)
    costs = ((0.2 + matrix - own[:, None]).clamp(min=0) * off).mean(1)
    costs = costs + ((0.2 + matrix - own[None]).clamp(min=0) * off).mean(0)
    (loss, step), *more = steps
    assert not more
    assert sorted(step.pair_index) == rows.tolist()
    assert loss == pytest.approx(costs.sum().item(), rel=1e-4)


def test_pairs_are_divided_by_a_mixture_of_gaussians(ncr):
    method, pairs = ncr
    found = method._divide(pairs, 0)
    assert np.array_equal(found.division.clean_prob, divide(found.loss, 0).clean_prob)
