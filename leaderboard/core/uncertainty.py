"""Uncertainty of scores and of their differences due to the choice of test pairs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import exp, sqrt
from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Integer

from leaderboard.metrics import CUTOFFS, Labels, Ranks, expected_hits, hits_per_image
from now_builder.program.intervals import clustered_wilson, wilson

REPLICATES = 10_000
"""Resamples of a bootstrap, and flips of a sign-flip test."""

SEED = 20240805
SIGNIFICANT = 0.05
_DRAWN_AT_ONCE = 2**22


class Bootstrap(NamedTuple):
    """The 95 % interval and the standard error of rSum."""

    low: float
    high: float
    deviation: float


def recall_interval(hits: float, n_queries: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a recall, in percent."""
    low, high = wilson(hits, n_queries)
    return 100 * low, 100 * high


def clustered_interval(hits: Float[np.ndarray, " queries"], owners: Labels) -> tuple[float, float]:
    """Return the 95 % interval of a recall by the owners of its queries, in percent."""
    low, high = clustered_wilson(hits, owners)
    return 100 * low, 100 * high


def bootstrap_rsum(
    per_image: Float[np.ndarray, " pairs"],
    replicates: int = REPLICATES,
    owners: Labels | None = None,
) -> Bootstrap:
    """Bootstrap rSum over pairs by their :func:`leaderboard.metrics.hits_per_image`.

    The gallery, and so every rank, stays fixed. A pair's image and caption are correlated, so the
    two directions are resampled together. Pairs of equal hits are interchangeable: it is enough to
    draw how often each value occurs, at a cost that does not grow with the split. With ``owners``
    whole owners are resampled, since the pairs of one are correlated too.

    Source:
        Efron, Bootstrap Methods: Another Look at the Jackknife, 1979; percentile interval. By
        owner: Davison and Hinkley, Bootstrap Methods and Their Application, 1997, section 3.8.
    """
    kinds, counts = np.unique(_by_owner(per_image, owners), axis=1, return_counts=True)
    values, sizes = np.ascontiguousarray(kinds)
    generator = np.random.Generator(np.random.PCG64(SEED))
    total = int(counts.sum())
    draws = []
    for part in _parts(replicates, len(values)):
        drawn = generator.multinomial(total, counts / total, size=part)
        draws.append(100 * (drawn @ values) / (drawn @ sizes))
    rsums = np.concatenate(draws)
    low, high = np.percentile(rsums, [2.5, 97.5])
    return Bootstrap(float(low), float(high), float(rsums.std()))


def _by_owner(
    per_image: Float[np.ndarray, " pairs"], owners: Labels | None
) -> Float[np.ndarray, "2 owners"]:
    """Return the sum of the hits of each owner and its number of pairs, by default 1 each."""
    if owners is None:
        return np.stack([per_image, np.ones(len(per_image))])
    numbers = np.unique(owners, return_inverse=True)[1]
    return np.stack([np.bincount(numbers, per_image), np.bincount(numbers)])


def sum_deviation(recalls: Sequence[float], n_queries: int) -> float:
    """Return the standard error of the sum of a direction's recalls, from these alone.

    The cutoffs are nested (a hit at 1 is a hit at 5), so their covariances follow from the recalls.
    """
    shares = [recall / 100 for recall in recalls]
    variance = sum(share * (1 - share) for share in shares)
    variance += sum(2 * share * (1 - later) for share, later in combinations(shares, 2))
    return 100 * sqrt(variance / n_queries)


@dataclass(frozen=True, slots=True)
class Discordance:
    """Queries that only one of two entries hits, at one cutoff.

    Attributes:
        first_only: number of queries that the first surely hits and the second surely misses.
        second_only: number of queries with the roles exchanged.
        undecided: number of queries where a tie decides; left out of the test.
        p: McNemar's exact two-sided p-value.
    """

    first_only: int
    second_only: int
    undecided: int
    p: float


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference in rSum points: its 95 % interval by bootstrap, p of the paired sign-flip test."""

    difference: float
    low: float
    high: float
    p: float


@dataclass(frozen=True, slots=True)
class Comparison(Difference):
    """Comparison of two entries on the same queries: the first less the second, in rSum points.

    Interval and p are over images, or over owners where they are known. McNemar's test is by
    cutoff: it takes the pairs of an owner and, in ``t2i``, the captions of one image as
    independent, which they are not, so that its p is somewhat too small.

    Attributes:
        within_site: the same within sites, over sites; None if the results have no such ranks.
    """

    i2t: dict[int, Discordance]
    t2i: dict[int, Discordance]
    within_site: Difference | None = None


def compare(
    first: tuple[Ranks, Ranks],
    second: tuple[Ranks, Ranks],
    owner: Labels | None = None,
    site_owners: Labels | None = None,
) -> Comparison:
    """Compare the ranks (i2t, t2i) of two entries of the same queries."""
    difference = hits_per_image(*first, owner) - hits_per_image(*second, owner)
    own = difference_of(difference, site_owners)
    i2t, t2i = (
        {cutoff: _discordance(one, other, cutoff) for cutoff in CUTOFFS}
        for one, other in zip(first, second, strict=True)
    )
    return Comparison(own.difference, own.low, own.high, own.p, i2t, t2i)


def difference_of(
    per_image: Float[np.ndarray, " pairs"], owners: Labels | None = None
) -> Difference:
    """Return the mean of paired differences of hits with its interval and test, by owner."""
    interval = bootstrap_rsum(per_image, owners=owners)
    p = sign_flip(_by_owner(per_image, owners)[0])
    return Difference(float(100 * per_image.mean()), interval.low, interval.high, p)


def sign_flip(differences: Float[np.ndarray, " images"], flips: int = REPLICATES) -> float:
    r"""Return the two-sided p-value of a paired difference by a sign-flip test.

    Images of equal absolute difference are interchangeable: how many of them stay positive is
    drawn at once, so that the cost does not grow with the split. The observed order counts as one
    of the flips, so that p is never 0. Where Hoeffding's bound
    :math:`2 \exp(-(\sum d)^2 / 2 \sum d^2)` on the exact p is below what that many flips can show,
    the bound is returned, and nothing drawn.

    Source:
        Phipson and Smyth, Permutation P-values Should Never Be Zero, 2010; Hoeffding, Probability
        Inequalities for Sums of Bounded Random Variables, 1963.
    """
    sizes, counts = np.unique(np.abs(np.round(differences, 9)), return_counts=True)
    sizes, counts = sizes[sizes > 0], counts[sizes > 0]
    if not len(sizes):
        return 1.0
    observed = abs(float(differences.sum()))
    bound = 2 * exp(-(observed**2) / (2 * float(counts @ sizes**2)))
    if bound < 1 / (flips + 1):
        return bound
    generator = np.random.Generator(np.random.PCG64(SEED))
    sums = np.zeros(flips)
    for size, count in zip(sizes, counts, strict=True):
        sums += size * (2 * generator.binomial(count, 0.5, size=flips) - count)
    as_far = int(np.count_nonzero(np.abs(sums) >= observed - 1e-6))
    return (as_far + 1) / (flips + 1)


def mcnemar(first_only: int, second_only: int) -> float:
    """Return McNemar's exact two-sided p-value: twice the smaller binomial tail, at most 1.

    Source:
        McNemar, Note on the Sampling Error of the Difference between Correlated Proportions, 1947.
    """
    total, fewer = first_only + second_only, min(first_only, second_only)
    ways = tail = 1
    for chosen in range(fewer):
        ways = ways * (total - chosen) // (chosen + 1)
        tail += ways
    return float(min(1.0, 2 * tail / 2**total))


def holm(p_values: Float[np.ndarray, " tests"]) -> Float[np.ndarray, " tests"]:
    """Adjust p-values to control the family-wise error rate.

    Source:
        Holm, A Simple Sequentially Rejective Multiple Test Procedure, 1979.
    """
    order = np.argsort(p_values, kind="stable")
    stepped = p_values[order] * np.arange(len(p_values), 0, -1)
    adjusted = np.empty_like(stepped)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(stepped))
    return adjusted


def resampled(
    per_image: Float[np.ndarray, "entries images"], replicates: int = 1000
) -> Float[np.ndarray, "entries draws"]:
    """Return the sum of each entry's hits on resampled test sets, the same ones for all entries.

    An entry's sums do not depend on the other entries; they are whole multiples of 2^-20 hits.
    """
    drawn = _counts(per_image.shape[1], replicates).astype(np.float64)
    # Equal entries must get equal sums whatever order a matrix product adds in.
    return np.asarray(np.rint(per_image @ drawn * 2**20))


def intervals_of(sums: Float[np.ndarray, "entries draws"]) -> Integer[np.ndarray, "entries 2"]:
    """Return the first and last place that each entry holds in 95 % of the draws, by its sums.

    Places are counted from 1. Among ties the best place counts for the low end and the worst for
    the high end.

    Source:
        Hall and Miller, Using the Bootstrap to Quantify the Authority of an Empirical Ranking,
        2009.
    """
    draws = pd.DataFrame(-sums)
    places = zip((2.5, 97.5), (draws.rank(method="min"), draws.rank(method="max")), strict=True)
    ends = [np.percentile(at, q, axis=1, method="inverted_cdf") for q, at in places]
    return np.stack(ends, axis=1).astype(np.int64)


@lru_cache(8)
def _counts(images: int, replicates: int) -> Integer[np.ndarray, "images draws"]:
    """Draw how often each image occurs in each resampled test set."""
    generator = np.random.Generator(np.random.PCG64(SEED))
    shares = np.full(images, 1 / images)
    parts = [
        generator.multinomial(images, shares, size=part).astype(np.uint16)
        for part in _parts(replicates, images)
    ]
    return np.ascontiguousarray(np.concatenate(parts).T)


def p_against_first(
    per_image: Float[np.ndarray, "entries images"],
) -> Float[np.ndarray, " entries"]:
    """Return how each entry compares with the best: p of sign-flip tests, adjusted by Holm.

    The best entry's own p is 1. With more than about 500 entries the flips cannot show a p that
    survives Holm's adjustment.
    """
    first = int(np.argmax(np.rint(per_image.sum(axis=1) * 2**20)))
    others = np.delete(np.arange(len(per_image)), first)
    found = np.ones(len(per_image))
    p_values = [sign_flip(per_image[first] - per_image[other]) for other in others]
    found[others] = holm(np.array(p_values, np.float64))
    return found


def tied_with_first(per_image: Float[np.ndarray, "entries images"]) -> Bool[np.ndarray, " entries"]:
    """Return which entries are not significantly below the best, by :func:`p_against_first`."""
    return np.asarray(p_against_first(per_image) > SIGNIFICANT)


def _discordance(first: Ranks, second: Ranks, cutoff: int) -> Discordance:
    own, other = expected_hits(first, cutoff), expected_hits(second, cutoff)
    sure = ((own == 0) | (own == 1)) & ((other == 0) | (other == 1))
    first_only = int(np.count_nonzero(sure & (own > other)))
    second_only = int(np.count_nonzero(sure & (own < other)))
    undecided = int(np.count_nonzero(~sure))
    return Discordance(first_only, second_only, undecided, mcnemar(first_only, second_only))


def _parts(replicates: int, width: int) -> Iterator[int]:
    """Divide replicates so that their draws, ``width`` each, stay bounded in memory."""
    most = max(1, _DRAWN_AT_ONCE // width)
    for start in range(0, replicates, most):
        yield min(most, replicates - start)
