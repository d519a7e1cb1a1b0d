"""The beta mixture: two modes, the lower one, and what it does at the extremes."""

import numpy as np
import pytest

from pc2_baseline.modules.division import beta_posterior, divide_by_beta, posterior_from


def losses(share: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    matched = rng.random(2000) < share
    return np.where(matched, rng.beta(2, 12, 2000), rng.beta(10, 3, 2000)), matched


@pytest.mark.parametrize("share", [0.3, 0.7])
def test_two_modes_are_told_apart(share):
    statistic, matched = losses(share)
    found = divide_by_beta(statistic)
    assert (found.is_clean == matched).mean() >= 0.96


def test_the_lower_component_is_clean_also_where_it_begins_as_the_second():
    statistic, matched = losses(0.5)
    starts = np.array([[1.0, 2.0], [2.0, 1.0]])
    first, second = (posterior_from(statistic, own) for own in (starts, starts[::-1]))
    assert np.allclose(first, second)
    assert ((second > 0.5) == matched).mean() >= 0.96


def test_a_lower_statistic_is_never_less_clean():
    statistic, _ = losses(0.6, seed=3)
    posterior = beta_posterior(statistic)[np.argsort(statistic)]
    assert (np.diff(posterior) <= 1e-9).all()


def test_the_highest_statistics_are_never_the_cleaner_ones():
    """Where a wide component is the lower one, its density is the greater one at the top too."""
    rng = np.random.default_rng(0)
    statistic = np.r_[rng.uniform(0, 1, 60), rng.normal(0.5, 0.08, 100)]
    posterior = beta_posterior(statistic)[np.argsort(statistic)]
    assert posterior[-1] == posterior.min()


@pytest.mark.parametrize(
    "statistic",
    [np.r_[np.zeros(50), np.ones(50)], np.r_[np.zeros(99), 1.0], np.arange(3.0), np.arange(2.0)],
    ids=["two values", "one outlier", "three", "two"],
)
def test_degenerate_statistics_give_finite_posteriors(statistic):
    posterior = beta_posterior(statistic)
    assert np.isfinite(posterior).all()
    assert ((posterior >= 0) & (posterior <= 1)).all()
