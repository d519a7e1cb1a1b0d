"""Confidence intervals of shares."""

from math import sqrt

import numpy as np
from jaxtyping import Float, Integer

Z95 = 1.959963984540054
"""Half width of a 95 % interval in standard errors."""


def wilson(hits: float, total: float) -> tuple[float, float]:
    """Return the 95 % interval of the share of hits, in [0, 1].

    Source:
        Wilson, Probable Inference, the Law of Succession, and Statistical Inference, JASA 1927.
    """
    share, z2 = hits / total, Z95**2
    middle = (share + z2 / (2 * total)) / (1 + z2 / total)
    half = Z95 / (1 + z2 / total) * sqrt(share * (1 - share) / total + z2 / (4 * total**2))
    return (
        0.0 if hits == 0 else max(0.0, middle - half),
        1.0 if hits == total else min(1.0, middle + half),
    )


def clustered_wilson(
    hits: Float[np.ndarray, " trials"],
    clusters: Integer[np.ndarray, " trials"],
    weights: Float[np.ndarray, " trials"] | None = None,
) -> tuple[float, float]:
    """Return the 95 % interval of the share of hits where trials of one cluster are correlated.

    Applies Wilson's interval to the effective number of trials: the number of independent trials
    with the observed variance between clusters. If that variance is 0, each cluster counts once.
    Weights are inverse probabilities of drawing a trial.

    Source:
        Kish, Survey Sampling, 1965 (design effect); Korn and Graubard, Confidence Intervals for
        Proportions with Small Expected Number of Positive Counts Estimated from Survey Data, 1998.
    """
    numbers = np.unique(clusters, return_inverse=True)[1]
    weights = np.ones(len(hits)) if weights is None else weights
    total, sizes = float(weights.sum()), np.bincount(numbers, weights)
    share = float((weights * hits).sum()) / total
    residuals = np.bincount(numbers, weights * hits) - share * sizes
    count = len(sizes)
    variance = float(residuals @ residuals) * count / max(1, count - 1) / total**2
    effective = share * (1 - share) / variance if variance > 1e-12 else count
    trials = min(float(effective), float(len(hits)))
    return wilson(share * trials, trials)
