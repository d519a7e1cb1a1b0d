"""Co-dividing: a two-component mixture over a statistic of the pairs separates clean from noisy."""

import warnings
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float

from now_builder.errors import TrainingError

THRESHOLD = 0.5
FORCED_NOISY = 0.01
STARTS = 10
Scale = Literal["linear", "log"]
_FEWEST_CLEAN = 2
_LEAST = 0.1


@dataclass(frozen=True, slots=True)
class Division:
    """Which pairs of a split a method takes for clean, by pair_index.

    Attributes:
        clean_prob: Posterior of the component with the lower mean.
        is_clean: Pairs that are treated as clean.
    """

    clean_prob: Float[np.ndarray, " pairs"]
    is_clean: Bool[np.ndarray, " pairs"]

    @property
    def clean(self) -> np.ndarray:
        """Pair indices of the clean pairs."""
        return np.flatnonzero(self.is_clean)

    @property
    def noisy(self) -> np.ndarray:
        """Pair indices of the others."""
        return np.flatnonzero(~self.is_clean)


def scaled(statistic: Float[np.ndarray, " pairs"]) -> Float[np.ndarray, " pairs"]:
    """Scale a statistic to [0, 1] by its extremes.

    Raises:
        TrainingError: If it is constant or not finite: nothing can be divided by it.
    """
    if not np.isfinite(statistic).all():
        bad = int(np.flatnonzero(~np.isfinite(statistic))[0])
        raise TrainingError(f"division: the statistic of pair {bad} is {statistic[bad]}")
    low, high = float(statistic.min()), float(statistic.max())
    if high - low <= 1e-12 * max(1.0, abs(high)):
        why = (
            "no pair costs anything any more (warm up less, or widen the margin)"
            if not high
            else "the network tells none apart (lower train.lr, or warm up longer)"
        )
        raise TrainingError(
            f"division: the statistic is {high:.6g} for all {len(statistic)} pairs; {why}"
        )
    return (statistic - low) / (high - low)


def logarithms(statistic: Float[np.ndarray, " pairs"]) -> Float[np.ndarray, " pairs"]:
    r"""Return :math:`\log(0.1 + x / \bar x)`, with :math:`x` the statistic above its lowest value.

    A few high values do not take up the scale; those below a tenth of the mean are nearly alike.

    Raises:
        TrainingError: As :func:`scaled`.
    """
    above = scaled(statistic)
    return np.asarray(np.log(_LEAST + above / above.mean()))


def clean_posterior(
    statistic: Float[np.ndarray, " pairs"],
    seed: int,
    *,
    one_variance: bool = False,
    scale: Scale = "linear",
) -> Float[np.ndarray, " pairs"]:
    """Compute the posterior of the lower of two Gaussians fitted to a statistic.

    Gaussians of one variance have a posterior that never rises with the statistic. With the scale
    ``log`` they are fitted to its :func:`logarithms`.

    Source:
        NCR (Huang et al., NeurIPS 2021): 10 iterations, tolerance 0.01, variance floor 5e-4.

    Differs:
        NCR's code fits from one start, which on losses of a small release can decide whether a
        mixture calls nearly all pairs clean or nearly none. Here 10 starts are drawn, and the
        likeliest fit is kept.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    values = statistic.astype(np.float64)
    values = scaled(logarithms(values) if scale == "log" else values)
    mixture = GaussianMixture(
        2, covariance_type="tied" if one_variance else "full", n_init=STARTS, max_iter=10,
        tol=1e-2, reg_covar=5e-4, random_state=seed,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        mixture.fit(values[:, None])
    lower = int(mixture.means_.argmin())
    return np.ascontiguousarray(mixture.predict_proba(values[:, None])[:, lower])


def divide(
    statistic: Float[np.ndarray, " pairs"],
    seed: int,
    threshold: float = THRESHOLD,
    scale: Scale = "linear",
) -> Division:
    """Divide the pairs of a split by :func:`clean_posterior` and :func:`by_posterior`."""
    return by_posterior(clean_posterior(statistic, seed, scale=scale), statistic, threshold)


def by_posterior(
    clean_prob: Float[np.ndarray, " pairs"],
    statistic: Float[np.ndarray, " pairs"],
    threshold: float = THRESHOLD,
) -> Division:
    """Divide pairs by a posterior: clean above a threshold.

    A posterior that is above it for all pairs, or for fewer than two, tells none apart.
    Then all pairs are clean but for the hundredth part with the lowest posterior (ties: the
    highest statistic), and training goes on as in the warm-up until a later division tells more.

    Source:
        NCR (Huang et al., NeurIPS 2021), for the case that all pairs are clean.

    Differs:
        NCR's code has no rule for the case that none is.
    """
    is_clean = clean_prob > threshold
    if is_clean.all() or is_clean.sum() < _FEWEST_CLEAN:
        forced = int(np.ceil(FORCED_NOISY * len(clean_prob)))
        is_clean = np.ones(len(clean_prob), dtype=bool)
        is_clean[np.lexsort((-statistic, clean_prob))[:forced]] = False
    return Division(clean_prob, is_clean)


def require_clean(division: Division) -> None:
    """Check that enough pairs are clean to train on.

    A division by a posterior leaves enough; one that several networks agree on may not.

    Raises:
        TrainingError: If fewer than two pairs are clean.
    """
    clean = int(division.is_clean.sum())
    if clean < _FEWEST_CLEAN:
        raise TrainingError(
            f"division: {clean} of {len(division.is_clean)} pairs are clean, expected at "
            f"least {_FEWEST_CLEAN}; warm up longer, or use a release with more matched pairs"
        )
