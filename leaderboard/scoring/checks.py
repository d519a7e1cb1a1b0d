"""Checks for matrices that use the order of rows, or the whole test set, as no method could."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import exp, log, log1p, sqrt
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Integer

from leaderboard.metrics import CUTOFFS, Labels, Matrix, Ranks, explained_ties
from leaderboard.scoring.content import LARGEST, Content, Square, own_square, read_content
from leaderboard.scoring.evenness import even_power
from leaderboard.scoring.result import Flag
from leaderboard.scoring.wording import Texts, texts_of, words_read

Scorer = Callable[[Labels, Labels], Float[np.ndarray, " pairs"]]
Declared = Literal["none", "per_query", "transductive"]

CODES = (
    "identity-like",
    "unexplained-pairs",
    "index-local",
    "words-unread",
    "duplicates-apart",
    "one-to-one",
    "normalised-both-ways",
    "normalised-rows",
    "normalised-columns",
    "low-precision",
    "many-ties",
)
"""Codes of the flags of a matrix."""

OF_LISTS = (
    "unexplained-pairs",
    "index-local",
    "words-unread",
    "duplicates-apart",
    "one-to-one",
)
"""Those of them that ranked lists can have too."""

LEAST_QUERIES = 50
"""Number of images below which nothing is checked: chance alone could raise any flag."""

IDENTITY_GAP = 8.0
"""``identity-like``: how far own pairs may lie above the best wrong ones of a typical row, in
units of those above the middle of the row, in a large matrix: :func:`identity_limit`."""

DIMENSIONS = 600.0
"""``unexplained-pairs``: effective dimensions of honest embeddings, at the most."""

OWN_PAIRS = 1.0
"""``unexplained-pairs``: deviations above the rest from which own pairs stand out."""

WORDS_READ = 0.05
"""``words-unread``: correlation with shared words that captions' similarities have at the least."""

DUPLICATES_Z = 5.0
"""``duplicates-apart``: standard errors by which own captions may stand above identical ones."""

FAR_TREND = 0.8
"""``index-local``: correlation of the similarity of far rows with their nearness."""

NEAR_BAND = 1.0
"""``index-local``: how far above the rest nearly all direct neighbours may lie, in its
deviations."""

NEAR_UNEXPLAINED = 20.0
"""``index-local``: deviations that rows side by side may lie above the rest, in units of how far
they agree elsewhere."""

SPREAD_OF_FIRSTS = 0.5
"""``one-to-one``: 0 where the first candidates repeat as often as by chance, 1 where they never
do."""

EVEN_SUMS = 0.3
"""``normalised-rows``, ``-columns``: spread of the sums, in units of what unrelated values would
give. Both ways the limit depends on size and dimensions: :func:`even_limit`."""

UNIT_NORM = 3e-4
"""``normalised-both-ways``: distance from 1 of the largest singular value of the square roots; ten
times as much of a matrix stored as float16, whose roundings move it."""

DISTINCT_VALUES = 0.5
"""``low-precision``: share of distinct values in a sample of at most 2^16."""

TIED_QUERIES = 0.2
"""``many-ties``: share of queries whose right candidate has an equal."""

NEAR_IDENTICAL = 0.999
"""Rank correlation from which two entries count as near-identical."""

KEPT_RANKS = 0.4
"""``rebuilt-lists``: share of ranks 2 to 10 of an earlier entry that another one may repeat."""

LEAST_KEPT = 20
"""Number of such ranks below which they are not compared."""

GAP_Z = 4.0
"""Standard errors by which test may exceed dev."""

_SAMPLE = 2**16
_BLOCKS = 20
_ROUNDS = 30
_LANCZOS_STEPS = 40
_ROUNDING = 1e-5
_TINY = 1e-300
_HUGE = 2.0**300
_STEPS_APART = 16


@dataclass(frozen=True, slots=True)
class SplitScore:
    """Score of an entry on one split."""

    rsum: float
    deviation: float
    n_pairs: int


@dataclass(frozen=True, slots=True)
class _Part:
    """Some images with their captions, and statistics shared by the checks.

    Attributes:
        own: similarity of each caption with its image.
        rest: similarities, with own pairs, and captions equal to them, replaced by the mean of the
            row's others; ``rows``, ``columns`` and ``spread`` are its means and its standard
            deviation.
        ends: smallest and largest similarity, own pairs included.
    """

    owner: Integer[np.ndarray, " captions"]
    own: Float[np.ndarray, " captions"]
    rest: Float[np.ndarray, "images captions"]
    rows: Float[np.ndarray, " images"]
    columns: Float[np.ndarray, " captions"]
    spread: float
    ends: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a split, and of the work, besides the similarities.

    Attributes:
        owner: row of each caption's image.
        images: labels of images, equal for identical ones. None if all differ.
        captions: the same of captions.
        declared: post-processing that the submission declares.
        external: whether it declares data from elsewhere, as of raw text or screenshots, that may
            tell captions of equal tokens apart.
        texts: tokens of each caption; empty if unknown.
    """

    owner: Labels
    images: Labels | None = None
    captions: Labels | None = None
    declared: Declared = "none"
    external: bool = False
    texts: Texts = ()


def check_matrix(
    similarity: Matrix, known: Known, hits_at_1: tuple[float, float]
) -> tuple[Flag, ...]:
    """Flag forged, normalised, assigned and coarse similarities.

    Own pairs, neighbours and words are checked by 1,000 images, the rest in the whole.
    Declared post-processing gives no flag of its kind: ``per_query`` explains a matrix normalised
    one way, ``transductive`` also one normalised both ways or assigned one to one. A matrix stored
    as float16 says so itself (:attr:`Result.precision`) and is not flagged as coarse. Expected
    hits at 1 are numbers of image queries and of caption queries.
    """
    if len(similarity) < LEAST_QUERIES:
        return ()
    half = similarity.dtype.itemsize == 2
    similarity = _scaled(similarity)
    views = [_view(similarity, known, first) for first in window_starts(len(similarity))]
    flags = [flag for view in views for flag in view.flags]
    flags.append(duplicates_apart(lambda rows, captions: similarity[rows, captions], known))
    if known.declared != "transductive":
        flags.append(one_to_one(tuple(similarity.argmax(axis=axis) for axis in (1, 0)), hits_at_1))
        unit = UNIT_NORM * (10 if half else 1)
        flags.append(_normalised(similarity, known, views[0], unit))
    if not half:
        flags += [_low_precision(similarity, known), _many_ties(similarity, known)]
    return first_of_each(flags)


def first_of_each(flags: Iterable[Flag | None]) -> tuple[Flag, ...]:
    """Keep the first flag of each code."""
    found: dict[str, Flag] = {}
    for flag in flags:
        if flag is not None:
            found.setdefault(flag.code, flag)
    return tuple(found.values())


def window_starts(images: int) -> list[int]:
    """Return the first rows of windows of :data:`LARGEST` images that together hold all of them."""
    last = max(0, images - LARGEST)
    starts = np.linspace(0, last, -(-images // LARGEST))
    return [int(start) for start in starts]


@dataclass(frozen=True, slots=True)
class _View:
    """What some images in a row show: flags, and what checks of the whole matrix need of them."""

    flags: tuple[Flag | None, ...]
    rows: Float[np.ndarray, " images"]
    columns: Float[np.ndarray, " captions"]
    spread: float
    content: Content | None


def _view(similarity: Matrix, known: Known, first: int) -> _View:
    part = _read_part(similarity, known, first)
    square = own_square(similarity, known.owner, first)
    content = read_content(square)
    flags = (
        _identity_like(part),
        _unexplained_pairs(content),
        _index_local(part, content),
        words_unread(square, content, known, first),
    )
    return _View(flags, part.rows, part.columns, part.spread, content)


def words_unread(square: Square, content: Content | None, known: Known, first: int) -> Flag | None:
    """Look for own pairs that stand out though captions of the same words are as any others.

    Args:
        square: normal scores of images from row ``first`` on.
        content: what they say otherwise.
        known: of the split.
        first: first row.
    """
    if not known.texts or content is None or content.own < OWN_PAIRS:
        return None
    texts = texts_of(known.texts, known.owner, first, len(square))
    read = words_read(square, texts)
    if read is None or read >= WORDS_READ:
        return None
    return make_flag(
        "words-unread",
        f"own pairs lie {content.own:.1f} deviations above the rest, but captions that share words"
        f" are no more alike than others: correlation {read:.3f}, expected {WORDS_READ:g} at"
        " least",
    )


def _scaled(similarity: Matrix) -> Matrix:
    """Return float32, or float64 scaled by a power of two where its squares would overflow."""
    if similarity.dtype.itemsize <= 4:
        return np.ascontiguousarray(similarity, np.float32)
    largest = np.abs(similarity).max()
    if largest and not 1 / _HUGE < largest < _HUGE:
        similarity = np.ldexp(similarity, -int(np.frexp(largest)[1]))
    return np.ascontiguousarray(similarity, np.float64)


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


def _read_part(similarity: Matrix, known: Known, first: int) -> _Part:
    rest = similarity[first : first + LARGEST].astype(np.float64)
    captions = np.flatnonzero((known.owner >= first) & (known.owner < first + len(rest)))
    owner = known.owner[captions] - first
    if len(captions) < rest.shape[1]:
        rest = rest[:, captions]
    ends = float(rest.min()), float(rest.max())
    own = rest[owner, np.arange(len(captions))]
    right = _right(owner, None if known.captions is None else known.captions[captions])
    others = len(captions) - np.count_nonzero(right, axis=1)
    means = rest.sum(axis=1, where=~right) / np.maximum(others, 1)
    np.copyto(rest, means[:, None], where=right)
    rows, columns = rest.mean(axis=1), rest.mean(axis=0)
    return _Part(owner, own, rest, rows, columns, float(rest.std()), ends)


def _right(owner: Labels, texts: Labels | None) -> Bool[np.ndarray, "images captions"]:
    """Return which captions are an image's own, or have the same tokens as one of them."""
    images = int(owner.max()) + 1
    if texts is None:
        return np.asarray(np.arange(images)[:, None] == owner)
    _, texts = np.unique(texts, return_inverse=True)
    said = np.zeros((images, int(texts.max()) + 1), np.bool_)
    said[owner, texts] = True
    return said[:, texts]


_FAR = 1e6


def _identity_like(part: _Part) -> Flag | None:
    """Compare own pairs with the best wrong one of a typical image."""
    gap, limit = _own_gap(part), identity_limit(len(part.rest))
    if gap <= limit:
        return None
    figure = (
        "infinitely"
        if gap == float("inf")
        else f"{gap:.0f} times"
        if gap < _FAR
        else f"{gap:.0e} times"
    )
    return make_flag(
        "identity-like",
        f"own pairs are {figure} as far above the best wrong ones as those above the rest,"
        f" expected {limit:.1f} times at most: the rest is nearly constant",
    )


def identity_limit(rows: int) -> float:
    """Return the gap from which own pairs are flagged: the best of few wrong ones is not far up."""
    return IDENTITY_GAP + 100 / rows


def _own_gap(part: _Part) -> float:
    """Return the gap between own pairs and the best wrong ones, in units of that to the rest.

    An exponential's or a sigmoid's values lie far apart by nature. Where logarithms (log odds if
    they end at 1) spread the rest about evenly to both sides, the gap of those counts if lesser.
    So does that of vectors scaled to one length: few long ones make few large products.
    """
    chosen = _some(part.rest.shape[1], 64)
    some = part.rest[:, chosen]
    middle, best = float(np.median(some)), float(np.median(part.rest.max(axis=1)))
    own = float(np.percentile(part.own, 90))
    rest, own_even = _of_equal_lengths(part)
    even = (np.median(rest[:, chosen]), np.median(rest.max(axis=1)), np.percentile(own_even, 90))
    gap = min(_ratio(middle, best, own), _ratio(*map(float, even)))
    positive = some[some > 0]
    if best > 0 and part.ends[0] >= 0 and len(positive):
        odds = bool(part.ends[1] <= 1)
        least, half = np.quantile(positive, [1 / part.rest.shape[1], 0.5]).tolist()
        low, centre, high = (_log(value, odds=odds) for value in (least, half, best))
        if high - centre > (centre - low) / 2:
            return min(gap, _ratio(centre, high, _log(own, odds=odds)))
    return gap


def _of_equal_lengths(
    part: _Part,
) -> tuple[Float[np.ndarray, "images captions"], Float[np.ndarray, " captions"]]:
    """Divide centred similarities, the rest and own pairs, by the size of their row and column."""
    middle = part.rest.mean(dtype=np.float64).astype(part.rest.dtype)
    rest = part.rest - middle
    rows, columns = (np.sqrt(np.square(rest).mean(axis=axis)) for axis in (1, 0))
    rows[rows == 0], columns[columns == 0] = 1, 1
    own = (part.own - middle) / (rows[part.owner] * columns)
    return rest / (rows[:, None] * columns), own


def _some(count: int, most: int) -> Labels:
    """Choose places at random, always the same: a fixed step could meet a pattern of the matrix."""
    return np.sort(np.random.default_rng(0).permutation(count)[:most])


def _ratio(middle: float, best: float, own: float) -> float:
    if own <= best:
        return 0.0
    return (own - best) / (best - middle) if best > middle else float("inf")


def _log(value: float, *, odds: bool) -> float:
    return log(max(value, _TINY)) - (log1p(-min(value, 1 - 2.0**-24)) if odds else 0.0)


def _unexplained_pairs(content: Content | None) -> Flag | None:
    """Look for own pairs that stand out though images and captions share nothing else."""
    if content is None or content.own < OWN_PAIRS:
        return None
    needed, independent = content.dimensions_needed(), content.dimensions()
    if max(needed, independent) <= DIMENSIONS:
        return None
    return make_flag(
        "unexplained-pairs",
        f"own pairs lie {content.own:.1f} deviations above the rest, which says nothing of them:"
        f" embeddings would need {needed:.0f} dimensions and have {independent:.0f} at the least,"
        f" expected {DIMENSIONS:g} at most",
    )


def duplicates_apart(score: Scorer, known: Known) -> Flag | None:
    """Look for own captions, or images, that stand above identical ones, which no score can.

    Of captions of the same tokens each is compared with the next one, in the rows of both
    images; scores of the captions alone are equal, or lean to the same side in both rows. Images
    of the same regions are compared likewise, with each one's first caption. The scorer tells how
    similar images and captions of these rows are.
    """
    if known.external:
        return None
    owner = known.owner
    _, first = np.unique(owner, return_index=True)
    ways = (
        (known.captions, owner, known.images, score),
        (known.images, first, known.captions, lambda own, rows: score(rows, own)),
    )
    for labels, own, others, scorer in ways:
        signs = _signs_apart(labels, own, others, scorer)
        lost_or_won = int(np.count_nonzero(signs))
        z = float(signs.sum()) / sqrt(lost_or_won) if lost_or_won else 0.0
        if z > DUPLICATES_Z:
            break
    else:
        return None
    won = int(np.count_nonzero(signs > 0))
    kind, cause = ("captions", "tokens") if labels is known.captions else ("images", "regions")
    return make_flag(
        "duplicates-apart",
        f"of {kind} with the same {cause} the own one stands above the other {won} times and below"
        f" it {lost_or_won - won} times, {z:.1f} standard errors from even, expected"
        f" {DUPLICATES_Z:g} at most: they cannot be told apart, their place can",
    )


def _signs_apart(
    labels: Labels | None, own: Labels, others: Labels | None, score: Scorer
) -> Integer[np.ndarray, " comparisons"]:
    """Compare each item with the next one of its label, in the queries of both: 1 if it wins.

    ``own`` is the query of each item, ``others`` labels of queries: equal ones are left out.
    """
    if labels is None:
        return np.zeros(0, np.int64)
    order = np.argsort(labels, kind="stable")
    same = labels[order[1:]] == labels[order[:-1]]
    first, second = order[:-1][same], order[1:][same]
    other = own[first] != own[second]
    if others is not None:
        other &= others[own[first]] != others[own[second]]
    first, second = first[other], second[other]
    found = [
        np.sign(score(own[one], one) - score(own[one], twin))
        for one, twin in ((first, second), (second, first))
    ]
    return np.concatenate(found).astype(np.int64)


def _index_local(part: _Part, content: Content | None) -> Flag | None:
    """Look for similarity that falls with the distance of rows, own pairs left out.

    Rows and columns are centred. Sites whose pages stand side by side make neighbours alike too;
    so far rows are compared in blocks, those on the diagonal left out, and of direct neighbours
    nearly all must be alike, as they are not where one site ends and the next begins. A split of
    fewer than five sites can still be flagged. Or neighbours are alike on the average while they
    have nothing in common with regard to far rows, as pages of one site have.
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
    trend = far_trend(part.rest, part.owner)
    beside = content.near_unexplained() if content else 0.0
    if band <= NEAR_BAND and trend <= FAR_TREND and beside <= NEAR_UNEXPLAINED:
        return None
    return make_flag(
        "index-local",
        f"similarity depends on how near two rows are: correlation {trend:.2f} between far rows,"
        f" at most {FAR_TREND:g} expected; direct neighbours at least {band:.1f} deviations above"
        f" the rest, at most {NEAR_BAND:g}; on the average {beside:.0f} times what they have in"
        f" common, at most {NEAR_UNEXPLAINED:g}",
    )


def far_trend(rest: Matrix, owner: Labels) -> float:
    """Correlate means of blocks off the diagonal with how near their rows stand."""
    images, captions = rest.shape
    starts = np.linspace(0, images, _BLOCKS, endpoint=False).astype(np.int64)
    blocks = np.add.reduceat(rest, starts, axis=0, dtype=np.float64)
    blocks /= np.diff(starts, append=images)[:, None]
    block = np.searchsorted(starts, owner, side="right") - 1
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


def one_to_one(firsts: Sequence[Labels], hits_at_1: tuple[float, float]) -> Flag | None:
    """Compare how many different candidates come first with what R@1 and chance explain.

    Firsts are those of image queries, then of caption queries.
    """
    spread = max(
        _spread_of_firsts(first, len(other), hits)
        for first, other, hits in zip(firsts, firsts[::-1], hits_at_1, strict=True)
    )
    if spread <= SPREAD_OF_FIRSTS:
        return None
    return make_flag(
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


def even_limit(rows: int, content: Content | None) -> float:
    """Return how even sums must be to be flagged: four standard errors from unrelated values.

    They are fewer than the rows where similarities have few dimensions.
    """
    inverse = max(content.inverse_dimensions if content else 0.0, 1 / rows)
    return max(0.06, min(0.75, 1 - 4 * sqrt(inverse / 2)))


def _normalised(similarity: Matrix, known: Known, view: _View, unit: float) -> Flag | None:
    if not view.spread:
        return None
    content = view.content
    rows, columns = _evenness(similarity, view)
    norm = _norm_of_roots(similarity, unit)
    limit = even_limit(len(similarity), content)
    power = even_power(similarity, known.owner, view.spread)
    if (
        max(rows, columns) < limit
        or power < even_limit(min(len(similarity), 192), content)
        or (norm is not None and abs(norm - 1) < unit)
    ):
        return make_flag(
            "normalised-both-ways",
            "similarities, or a power or exponential of them, are normalised over rows and columns,"
            f" as by Sinkhorn, CSLS or a dual softmax: sums vary {rows:.2g} and {columns:.2g} times"
            f" as much as those of unrelated values, of a power {power:.2g}, expected"
            f" {limit:.2g} at least" + (f"; norm of their roots {norm:.4f}, not 1" if norm else ""),
        )
    limit = min(limit, EVEN_SUMS)
    if known.declared == "per_query" or min(rows, columns) >= limit:
        return None
    over, found = ("row", rows) if rows < columns else ("column", columns)
    return make_flag(
        f"normalised-{over}s",
        f"the sums of {over}s vary {found:.2g} times as much as those of unrelated values, expected"
        f" {limit:.2g} at least: similarities are normalised within each {over}",
    )


def _evenness(similarity: Matrix, view: _View) -> tuple[float, float]:
    """Return the spread of row and column sums relative to that of unrelated values."""
    found = []
    for axis, means in ((1, view.rows), (0, view.columns)):
        sums = similarity.mean(axis=axis, dtype=np.float64)
        within = view.spread**2 - float(means.var())
        unrelated = sqrt(within / similarity.shape[axis]) if within > 0 else 0.0
        found.append(float(sums.std()) / unrelated if unrelated else 1.0)
    return found[0], found[1]


def _norm_of_roots(values: Matrix, unit: float) -> float | None:
    r"""Return the largest singular value of the square roots, by Lanczos' method.

    A dual softmax is :math:`p_{ij} = e^{2 x_{ij}} / (r_i c_j)` with the row sums r and the column
    sums c of :math:`e^x`, so that :math:`\sum_j \sqrt{p_{ij}} \sqrt{c_j} = \sqrt{r_i}` and the
    same along columns: a pair of positive singular vectors, whose value is 1. It has no sum of a
    row or column above 1, nor a negative value: then None is returned.
    """
    if values.min() < 0 or max(values.sum(axis).max() for axis in (0, 1)) > 1 + unit:
        return None
    roots = np.sqrt(values)
    vector, scale = np.ones(values.shape[1]), 0.0
    basis = np.zeros((0, values.shape[1]))
    for _ in range(min(_LANCZOS_STEPS, *values.shape)):
        for _ in range(2):
            vector -= basis.T @ (basis @ vector)
        length = float(np.linalg.norm(vector))
        if length <= _ROUNDING * scale:
            break
        basis = np.vstack([basis, vector / length])
        vector = (roots.T @ (roots @ basis[-1].astype(values.dtype))).astype(np.float64)
        scale = float(np.linalg.norm(vector))
    return float(np.linalg.norm(roots @ basis.T.astype(values.dtype), ord=2))


def _low_precision(similarity: Matrix, known: Known) -> Flag | None:
    """Count distinct values; those that identical items, or the end of float32, make equal, apart.

    A sigmoid near 1 has equals because the next float32 lies 6e-8 away; rounded values are farther
    from each other.
    """
    distinct, counts = _sampled(_one_of_each(similarity, known))
    if len(distinct) < 2:
        return None
    kept = counts[(counts == 1) | ~_crowded(distinct, distinct)]
    share = len(kept) / max(1, int(kept.sum()))
    if share >= DISTINCT_VALUES:
        return None
    return make_flag(
        "low-precision",
        f"{100 * share:.0f} % of {int(counts.sum())} sampled values are distinct, expected"
        f" {100 * DISTINCT_VALUES:.0f} % at least: rounded, or computed in half precision",
    )


def _sampled(similarity: Matrix) -> tuple[Float[np.ndarray, " distinct"], Labels]:
    """Return distinct values of a sample, ascending, and how often each occurs."""
    values = similarity.reshape(-1)
    return np.unique(values[:: max(1, values.size // _SAMPLE)], return_counts=True)


def _crowded(
    values: Float[np.ndarray, " values"], distinct: Float[np.ndarray, " distinct"]
) -> Bool[np.ndarray, " values"]:
    """Return which values have another one so near that float32 holds hardly any between them."""
    place = np.searchsorted(distinct, values)
    below = values - distinct[np.maximum(place - 1, 0)]
    here = distinct[np.minimum(place, len(distinct) - 1)]
    after = distinct[np.minimum(place + 1, len(distinct) - 1)] - values
    room = _STEPS_APART * np.spacing(np.abs(values).astype(np.float32))
    gaps = (below, np.abs(here - values), after)
    return np.asarray(np.any([(gap > 0) & (gap <= room) for gap in gaps], axis=0))


def _one_of_each(similarity: Matrix, known: Known) -> Matrix:
    """Return the first of the rows of identical images and of the columns of identical captions."""
    for axis, labels in enumerate((known.images, known.captions)):
        if labels is not None:
            _, first = np.unique(labels, return_index=True)
            similarity = similarity.take(np.sort(first), axis=axis)
    return similarity


def _many_ties(similarity: Matrix, known: Known) -> Flag | None:
    """Count queries whose right candidate has an equal among the wrong ones.

    Identical captions and images are left out, and what a sigmoid near 1 makes equal in float32.
    """
    images, captions = similarity.shape
    owner, own = known.owner, similarity[known.owner, np.arange(captions)]
    best = np.full(images, -np.inf, own.dtype)
    np.maximum.at(best, owner, own)
    right = np.bincount(owner, own == best[owner], images)
    rows = np.count_nonzero(similarity == best[:, None], axis=1) - right
    columns = np.count_nonzero(similarity == own, axis=0) - 1
    if known.images is not None or known.captions is not None:
        images_of, texts_of = (
            np.arange(size) if given is None else given
            for given, size in zip((known.images, known.captions), similarity.shape, strict=True)
        )
        forced = explained_ties(similarity, images_of, texts_of, owner)
        rows, columns = rows - forced[0], columns - forced[1]
    distinct, _ = _sampled(similarity)
    rows = np.where(_crowded(best, distinct), 0, rows)
    columns = np.where(_crowded(own, distinct), 0, columns)
    share = (np.count_nonzero(rows > 0) + np.count_nonzero(columns > 0)) / (images + captions)
    if share <= TIED_QUERIES:
        return None
    return make_flag(
        "many-ties",
        f"the right candidate of {100 * share:.0f} % of queries has an equal, expected"
        f" {100 * TIED_QUERIES:.0f} % at most",
    )


def middles(ranks: tuple[Ranks, Ranks]) -> Float[np.ndarray, " queries"]:
    """Return all ranks of an entry, from 0, ties as the middle of their places."""
    return np.concatenate([way.greater + way.equal / 2 for way in ranks])


def first_places(ranks: tuple[Ranks, Ranks]) -> Integer[np.ndarray, " queries"]:
    """Return twice the rank of each query, from 0, ties as the middle; 20 beyond the first ten."""
    found = [np.minimum(2 * way.greater + way.equal, 2 * max(CUTOFFS)) for way in ranks]
    return np.concatenate(found).astype(np.int8)


def kept(
    places: Integer[np.ndarray, "entries queries"], other: Integer[np.ndarray, " queries"]
) -> tuple[Float[np.ndarray, " entries"], Float[np.ndarray, " entries"]]:
    """Return how many of the ranks 2 to 10 two entries share, each entry with the other one.

    First ranks say little: good methods agree on those. Both are as :func:`first_places` returns
    them.

    Returns:
        The shares of each entry's ranks that the other has too, and the shares of the other's that
        each entry has too. Shares of fewer than :data:`LEAST_KEPT` ranks are 0.
    """
    same = ((places == other) & _middling(other)).sum(axis=1)
    counts = _middling(places).sum(axis=1), np.full(len(places), _middling(other).sum())
    first, second = (
        np.where(count >= LEAST_KEPT, same / np.maximum(count, 1), 0.0) for count in counts
    )
    return first, second


def _middling(places: Integer[np.ndarray, "*_"]) -> Bool[np.ndarray, "*_"]:
    return np.asarray((places >= 2) & (places < 2 * max(CUTOFFS)))


def centred_places(values: Float[np.ndarray, " queries"]) -> Float[np.ndarray, " queries"]:
    """Return the place of each value less the mean place, ties as the middle of their places."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    places = np.cumsum(counts) - (counts - 1) / 2
    return np.asarray(places[inverse] - (len(values) + 1) / 2)


def make_flag(code: str, message: str) -> Flag:
    """Make a flag."""
    return Flag(code=code, message=message)
