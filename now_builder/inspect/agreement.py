"""Agreement of verdicts, methods and chance: shares with intervals, AUROC, Cohen's kappa."""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from jaxtyping import Bool, Float

from now_builder.program import intervals


@dataclass(frozen=True, slots=True)
class Proportion:
    """The share of cases that are hits, with its 95 % interval, all in [0, 1]."""

    hits: int
    of: int
    value: float
    low: float
    high: float


def wilson(hits: int, of: int) -> Proportion | None:
    """Return a share and its interval; ``None`` if ``of`` is 0."""
    return Proportion(hits, of, hits / of, *intervals.wilson(float(hits), of)) if of else None


def mean_interval(values: Float[np.ndarray, " values"]) -> tuple[float, float, float]:
    """Return a mean and its 95 % interval by the normal approximation: the bootstrap's limit."""
    mean = float(values.mean())
    half = intervals.Z95 * float(values.std(ddof=1)) / sqrt(len(values)) if len(values) > 1 else 0.0
    return mean, mean - half, mean + half


def kappa(first: Sequence[Hashable], second: Sequence[Hashable]) -> float | None:
    """Return the agreement of two raters beyond chance; ``None`` where chance always agrees.

    Source:
        Cohen, A Coefficient of Agreement for Nominal Scales, 1960.
    """
    total = len(first)
    if not total:
        return None
    seen = sum(one == other for one, other in zip(first, second, strict=True)) / total
    ones, others = Counter(first), Counter(second)
    by_chance = sum(ones[word] * others[word] for word in ones) / total**2
    return (seen - by_chance) / (1 - by_chance) if by_chance < 1 else None


def auroc(score: Float[np.ndarray, " cases"], matched: Bool[np.ndarray, " cases"]) -> float | None:
    """Return the area under the ROC curve, ties as half; ``None`` where all cases are of one kind.

    Source:
        Mann and Whitney, 1947; Hanley and McNeil, 1982.
    """
    good, bad = np.sort(score[matched]), score[~matched]
    if not len(good) or not len(bad):
        return None
    above = len(good) - np.searchsorted(good, bad, "right")
    tied = np.searchsorted(good, bad, "right") - np.searchsorted(good, bad, "left")
    return float((above + tied / 2).sum() / (len(good) * len(bad)))
