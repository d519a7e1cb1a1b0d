"""A mixture of two beta distributions over the losses, as BiCro and L2RM divide pairs."""

from math import lgamma

import numpy as np
from jaxtyping import Float

from pc2_baseline.modules.division import Division, by_posterior, scaled

_EDGE = 1e-4
_FLOOR = 1e-12
_ROUNDS = 10


def beta_posterior(statistic: Float[np.ndarray, " pairs"]) -> Float[np.ndarray, " pairs"]:
    """Compute the posterior of the lower of two beta distributions fitted to a statistic.

    Expectation maximisation from fixed starts, its second step by weighted moments.

    Args:
        statistic: Low for clean pairs; scaled to [0, 1] before the fit, then clipped to
            [1e-4, 1 - 1e-4].

    Source:
        Arazo et al., ICML 2019; with starts (1, 2) and (2, 1) and 10 rounds BiCro (Yang et al.,
        CVPR 2023).

    Differs:
        BiCro's code takes the first component whichever mean it has; here it is the lower one.
        Below the lower mean, and above the higher one, the posterior is that at the mean: a beta
        density may vanish, or rise again, at the ends.
    """
    values = np.clip(scaled(statistic.astype(np.float64)), _EDGE, 1 - _EDGE)
    return posterior_from(values, np.array([[1.0, 2.0], [2.0, 1.0]]))


def posterior_from(
    values: Float[np.ndarray, " pairs"], shapes: Float[np.ndarray, "2 2"]
) -> Float[np.ndarray, " pairs"]:
    """Do what :func:`beta_posterior` does, from given starts, on values inside (0, 1)."""
    shares = np.array([0.5, 0.5])
    for _ in range(_ROUNDS):
        posterior = _posterior(values, shapes, shares)
        shares = posterior.mean(1)
        shapes = np.array([moments(values, weights) for weights in posterior])
    means = shapes[:, 0] / shapes.sum(1)
    lower = int(means.argmin())
    bounded = np.clip(values, means.min(), means.max())
    return np.asarray(_posterior(bounded, shapes, shares)[lower])


def divide_by_beta(statistic: Float[np.ndarray, " pairs"]) -> Division:
    """Divide the pairs of a split by :func:`beta_posterior` and :func:`by_posterior`."""
    return by_posterior(beta_posterior(statistic), statistic)


def _posterior(
    values: Float[np.ndarray, " pairs"],
    shapes: Float[np.ndarray, "2 2"],
    shares: Float[np.ndarray, " 2"],
) -> Float[np.ndarray, "2 pairs"]:
    a, b = shapes[:, :1], shapes[:, 1:]
    whole = np.array([[lgamma(x) + lgamma(y) - lgamma(x + y)] for x, y in shapes.tolist()])
    logs = (a - 1) * np.log(values) + (b - 1) * np.log1p(-values) - whole
    weighted = np.maximum(shares[:, None] * np.exp(np.minimum(logs, 700.0)), _FLOOR)
    return np.asarray(weighted / weighted.sum(0))


def moments(
    values: Float[np.ndarray, " pairs"], weights: Float[np.ndarray, " pairs"] | None = None
) -> tuple[float, float]:
    """Return the shape of a beta distribution with the weighted mean and variance."""
    mean = float(np.average(values, weights=weights))
    variance = max(float(np.average((values - mean) ** 2, weights=weights)), _EDGE**2)
    a = max(mean * (mean * (1 - mean) / variance - 1), _EDGE)
    return a, a * (1 - mean) / mean
