"""Intervals and significance tests of scores, over the choice of test pairs."""

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
"""Number of bootstrap resamples, and of flips of a sign-flip test."""

SEED = 20240805
SIGNIFICANT = 0.05
_MAX_DRAWS = 2**22
"""Maximum number of random numbers in memory."""


class Bootstrap(NamedTuple):
    """95 % interval and standard error of rSum."""

    low: float
    high: float
    deviation: float


def recall_interval(hits: float, n_queries: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a recall, in percent."""
    low, high = wilson(hits, n_queries)
    return 100 * low, 100 * high


def clustered_interval(hits: Float[np.ndarray, " queries"], owners: Labels) -> tuple[float, float]:
    """Return the 95 % interval of a recall in percent, for hits that cluster by owner."""
    low, high = clustered_wilson(hits, owners)
    return 100 * low, 100 * high


def bootstrap_rsum(
    per_image: Float[np.ndarray, " pairs"],
    replicates: int = REPLICATES,
    owners: Labels | None = None,
) -> Bootstrap:
    """Bootstrap rSum over pairs, given their :func:`leaderboard.metrics.hits_per_image`.

    The gallery, and so every rank, stays fixed. Both directions of a pair are correlated and are
    resampled together. Pairs with equal hits are interchangeable, so only the number of times each
    value occurs is drawn. With ``owners``, whole owners are resampled, since their pairs are
    correlated.

    Source:
        Efron, Bootstrap Methods: Another Look at the Jackknife, 1979; percentile interval. By
        owner: Davison and Hinkley, Bootstrap Methods and Their Application, 1997, section 3.8.
    """
    distinct, counts = np.unique(_sum_by_owner(per_image, owners), axis=1, return_counts=True)
    values, sizes = np.ascontiguousarray(distinct)
    generator = np.random.Generator(np.random.PCG64(SEED))
    total = int(counts.sum())
    draws = []
    for part in _batch_sizes(replicates, len(values)):
        drawn = generator.multinomial(total, counts / total, size=part)
        draws.append(100 * (drawn @ values) / (drawn @ sizes))
    rsums = np.concatenate(draws)
    low, high = np.percentile(rsums, [2.5, 97.5])
    return Bootstrap(float(low), float(high), float(rsums.std()))


def _sum_by_owner(
    per_image: Float[np.ndarray, " pairs"], owners: Labels | None
) -> Float[np.ndarray, "2 owners"]:
    """Return the sum of hits and the number of pairs of each owner; by default one pair each."""
    if owners is None:
        return np.stack([per_image, np.ones(len(per_image))])
    numbers = np.unique(owners, return_inverse=True)[1]
    return np.stack([np.bincount(numbers, per_image), np.bincount(numbers)])


def sum_deviation(recalls: Sequence[float], n_queries: int) -> float:
    """Return the standard error of the sum of a direction's recalls, from the recalls alone.

    The cutoffs are nested (a hit at 1 is a hit at 5), so the recalls determine the covariances.
    """
    shares = [recall / 100 for recall in recalls]
    variance = sum(share * (1 - share) for share in shares)
    variance += sum(2 * share * (1 - later) for share, later in combinations(shares, 2))
    return 100 * sqrt(variance / n_queries)


@dataclass(frozen=True, slots=True)
class Discordance:
    """Number of queries that only one of two entries hits, at one cutoff.

    Attributes:
        first_only: number of queries that the first entry hits and the second misses.
        second_only: number of queries that the second entry hits and the first misses.
        undecided: number of queries where a tie decides; left out of the test.
        p: McNemar's exact two-sided p-value.
    """

    first_only: int
    second_only: int
    undecided: int
    p: float


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference in rSum points, its 95 % bootstrap interval, and p of a paired sign-flip test."""

    difference: float
    low: float
    high: float
    p: float


@dataclass(frozen=True, slots=True)
class Comparison(Difference):
    """Comparison of two entries on the same queries: first minus second, in rSum points.

    Interval and p are over images, or over owners if they are known. McNemar's test is by cutoff.
    Its p is somewhat too small: it treats the pairs of an owner and the captions of an image as
    independent.

    Attributes:
        within_site: difference within sites, tested over sites; None if the results have no such
            ranks.
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
    """Compare the ranks (i2t, t2i) of two entries on the same queries."""
    per_image = hits_per_image(*first, owner) - hits_per_image(*second, owner)
    overall = difference_of(per_image, site_owners)
    i2t, t2i = (
        {cutoff: _discordance(one, other, cutoff) for cutoff in CUTOFFS}
        for one, other in zip(first, second, strict=True)
    )
    return Comparison(overall.difference, overall.low, overall.high, overall.p, i2t, t2i)


def difference_of(
    per_image: Float[np.ndarray, " pairs"], owners: Labels | None = None
) -> Difference:
    """Return the rSum difference of two entries from their paired differences of hits."""
    interval = bootstrap_rsum(per_image, owners=owners)
    p = sign_flip(_sum_by_owner(per_image, owners)[0])
    return Difference(float(100 * per_image.mean()), interval.low, interval.high, p)


def sign_flip(differences: Float[np.ndarray, " images"], flips: int = REPLICATES) -> float:
    r"""Return the two-sided p-value of a paired difference by a sign-flip test.

    Images with equal absolute difference are interchangeable, so only the number that stay positive
    is drawn. The observed signs count as one flip, so p is never 0. If Hoeffding's bound
    :math:`2 \exp(-(\sum d)^2 / 2 \sum d^2)` on the exact p is below the smallest p that the flips
    can give, the bound is returned.

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
    extreme = int(np.count_nonzero(np.abs(sums) >= observed - 1e-6))
    return (extreme + 1) / (flips + 1)


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
    """Return each entry's sum of hits on resampled test sets, as multiples of 2^-20 hits.

    All entries get the same test sets, and their sums do not depend on the other entries.
    """
    counts = _resample_counts(per_image.shape[1], replicates).astype(np.float64)
    # Rounded: equal entries must get equal sums in any order of addition of the matrix product.
    return np.asarray(np.rint(per_image @ counts * 2**20))


def intervals_of(sums: Float[np.ndarray, "entries draws"]) -> Integer[np.ndarray, "entries 2"]:
    """Return the 95 % interval of each entry's place, from 1, over resampled test sets.

    Tied entries have the best of their places at the low end and the worst at the high end.

    Source:
        Hall and Miller, Using the Bootstrap to Quantify the Authority of an Empirical Ranking,
        2009.
    """
    draws = pd.DataFrame(-sums)
    places = zip((2.5, 97.5), (draws.rank(method="min"), draws.rank(method="max")), strict=True)
    ends = [np.percentile(ranks, q, axis=1, method="inverted_cdf") for q, ranks in places]
    return np.stack(ends, axis=1).astype(np.int64)


@lru_cache(8)
def _resample_counts(images: int, replicates: int) -> Integer[np.ndarray, "images draws"]:
    """Draw the number of times each image occurs in each resampled test set."""
    generator = np.random.Generator(np.random.PCG64(SEED))
    shares = np.full(images, 1 / images)
    batches = [
        generator.multinomial(images, shares, size=size).astype(np.uint16)
        for size in _batch_sizes(replicates, images)
    ]
    return np.ascontiguousarray(np.concatenate(batches).T)


def p_against_first(
    per_image: Float[np.ndarray, "entries images"],
) -> Float[np.ndarray, " entries"]:
    """Return each entry's p against the best one: sign-flip tests, adjusted by Holm.

    The p of the best entry is 1. With more than about 500 entries the number of flips is too small
    for a p that stays significant after the adjustment.
    """
    first = int(np.argmax(np.rint(per_image.sum(axis=1) * 2**20)))
    others = np.delete(np.arange(len(per_image)), first)
    p_values = np.ones(len(per_image))
    tests = [sign_flip(per_image[first] - per_image[other]) for other in others]
    p_values[others] = holm(np.array(tests, np.float64))
    return p_values


def tied_with_first(per_image: Float[np.ndarray, "entries images"]) -> Bool[np.ndarray, " entries"]:
    """Return the entries that :func:`p_against_first` does not show to be below the best."""
    return np.asarray(p_against_first(per_image) > SIGNIFICANT)


def _discordance(first: Ranks, second: Ranks, cutoff: int) -> Discordance:
    one, other = expected_hits(first, cutoff), expected_hits(second, cutoff)
    sure = ((one == 0) | (one == 1)) & ((other == 0) | (other == 1))
    first_only = int(np.count_nonzero(sure & (one > other)))
    second_only = int(np.count_nonzero(sure & (one < other)))
    undecided = int(np.count_nonzero(~sure))
    return Discordance(first_only, second_only, undecided, mcnemar(first_only, second_only))


def _batch_sizes(replicates: int, width: int) -> Iterator[int]:
    """Divide replicates of ``width`` draws each into batches that fit into memory."""
    size = max(1, _MAX_DRAWS // width)
    for start in range(0, replicates, size):
        yield min(size, replicates - start)
