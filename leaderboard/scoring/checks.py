"""Checks for matrices that use the order of rows, or the whole test set, as no method could."""

from dataclasses import dataclass
from math import exp, log, log1p, sqrt
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Integer

from leaderboard.metrics import Labels, Matrix, Ranks
from leaderboard.scoring.result import Flag

Declared = Literal["none", "per_query", "transductive"]

LEAST_QUERIES = 50
"""Number of images below which nothing is checked: chance alone could raise any flag."""

IDENTITY_GAP = 8.0
"""``identity-like``: how far own pairs may lie above the best wrong ones of a typical row, in
units of those above the middle of the row."""

FAR_TREND = 0.8
"""``index-local``: correlation of the similarity of far rows with their nearness."""

NEAR_BAND = 1.0
"""``index-local``: how far above the rest nearly all direct neighbours may lie, in its
deviations."""

SPREAD_OF_FIRSTS = 0.5
"""``one-to-one``: 0 where the first candidates repeat as often as by chance, 1 where they never
do."""

EVEN_SUMS = 0.5
"""``normalised-…``: spread of the sums, in units of what unrelated values would give."""

UNIT_NORM = 3e-3
"""``normalised-both-ways``: distance from 1 of the largest singular value of the square roots."""

DISTINCT_VALUES = 0.5
"""``low-precision``: share of distinct values in a sample of at most 2^16."""

TIED_QUERIES = 0.2
"""``many-ties``: share of queries whose right candidate has an equal."""

NEAR_IDENTICAL = 0.999
"""Rank correlation from which two entries count as near-identical."""

GAP_Z = 4.0
"""Standard errors by which test may exceed dev."""

_SAMPLE = 2**16
_LARGEST = 2000
_BLOCKS = 20
_ROUNDS = 30
_POWERS = 12
_TINY = 1e-300


@dataclass(frozen=True, slots=True)
class SplitScore:
    """Score of an entry on one split."""

    rsum: float
    deviation: float
    n_pairs: int


@dataclass(frozen=True, slots=True)
class _Part:
    """The first images with their captions, and statistics shared by the checks.

    Attributes:
        own: similarity of each caption with its image.
        rest: similarities, with each own pair replaced by the mean of its row's others; ``rows``,
            ``columns`` and ``spread`` are its means and its standard deviation.
        ends: smallest and largest similarity, own pairs included.
    """

    owner: Integer[np.ndarray, " captions"]
    own: Float[np.ndarray, " captions"]
    rest: Float[np.ndarray, "images captions"]
    rows: Float[np.ndarray, " images"]
    columns: Float[np.ndarray, " captions"]
    spread: float
    ends: tuple[float, float]


def check_matrix(
    similarity: Matrix,
    owner: Labels,
    hits_at_1: tuple[float, float],
    declared: Declared,
) -> tuple[Flag, ...]:
    """Flag forged, normalised, assigned and coarse similarities.

    Own pairs and neighbours are checked among the first 2,000 images, the rest in the whole.
    Declared post-processing gives no flag of its kind: ``per_query`` explains a matrix normalised
    one way, ``transductive`` also one normalised both ways or assigned one to one. Expected hits
    at 1 are numbers of image queries and of caption queries.
    """
    if len(similarity) < LEAST_QUERIES:
        return ()
    similarity = np.ascontiguousarray(
        similarity, np.float64 if similarity.dtype.itemsize > 4 else np.float32
    )
    part = _read_part(similarity, owner)
    flags = [_identity_like(part), _index_local(part)]
    if declared != "transductive":
        flags += [_one_to_one(similarity, hits_at_1), _normalised(similarity, part, declared)]
    flags += [_low_precision(similarity), _many_ties(similarity, owner)]
    return tuple(flag for flag in flags if flag is not None)


def near_identical(first: tuple[Ranks, Ranks], second: tuple[Ranks, Ranks]) -> float:
    """Return Spearman's correlation of all ranks, both directions concatenated.

    From :data:`NEAR_IDENTICAL` on, two entries count as near-identical. Ties count as the middle.
    If one of them has all ranks equal it is 1 if they agree, else 0.

    Raises:
        ValueError: If the numbers of queries differ.
    """
    ranks = middles(first), middles(second)
    if len(ranks[0]) != len(ranks[1]):
        raise ValueError(f"found {len(ranks[1])} queries in the second, expected {len(ranks[0])}")
    if np.array_equal(ranks[0], ranks[1]):
        return 1.0
    one, other = (centred_places(values) for values in ranks)
    norm = sqrt(float(one @ one) * float(other @ other))
    return float(one @ other) / norm if norm else 0.0


def dev_test_gap(dev: SplitScore, test: SplitScore) -> float | None:
    """Return by how many standard errors test exceeds dev; flagged beyond :data:`GAP_Z`.

    Recall falls as the gallery grows, by an amount that depends on the method and cannot be
    corrected for. Splits of different size are therefore not compared.

    Returns:
        None if the splits differ in size, or neither has a standard error.
    """
    deviation = sqrt(dev.deviation**2 + test.deviation**2)
    if dev.n_pairs != test.n_pairs or not deviation:
        return None
    return (test.rsum - dev.rsum) / deviation


def _read_part(similarity: Matrix, owner: Labels) -> _Part:
    captions = np.flatnonzero(owner < _LARGEST)
    owner, rest = owner[captions], similarity[:_LARGEST].astype(np.float64)
    if len(captions) < rest.shape[1]:
        rest = rest[:, captions]
    ends = float(rest.min()), float(rest.max())
    places = np.arange(len(captions))
    own = rest[owner, places]
    others = len(captions) - np.bincount(owner)
    total = rest.sum(axis=1) - np.bincount(owner, own)
    rest[owner, places] = (total / np.maximum(others, 1))[owner]
    rows, columns = rest.mean(axis=1), rest.mean(axis=0)
    return _Part(owner, own, rest, rows, columns, float(rest.std()), ends)


def _identity_like(part: _Part) -> Flag | None:
    """Compare own pairs with the best wrong one of a typical image."""
    gap = _own_gap(part)
    if gap <= IDENTITY_GAP:
        return None
    figure = "infinitely" if gap == float("inf") else f"{gap:.0f} times"
    return _flag(
        "identity-like",
        f"own pairs are {figure} as far above the best wrong ones as those above the rest,"
        f" expected {IDENTITY_GAP:g} times at most: the rest is nearly constant",
    )


def _own_gap(part: _Part) -> float:
    """Return the gap between own pairs and the best wrong ones, in units of that to the rest.

    An exponential's or a sigmoid's values lie far apart by nature. Where logarithms (log odds if
    they end at 1) spread the rest about evenly to both sides, the gap of those counts if lesser.
    """
    some = part.rest[:, :: max(1, part.rest.shape[1] // 64)]
    middle, best = float(np.median(some)), float(np.median(part.rest.max(axis=1)))
    own = float(np.percentile(part.own, 90))
    if best > 0 and part.ends[0] >= 0:
        odds = bool(part.ends[1] <= 1)
        least, half = np.quantile(some[some > 0], [1 / part.rest.shape[1], 0.5]).tolist()
        low, centre, high = (_log(value, odds=odds) for value in (least, half, best))
        if high - centre > (centre - low) / 2:
            return min(_ratio(middle, best, own), _ratio(centre, high, _log(own, odds=odds)))
    return _ratio(middle, best, own)


def _ratio(middle: float, best: float, own: float) -> float:
    if own <= best:
        return 0.0
    return (own - best) / (best - middle) if best > middle else float("inf")


def _log(value: float, *, odds: bool) -> float:
    return log(max(value, _TINY)) - (log1p(-min(value, 1 - 2.0**-24)) if odds else 0.0)


def _index_local(part: _Part) -> Flag | None:
    """Look for similarity that falls with the distance of rows, own pairs left out.

    Rows and columns are centred. Sites whose pages stand side by side make neighbours alike too;
    so far rows are compared in blocks, those on the diagonal left out, and of direct neighbours
    nearly all must be alike, as they are not where one site ends and the next begins. A split of
    fewer than five sites can still be flagged.
    """
    if not part.spread:
        return None
    near = []
    for step in (-1, 1):
        row = part.owner + step
        there = np.flatnonzero((row >= 0) & (row < len(part.rest)))
        row = row[there]
        expected = part.rows[row] + part.columns[there] - part.rows.mean()
        near.append((part.rest[row, there] - expected) / part.spread)
    band = float(np.quantile(np.concatenate(near), 0.002))
    trend = _far_trend(part)
    if band <= NEAR_BAND and trend <= FAR_TREND:
        return None
    return _flag(
        "index-local",
        f"similarity depends on how near two rows are: correlation {trend:.2f} between far rows,"
        f" expected {FAR_TREND:g} at most; direct neighbours at least {band:.1f} deviations above"
        f" the rest, expected {NEAR_BAND:g} at most",
    )


def _far_trend(part: _Part) -> float:
    """Correlate means of blocks off the diagonal with how near their rows stand."""
    images, captions = part.rest.shape
    starts = np.linspace(0, images, _BLOCKS, endpoint=False).astype(np.int64)
    blocks = np.add.reduceat(part.rest, starts, axis=0, dtype=np.float64)
    blocks /= np.diff(starts, append=images)[:, None]
    block = np.searchsorted(starts, part.owner, side="right") - 1
    pooled = np.zeros((_BLOCKS, _BLOCKS))
    np.add.at(pooled.T, block, blocks.T)
    pooled /= np.bincount(block, minlength=_BLOCKS)
    apart = np.abs(np.subtract.outer(np.arange(_BLOCKS), np.arange(_BLOCKS)))
    far = apart > 0
    found, expected = (_centred_where(values, far) for values in (pooled, -apart.astype(float)))
    norm = sqrt(float((found**2).sum() * (expected**2).sum()))
    return float((found * expected).sum()) / norm if norm > 1e-12 * captions else 0.0


def _centred_where(values: Matrix, where: Bool[np.ndarray, "_ _"]) -> Matrix:
    """Subtract row and column means over the chosen places; the others become 0."""
    centred = np.where(where, values, 0.0)
    for _ in range(_ROUNDS):
        for axis in (0, 1):
            mean = centred.sum(axis=axis, keepdims=True) / where.sum(axis=axis, keepdims=True)
            centred = np.where(where, centred - mean, 0.0)
    return centred


def _one_to_one(similarity: Matrix, hits_at_1: tuple[float, float]) -> Flag | None:
    """Compare how many different candidates come first with what R@1 and chance explain."""
    spread = max(
        _spread_of_firsts(similarity.argmax(axis=axis), size, hits)
        for axis, size, hits in zip((1, 0), similarity.shape[::-1], hits_at_1, strict=True)
    )
    if spread <= SPREAD_OF_FIRSTS:
        return None
    return _flag(
        "one-to-one",
        f"of the candidates that R@1 does not explain, {100 * spread:.0f} % less than by chance"
        f" come first twice, expected {100 * SPREAD_OF_FIRSTS:.0f} % at most: as if each were"
        " given to one query only",
    )


def _spread_of_firsts(
    first: Integer[np.ndarray, " queries"], candidates: int, hits: float
) -> float:
    """Return 0 if wrong queries choose by chance, 1 if no two choose the same candidate."""
    queries = len(first)
    wrong = queries - hits
    chance = hits + max(0.0, candidates - hits) * (1 - exp(-wrong / candidates))
    most = min(queries, candidates)
    if most - chance < 0.05 * most:
        return 0.0
    return (len(np.unique(first)) - chance) / (most - chance)


def _normalised(similarity: Matrix, part: _Part, declared: Declared) -> Flag | None:
    rows, columns = _evenness(similarity, part)
    norm = _norm_of_roots(similarity)
    if max(rows, columns) < EVEN_SUMS or (norm is not None and abs(norm - 1) < UNIT_NORM):
        return _flag(
            "normalised-both-ways",
            "similarities are normalised over rows and over columns, as by Sinkhorn or a dual"
            f" softmax: their sums vary {rows:.2g} and {columns:.2g} times as much as those of"
            f" unrelated values, expected {EVEN_SUMS:g} at least"
            + (f"; norm of their roots {norm:.4f}, expected other than 1" if norm else ""),
        )
    if declared == "per_query" or min(rows, columns) >= EVEN_SUMS:
        return None
    over, found = ("row", rows) if rows < columns else ("column", columns)
    return _flag(
        f"normalised-{over}s",
        f"the sums of {over}s vary {found:.2g} times as much as those of unrelated values, expected"
        f" {EVEN_SUMS:g} at least: similarities are normalised within each {over}",
    )


def _evenness(similarity: Matrix, part: _Part) -> tuple[float, float]:
    """Return the spread of row and column sums relative to that of unrelated values."""
    found = []
    for axis, means in ((1, part.rows), (0, part.columns)):
        sums = similarity.mean(axis=axis, dtype=np.float64)
        within = part.spread**2 - float(means.var())
        unrelated = sqrt(within / similarity.shape[axis]) if within > 0 else 0.0
        found.append(float(sums.std()) / unrelated if unrelated else 1.0)
    return found[0], found[1]


def _norm_of_roots(values: Matrix) -> float | None:
    r"""Return the largest singular value of the square roots; None if a value is outside [0, 1].

    A dual softmax is :math:`p_{ij} = e^{2 x_{ij}} / (r_i c_j)` with the row sums r and the column
    sums c of :math:`e^x`, so that :math:`\sum_j \sqrt{p_{ij}} \sqrt{c_j} = \sqrt{r_i}` and the
    same along columns: a pair of positive singular vectors, whose value is 1.
    """
    if values.min() < 0 or values.max() > 1 + UNIT_NORM:
        return None
    roots = np.sqrt(values)
    vector = np.ones(values.shape[1], values.dtype)
    powers = []
    for _ in range(_POWERS):
        vector /= np.linalg.norm(vector) or 1
        powers.append(vector)
        vector = roots.T @ (roots @ vector)
    basis, _ = np.linalg.qr(np.stack(powers, axis=1).astype(np.float64))
    return float(np.linalg.norm(roots @ basis.astype(values.dtype), ord=2))


def _low_precision(similarity: Matrix) -> Flag | None:
    values = similarity.reshape(-1)
    sample = values[:: max(1, values.size // _SAMPLE)]
    share = len(np.unique(sample)) / len(sample)
    if share >= DISTINCT_VALUES:
        return None
    return _flag(
        "low-precision",
        f"{100 * share:.0f} % of {len(sample)} sampled values are distinct, expected"
        f" {100 * DISTINCT_VALUES:.0f} % at least: rounded, or computed in half precision",
    )


def _many_ties(similarity: Matrix, owner: Labels) -> Flag | None:
    """Count queries whose right candidate has an equal among the wrong ones."""
    images, captions = similarity.shape
    own = similarity[owner, np.arange(captions)]
    best = np.full(images, -np.inf, own.dtype)
    np.maximum.at(best, owner, own)
    right = np.bincount(owner, own == best[owner], images)
    rows = np.count_nonzero(similarity == best[:, None], axis=1) > right
    columns = np.count_nonzero(similarity == own, axis=0) > 1
    share = (int(rows.sum()) + int(columns.sum())) / (images + captions)
    if share <= TIED_QUERIES:
        return None
    return _flag(
        "many-ties",
        f"the right candidate of {100 * share:.0f} % of queries has an equal, expected"
        f" {100 * TIED_QUERIES:.0f} % at most",
    )


def middles(ranks: tuple[Ranks, Ranks]) -> Float[np.ndarray, " queries"]:
    """Return all ranks of an entry, from 0, ties as the middle of their places."""
    return np.concatenate([way.greater + way.equal / 2 for way in ranks])


def centred_places(values: Float[np.ndarray, " queries"]) -> Float[np.ndarray, " queries"]:
    """Return the place of each value less the mean place, ties as the middle of their places."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    places = np.cumsum(counts) - (counts - 1) / 2
    return np.asarray(places[inverse] - (len(values) + 1) / 2)


def _flag(code: str, message: str) -> Flag:
    return Flag(code=code, message=message)
