"""Co-dividing: a two-component mixture over a statistic of the pairs separates clean from noisy.

The mixture is of Gaussians or, for BiCro and L2RM, of beta distributions. In cross-fit division
each fold of the pairs, scored by a network that did not train on it, has its own mixture.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from math import lgamma
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int, Num

from now_builder.errors import TrainingError
from pc2_baseline.modules.seeds import stream

THRESHOLD = 0.5
FORCED_NOISY = 0.01
STARTS = 10
Scale = Literal["linear", "log"]
_FEWEST_CLEAN = 2
_LEAST = 0.1
_EDGE = 1e-4
_FLOOR = 1e-12
_ROUNDS = 10
_FOLDS = 3  # part of the stream's name


PairValues = Float[np.ndarray, " pairs"]
"""A value of each pair of a split, by pair_index."""


@dataclass(frozen=True, slots=True)
class Division:
    """Which pairs of a split a method calls clean, by pair_index.

    Attributes:
        clean_prob: Posterior of the component with the lower mean.
        is_clean: Pairs that are treated as clean.
    """

    clean_prob: PairValues
    is_clean: Bool[np.ndarray, " pairs"]

    @property
    def clean(self) -> np.ndarray:
        """Pair indices of the clean pairs."""
        return np.flatnonzero(self.is_clean)

    @property
    def noisy(self) -> np.ndarray:
        """Pair indices of the others."""
        return np.flatnonzero(~self.is_clean)


def scaled(statistic: PairValues) -> PairValues:
    """Scale a statistic to [0, 1] by its extremes.

    Raises:
        TrainingError: If it is constant or not finite, and so cannot divide pairs.
    """
    if not np.isfinite(statistic).all():
        bad = int(np.flatnonzero(~np.isfinite(statistic))[0])
        raise TrainingError(f"division: the statistic of pair {bad} is {statistic[bad]}")
    low, high = float(statistic.min()), float(statistic.max())
    if high - low <= 1e-12 * max(1.0, abs(high)):
        why = "no pair has a loss any more (warm up less, or widen the margin)"
        if high:
            why = "the network separates no pairs (lower train.lr, or warm up longer)"
        problem = f"the statistic is {high:.6g} for all {len(statistic)} pairs"
        raise TrainingError(f"division: {problem}; {why}")
    return (statistic - low) / (high - low)


def logarithms(statistic: PairValues) -> PairValues:
    r"""Return :math:`\log(0.1 + x / \bar x)`, with :math:`x` the statistic above its lowest value.

    A few high values do not dominate the scale; values below a tenth of the mean are nearly equal.
    """
    above = scaled(statistic)
    return np.asarray(np.log(_LEAST + above / above.mean()))


def clean_posterior(
    statistic: PairValues, seed: int, *, one_variance: bool = False, scale: Scale = "linear"
) -> PairValues:
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
    statistic: PairValues, seed: int, threshold: float = THRESHOLD, scale: Scale = "linear"
) -> Division:
    """Divide the pairs of a split by :func:`clean_posterior` and :func:`by_posterior`."""
    return by_posterior(clean_posterior(statistic, seed, scale=scale), statistic, threshold)


def by_posterior(
    clean_prob: PairValues, statistic: PairValues, threshold: float = THRESHOLD
) -> Division:
    """Divide pairs by a posterior: clean above a threshold.

    If it is above it for all pairs, or for fewer than two, all pairs are clean but the 1 % with the
    lowest posterior (ties: the highest statistic): training continues as in the warm-up until a
    later division separates the pairs.

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
    """
    clean = int(division.is_clean.sum())
    if clean < _FEWEST_CLEAN:
        raise TrainingError(
            f"division: {clean} of {len(division.is_clean)} pairs are clean, expected at "
            f"least {_FEWEST_CLEAN}; warm up longer, or use a release with more matched pairs"
        )


def beta_posterior(statistic: PairValues) -> PairValues:
    """Compute the posterior of the lower of two beta distributions fitted to a statistic.

    Expectation maximisation from fixed starts; the M-step uses weighted moments.

    Args:
        statistic: Low for clean pairs; scaled to [0, 1] before the fit, then clipped to
            [1e-4, 1 - 1e-4].

    Source:
        Arazo et al., ICML 2019; with starts (1, 2) and (2, 1) and 10 rounds BiCro (Yang et al.,
        CVPR 2023).

    Differs:
        BiCro's code uses the first component whatever its mean, here the lower one is used. Below
        the lower mean and above the higher one, the posterior is that at the mean: a beta density
        may vanish, or rise again, at the ends.
    """
    values = np.clip(scaled(statistic.astype(np.float64)), _EDGE, 1 - _EDGE)
    return posterior_from(values, np.array([[1.0, 2.0], [2.0, 1.0]]))


def posterior_from(values: PairValues, shapes: Float[np.ndarray, "2 2"]) -> PairValues:
    """Compute :func:`beta_posterior` from given starts, on values inside (0, 1)."""
    shares = np.array([0.5, 0.5])
    for _ in range(_ROUNDS):
        posterior = _beta_posteriors(values, shapes, shares)
        shares = posterior.mean(1)
        shapes = np.array([moments(values, weights) for weights in posterior])
    means = shapes[:, 0] / shapes.sum(1)
    lower = int(means.argmin())
    bounded = np.clip(values, means.min(), means.max())
    return np.asarray(_beta_posteriors(bounded, shapes, shares)[lower])


def divide_by_beta(statistic: PairValues) -> Division:
    """Divide the pairs of a split by :func:`beta_posterior` and :func:`by_posterior`."""
    return by_posterior(beta_posterior(statistic), statistic)


def _beta_posteriors(
    values: PairValues, shapes: Float[np.ndarray, "2 2"], shares: Float[np.ndarray, " 2"]
) -> Float[np.ndarray, "2 pairs"]:
    a, b = shapes[:, :1], shapes[:, 1:]
    whole = np.array([[lgamma(x) + lgamma(y) - lgamma(x + y)] for x, y in shapes.tolist()])
    logs = (a - 1) * np.log(values) + (b - 1) * np.log1p(-values) - whole
    weighted = np.maximum(shares[:, None] * np.exp(np.minimum(logs, 700.0)), _FLOOR)
    return np.asarray(weighted / weighted.sum(0))


def moments(values: PairValues, weights: PairValues | None = None) -> tuple[float, float]:
    """Return the shape of a beta distribution with the weighted mean and variance."""
    mean = float(np.average(values, weights=weights))
    variance = max(float(np.average((values - mean) ** 2, weights=weights)), _EDGE**2)
    a = max(mean * (mean * (1 - mean) / variance - 1), _EDGE)
    return a, a * (1 - mean) / mean


def assign_folds(
    image_of: Int[np.ndarray, " pairs"],
    captions: Sequence[Num[np.ndarray, " _"]],
    folds: int,
    seed: int,
) -> Int[np.ndarray, " pairs"]:
    """Return the fold of each pair; pairs that share an image or a caption are in one fold.

    So a network that did not train on a fold has seen none of its images and captions. The largest
    groups are assigned first, each to the fold with the fewest pairs. A fold has at least two
    groups, because a pair's loss needs a negative.

    Raises:
        TrainingError: If there are fewer than two groups for each fold.
    """
    groups = _groups(image_of, captions)
    sizes = np.bincount(groups)
    if len(sizes) < 2 * folds:
        raise TrainingError(
            f"{len(sizes)} groups of training pairs that share no image and no caption, in {folds} "
            "folds, expected at least 2 a fold; lower method.folds"
        )
    order = stream(seed, len(sizes), _FOLDS).permutation(len(sizes))
    order = order[np.argsort(-sizes[order], kind="stable")]
    fold_of_group = np.empty(len(sizes), dtype=np.int64)
    filled = np.zeros(folds, dtype=np.int64)
    for group in order:
        fold_of_group[group] = fold = int(filled.argmin())
        filled[fold] += sizes[group]
    _share_out(fold_of_group, order, folds)
    return np.asarray(fold_of_group[groups])


def _share_out(
    fold_of_group: Int[np.ndarray, " groups"], order: Int[np.ndarray, " groups"], folds: int
) -> None:
    """Move small groups, from the folds with the most groups, until each fold has at least two."""
    while (held := np.bincount(fold_of_group, minlength=folds)).min() < 2:
        smallest = order[fold_of_group[order] == held.argmax()][-1]
        fold_of_group[smallest] = held.argmin()


def _groups(
    image_of: Int[np.ndarray, " pairs"], captions: Sequence[Num[np.ndarray, " _"]]
) -> Int[np.ndarray, " pairs"]:
    """Number the groups of pairs that share images or captions, directly or through others."""
    numbers: dict[bytes, int] = {}
    caption_of = np.array(
        [numbers.setdefault(np.asarray(ids).tobytes(), len(numbers)) for ids in captions]
    )
    group, before = image_of.copy(), None
    while before is None or not np.array_equal(group, before):
        before = group
        for shared in (caption_of, image_of):
            lowest = np.full(int(shared.max()) + 1, len(group))
            np.minimum.at(lowest, shared, group)
            group = lowest[shared]
    return np.unique(group, return_inverse=True)[1]


def divide_by_fold(
    statistic: PairValues,
    fold: Int[np.ndarray, " pairs"],
    seed: int,
    threshold: float = THRESHOLD,
    scale: Scale = "linear",
) -> Division:
    """Divide each fold by its own mixture, as the networks of the folds have no common scale."""
    clean_prob = np.zeros(len(fold))
    is_clean = np.zeros(len(fold), dtype=bool)
    for number in np.unique(fold):
        rows = fold == number
        division = divide(statistic[rows], seed, threshold, scale)
        clean_prob[rows], is_clean[rows] = division.clean_prob, division.is_clean
    return Division(clean_prob, is_clean)
