"""The mixture, its guard rails, the bank and the rectified correspondence."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from now_builder.errors import TrainingError
from pc2_baseline.methods.pc2.peers import PredictionBank
from pc2_baseline.modules.division import (
    Division,
    by_posterior,
    clean_posterior,
    divide,
    require_clean,
)


@pytest.mark.parametrize(
    ("clean_prob", "noisy"),
    [
        (np.full(250, 0.9), [247, 248, 249]),
        (np.where(np.arange(100) == 7, 0.2, 0.3), [7]),
        (np.where(np.arange(100) == 7, 0.2, np.where(np.arange(100) < 1, 0.9, 0.3)), [7]),
        (np.where(np.arange(9) < 2, 0.9, 0.3), list(range(2, 9))),
        (np.array([0.9, 0.5, 0.6, 0.1]), [1, 3]),
    ],
    ids=["all are clean", "none is", "one is", "two are", "an even chance is not"],
)
def test_pairs_are_clean_above_one_half_or_all_but_the_worst_hundredth(clean_prob, noisy):
    """The highest statistics are the worst of equal posteriors; margins stay as soft as before."""
    found = by_posterior(clean_prob, np.arange(len(clean_prob), dtype=float))
    assert found.noisy.tolist() == noisy
    assert np.array_equal(found.clean_prob, clean_prob)


def test_logarithms_tell_skewed_losses_apart():
    """Losses around 0.02 and 0.3, spread by factors: two in five pairs match. A mixture of the
    losses themselves calls seven in eight clean.
    """
    rng = np.random.default_rng(4)
    matched = rng.random(2000) < 0.4
    losses = np.exp(rng.normal(np.where(matched, np.log(0.02), np.log(0.3)), 0.8))
    assert divide(losses, 0).is_clean.mean() > 0.85
    assert (divide(losses, 0, scale="log").is_clean == matched).mean() > 0.95
    prob = clean_posterior(losses, 0, scale="log")
    assert np.allclose(prob, clean_posterior(7 * losses, 0, scale="log"), atol=1e-9)
    assert np.isfinite(clean_posterior(np.where(matched, 0.0, losses), 0, scale="log")).all()


def peaked_losses():
    """A narrow peak among uniform losses: which component is the lower one is a matter of luck."""
    rng = np.random.default_rng(1)
    return np.r_[rng.normal(0.5, 0.03, 288), rng.random(192)]


def test_a_division_does_not_hang_on_the_start_of_its_mixture(monkeypatch):
    losses = peaked_losses()
    counts = {seed: len(divide(losses, seed).clean) for seed in range(6)}
    assert len(set(counts.values())) == 1
    monkeypatch.setattr("pc2_baseline.modules.division.STARTS", 1)
    lone = [len(divide(losses, seed).clean) for seed in range(6)]
    assert max(lone) - min(lone) > 300, "from one start it does"


@pytest.mark.parametrize("seed", range(2))
def test_the_mixture_is_the_papers(seed):
    """Tolerance 0.01 and a variance floor of 5e-4 each decide here; ten iterations are enough."""
    losses = np.random.default_rng(seed).normal(size=300)
    scale = losses.max() - losses.min()
    values = ((losses - losses.min()) / scale)[:, None]
    found = []
    for change in ({}, {"tol": 1e-3}, {"tol": 1.0}, {"reg_covar": 1e-6}):
        own = {"max_iter": 10, "tol": 1e-2, "reg_covar": 5e-4} | change
        mixture = GaussianMixture(2, n_init=10, random_state=seed, **own)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            chances = mixture.fit(values).predict_proba(values)
        found.append(chances[:, mixture.means_.argmin()])
    posterior = clean_posterior(losses, seed)
    assert np.array_equal(posterior, found[0])
    assert not any(np.allclose(posterior, other, atol=1e-9) for other in found[1:])


def test_a_division_that_leaves_too_few_clean_pairs_stops_the_training():
    with pytest.raises(TrainingError, match="1 of 9 pairs are clean"):
        require_clean(Division(np.full(9, 0.9), np.arange(9) < 1))


def test_the_bank_starts_empty_and_keeps_what_was_written():
    bank = PredictionBank(3, 2)
    assert not bank.written.any()
    predictions = torch.tensor([[0.2, 0.8], [1.0, 0.0], [0.5, 0.5]])
    bank.write(predictions)
    assert bank.written.all()
    bank.write_rows(np.array([0]), torch.zeros(1, 2))
    assert bank.written.tolist() == [False, True, True]
    bank.write(predictions)
    assert torch.equal(bank.predictions, predictions)
    with pytest.raises(ValueError, match="expected"):
        bank.write(torch.zeros(2, 2))
