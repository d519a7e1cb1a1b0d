"""Compute the recalls of a similarity matrix in both directions; ties count by expectation."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from math import comb, floor, log10, sqrt
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Integer

CUTOFFS = (1, 5, 10)
"""The K of R@K."""

RECALLS = tuple(f"{way}_r{cutoff}" for way in ("i2t", "t2i") for cutoff in CUTOFFS)
"""Names of the six recalls, in the order of every table."""

MAX_TIE_WIDTH = 5.0
"""Maximum number of rSum points that ties may decide in a ranked result."""

_NDCG_CUTOFF = 10
_BLOCK_ROWS = 128
_BLOCK_BYTES = 2**20

Labels: TypeAlias = Integer[np.ndarray, " _"]
Matrix: TypeAlias = Float[np.ndarray, "_ _"]


@dataclass(frozen=True, slots=True)
class Ranks:
    """Rank of the best right candidate of each query, as counts of other candidates.

    Attributes:
        greater: number of candidates with a strictly higher similarity than the best right one.
        equal: number of wrong candidates with exactly its similarity.
        later: number of candidates in ``equal`` that come after every right one in the gallery.
        right: number of right candidates with its similarity, 1 or more.
    """

    greater: Integer[np.ndarray, " queries"]
    equal: Integer[np.ndarray, " queries"]
    later: Integer[np.ndarray, " queries"]
    right: Integer[np.ndarray, " queries"]

    def take(self, queries: slice | Labels) -> "Ranks":
        """Return the ranks of some queries."""
        return Ranks(*(getattr(self, field.name)[queries] for field in fields(Ranks)))


@dataclass(frozen=True, slots=True)
class OneWay:
    """Metrics of one direction.

    Attributes:
        hits: exact expected number of queries with a right candidate among the first K, by K.
        most: number of hits if every tie were won (optimistic bound), by K.
        least: number of hits if every tie were lost (pessimistic bound), by K.
        median_rank: median rank, from 1; a half-integer median is rounded down, as is usual in the
            field. A tied query has the middle of its places as rank.
        mean_rank: mean rank, from 1; a tied query has the middle of its places as rank.
        mrr: mean reciprocal rank in [0, 1], ties by expectation.
        ndcg: mean nDCG@10 in [0, 1], every right candidate of relevance 1, ties by expectation.
            None if only the rank of the best right candidate is known.
    """

    n_queries: int
    hits: dict[int, Fraction]
    most: dict[int, int]
    least: dict[int, int]
    median_rank: float
    mean_rank: float
    mrr: float
    ndcg: float | None = None

    def recall(self, cutoff: int) -> float:
        """R@K in percent, rounded once from the exact value."""
        return float(100 * self.hits[cutoff] / self.n_queries)

    def optimistic(self, cutoff: int) -> float:
        """R@K in percent if every tie were won."""
        return float(Fraction(100 * self.most[cutoff], self.n_queries))

    def pessimistic(self, cutoff: int) -> float:
        """R@K in percent if every tie were lost."""
        return float(Fraction(100 * self.least[cutoff], self.n_queries))


@dataclass(frozen=True, slots=True)
class Recalls:
    """Metrics of both directions.

    Attributes:
        rsum: sum of the six recalls, 0 to 600.
        rsum_optimistic: rSum if every tie were won.
        rsum_pessimistic: rSum if every tie were lost.
        rsum_argsort: rSum by a stable ``argsort(...)[::-1]``, for comparison with old logs: the
            later of two tied candidates ranks first.
        per_image: hits of each image, as :func:`hits_per_image` returns them.
        ranks: ranks of image queries and of caption queries.
    """

    i2t: OneWay
    t2i: OneWay
    rsum: float
    rsum_optimistic: float
    rsum_pessimistic: float
    rsum_argsort: float
    per_image: Float[np.ndarray, " images"]
    ranks: tuple[Ranks, Ranks]


def recalls(similarity: Matrix, owner: Labels | None = None) -> Recalls:
    """Compute the recalls, rank statistics and rSum of a similarity matrix.

    Args:
        similarity: images x captions; a higher value means more similar. It is read in blocks of
            rows, so a memory-mapped file need not fit into memory.
        owner: row of each caption's image; by default row i and column i are a pair. The rank of
            an image is the rank of its best caption.

    Raises:
        ValueError: If the matrix is empty, not square (without ``owner``) or not finite, or if an
            image has no caption.

    Source:
        Ties: McSherry and Najork, Computing Information Retrieval Performance Measures
        Efficiently in the Presence of Tied Scores, ECIR 2008.

    Differs:
        The field ranks by an unstable ``argsort``, so its recalls under ties depend on the
        machine. Here a recall is the mean over all orders of tied candidates.
    """
    ranks = count_ranks(similarity, owner)
    return summarise(*ranks, owner, count_own_captions(similarity, owner, ranks[0]))


def count_ranks(similarity: Matrix, owner: Labels | None = None) -> tuple[Ranks, Ranks]:
    """Count the candidates above and tied with the right one of each row (i2t) and column (t2i)."""
    images, captions = similarity.shape
    owner = _check_owner((images, captions), owner)
    paired, best = _paired_values(similarity, owner)
    tied = paired == best[owner]
    last = np.zeros(images, np.int64)
    np.maximum.at(last, owner[tied], np.flatnonzero(tied))
    right = np.bincount(owner[tied], minlength=images).astype(np.int64)
    return _count(similarity, (best, last, right), (paired, owner, np.ones(captions, np.int64)))


def count_own_captions(similarity: Matrix, owner: Labels | None, best: Ranks) -> Ranks:
    """Count the rank of every caption when its own image is the query.

    If each image has one caption, these are the ranks ``best`` (i2t of :func:`count_ranks`), in
    the order of the captions.
    """
    images, captions = similarity.shape
    if owner is None:
        return best
    if images == captions:
        return best.take(owner)
    order = np.argsort(owner, kind="stable")
    counts = np.bincount(owner, minlength=images)
    ranks = Ranks(*np.zeros((4, captions), np.int64))
    for line, columns in zip(similarity, np.split(order, np.cumsum(counts)[:-1]), strict=True):
        values = line[columns, None]
        ranks.greater[columns] = (line > values).sum(axis=1)
        ranks.right[columns] = (line[columns] == values).sum(axis=1)
        ranks.equal[columns] = (line == values).sum(axis=1) - ranks.right[columns]
    return ranks


def _paired_values(
    similarity: Matrix, owner: Labels
) -> tuple[Float[np.ndarray, " captions"], Float[np.ndarray, " images"]]:
    """Return each caption's similarity to its image, and each image's highest one."""
    paired = np.asarray(similarity[owner, np.arange(len(owner))])
    best = np.full(len(similarity), -np.inf, paired.dtype)
    with np.errstate(invalid="ignore"):  # _count refuses values that are not finite
        np.maximum.at(best, owner, paired)
    return paired, best


def count_duplicate_aware(
    similarity: Matrix, image_labels: Labels, caption_labels: Labels, owner: Labels
) -> tuple[Ranks, Ranks]:
    """Count ranks with duplicates of the right caption or image as right candidates too.

    Identical images, and identical captions, have equal labels. :attr:`Ranks.later` is left at 0.

    Raises:
        ValueError: If a value is not finite.
    """
    labels = image_labels, caption_labels, owner
    images, captions = similarity.shape
    best_row = np.full(images, -np.inf, similarity.dtype)
    best_column = np.full(captions, -np.inf, similarity.dtype)
    for span, same_image, same_text in _duplicates(*labels):
        values = np.where(same_image | same_text, similarity[span], -np.inf)
        best_row[span] = values.max(axis=1)
        np.maximum(best_column, values.max(axis=0), out=best_column)
    right_row, right_column = np.zeros(images, np.int64), np.zeros(captions, np.int64)
    for span, same_image, same_text in _duplicates(*labels):
        right, values = same_image | same_text, similarity[span]
        right_row[span] = (right & (values == best_row[span, None])).sum(axis=1)
        right_column += (right & (values == best_column)).sum(axis=0)
    last_row, last_column = np.full(images, captions), np.full(captions, images)
    rows, columns = (best_row, last_row, right_row), (best_column, last_column, right_column)
    return _count(similarity, rows, columns)


def explained_ties(
    similarity: Matrix, image_labels: Labels, caption_labels: Labels, owner: Labels
) -> tuple[Integer[np.ndarray, " images"], Integer[np.ndarray, " captions"]]:
    """Count the ties that no scorer can avoid: with an identical caption (i2t) or image (t2i).

    Labels are as in :func:`count_duplicate_aware`.

    Returns:
        The number of such ties among :attr:`Ranks.equal` of each query; i2t, then t2i.
    """
    paired, best = _paired_values(similarity, owner)
    i2t, t2i = (np.zeros(n, np.int64) for n in similarity.shape)
    for span, same_image, same_text in _duplicates(image_labels, caption_labels, owner):
        values = similarity[span]
        foreign = owner != np.arange(len(similarity))[span, None]
        i2t[span] = (foreign & same_text & (values == best[span, None])).sum(axis=1)
        t2i += (foreign & same_image & (values == paired)).sum(axis=0)
    return i2t, t2i


def tie_width(ranks: tuple[Ranks, Ranks], explained: tuple[Labels, Labels] | None = None) -> float:
    """Return the rSum points that ties decide: optimistic rSum minus pessimistic rSum.

    ``explained`` is the number of ties of each query to ignore.
    """
    width = Fraction(0)
    for way, ignored in zip(ranks, explained or (0, 0), strict=True):
        for cutoff in CUTOFFS:
            won = way.greater < cutoff
            lost = way.greater + way.equal - ignored >= cutoff
            width += Fraction(100 * int(np.count_nonzero(won & lost)), len(won))
    return float(width)


def steps_of(pairs: int) -> tuple[float, float]:
    """Return the steps to round to in an open blind round: of a recall in percent, and of rSum.

    A step is the number of 1, 2, 5, 10, 20, … nearest to the largest possible standard error, for
    values of 0 to 1 (recall) and 0 to 6 (:func:`hits_per_image`). With 1,000 pairs the steps are 2
    and 10.

    Source:
        Blum and Hardt, The Ladder: A Reliable Leaderboard for Machine Learning Competitions, ICML
        2015, whose step is near one standard error too.
    """
    return _round_number(50 / sqrt(pairs)), _round_number(300 / sqrt(pairs))


def to_step(value: float, step: float) -> float:
    """Return the multiple of a step that is nearest to a value."""
    return round(step * round(value / step), 6)


def _round_number(value: float) -> float:
    unit: float = 10.0 ** floor(log10(value))
    return min((unit, 2 * unit, 5 * unit, 10 * unit), key=lambda step: abs(log10(step / value)))


def summarise(
    i2t: Ranks, t2i: Ranks, owner: Labels | None = None, own_captions: Ranks | None = None
) -> Recalls:
    """Compute the figures of :func:`recalls` from ranks.

    ``own_captions`` are the ranks of :func:`count_own_captions`; without them nDCG is None.
    """
    images, captions = len(i2t.greater), len(t2i.greater)
    first = _one_way(i2t, captions, None if own_captions is None else ndcg(own_captions, owner))
    second = _one_way(t2i, images, None if own_captions is None else ndcg(t2i))

    def rsum(i2t_hits: Iterable[Fraction | int], t2i_hits: Iterable[Fraction | int]) -> float:
        return float(100 * (Fraction(sum(i2t_hits)) / images + Fraction(sum(t2i_hits)) / captions))

    argsort = [_count_below(way.greater + way.later).values() for way in (i2t, t2i)]
    return Recalls(
        first,
        second,
        rsum=rsum(first.hits.values(), second.hits.values()),
        rsum_optimistic=rsum(first.most.values(), second.most.values()),
        rsum_pessimistic=rsum(first.least.values(), second.least.values()),
        rsum_argsort=rsum(*argsort),
        per_image=hits_per_image(i2t, t2i, owner),
        ranks=(i2t, t2i),
    )


def hits_per_image(
    i2t: Ranks, t2i: Ranks, owner: Labels | None = None
) -> Float[np.ndarray, " images"]:
    """Return the expected hits of each image plus the mean of its captions, over all cutoffs.

    A value is 0 to 6; the mean times 100 is rSum.
    """
    images, captions = len(i2t.greater), len(t2i.greater)
    owner = np.arange(captions) if owner is None else owner
    i2t_hits, t2i_hits = (sum(expected_hits(way, k) for k in CUTOFFS) for way in (i2t, t2i))
    per_caption = np.bincount(owner, weights=t2i_hits, minlength=images) * images / captions
    return np.asarray(i2t_hits + per_caption)


def expected_hits(ranks: Ranks, cutoff: int) -> Float[np.ndarray, " queries"]:
    r"""Return the probability, over orders of ties, that a right candidate is among the first K.

    .. math:: 1 - \binom{e}{q} / \binom{e + m}{q}, \quad q = \mathrm{clip}(K - g, 0, e + m)

    With one right candidate (m = 1) this is clip((K − g) / (e + 1), 0, 1).
    """
    places = np.clip(cutoff - ranks.greater, 0, ranks.equal + ranks.right)
    missed = np.ones(len(places))
    for place in range(cutoff):
        wrong = np.maximum(ranks.equal - place, 0)
        left = np.maximum(ranks.equal + ranks.right - place, 1)
        missed = np.where(place < places, missed * (wrong / left), missed)
    return np.asarray(1 - missed)


def fold_recalls(similarity: Matrix, owner: Labels, size: int) -> list[Recalls]:
    """Score consecutive folds of ``size`` images with their captions: MS-COCO's 1K protocol.

    An incomplete last fold is ignored.
    """
    folds = []
    for first in range(0, len(similarity) - size + 1, size):
        columns = np.flatnonzero((owner >= first) & (owner < first + size))
        folds.append(recalls(similarity[first : first + size, columns], owner[columns] - first))
    return folds


def count_within(
    similarity: Matrix, owner: Labels, groups: Sequence[Labels]
) -> tuple[Ranks, Ranks]:
    """Count ranks (i2t, t2i) among the candidates of the query's own group only, group by group.

    A group is the rows of its images; an image may be in several groups, or in none. Captions are
    in the order of their images.
    """
    parts = []
    for rows in groups:
        place = np.full(len(similarity), -1)
        place[rows] = np.arange(len(rows))
        columns = np.flatnonzero(place[owner] >= 0)
        columns = columns[np.argsort(place[owner[columns]], kind="stable")]
        span = slice(int(rows[0]), int(rows[-1]) + 1)
        consecutive = np.array_equal(rows, np.arange(span.start, span.stop))
        block = similarity[span if consecutive else rows]  # a slice is not copied
        parts.append(count_ranks(block[:, columns], place[owner[columns]]))
    i2t, t2i = (
        Ranks(*(np.concatenate([getattr(p, field.name) for p in way]) for field in fields(Ranks)))
        for way in zip(*parts, strict=True)
    )
    return i2t, t2i


def recalls_within(ranks: tuple[Ranks, Ranks], sizes: Sequence[int]) -> list[Recalls]:
    """Compute the recalls of each group, of ``sizes`` images, from :func:`count_within`'s ranks."""
    (i2t, t2i), each = ranks, len(ranks[1].greater) // len(ranks[0].greater)
    groups, first = [], 0
    for size in sizes:
        images = i2t.take(slice(first, first + size))
        captions = t2i.take(slice(first * each, (first + size) * each))
        groups.append(summarise(images, captions, np.arange(size * each) // each))
        first += size
    return groups


def macro_mean(groups: Sequence[Recalls]) -> tuple[list[Fraction], list[Fraction]]:
    """Return the mean share of hits over groups, by cutoff: i2t, then t2i."""
    i2t, t2i = (
        [sum((way.hits[cutoff] / way.n_queries for way in ways), Fraction(0)) / len(groups)
         for cutoff in CUTOFFS]
        for ways in ([group.i2t for group in groups], [group.t2i for group in groups])
    )  # fmt: skip
    return i2t, t2i


def _count_below(ranks: Labels) -> dict[int, int]:
    return {cutoff: int(np.count_nonzero(ranks < cutoff)) for cutoff in CUTOFFS}


def _one_way(ranks: Ranks, n_candidates: int, ndcg: float | None) -> OneWay:
    """Compute the metrics of one direction from the rank of each query."""
    middle = ranks.greater + (ranks.equal + ranks.right + 1) / (ranks.right + 1) - 1
    return OneWay(
        n_queries=len(ranks.greater),
        hits={cutoff: _exact_hits(ranks, cutoff) for cutoff in CUTOFFS},
        most=_count_below(ranks.greater),
        least=_count_below(ranks.greater + ranks.equal),
        median_rank=float(np.floor(np.median(middle)) + 1),
        mean_rank=float(middle.mean() + 1),
        mrr=_mrr(ranks, n_candidates),
        ndcg=ndcg,
    )


def ndcg(ranks: Ranks, owner: Labels | None = None) -> float:
    """Average nDCG@10 over queries and over all orders of ties.

    A right candidate is at each place of its tie equally often, so its expected gain is the mean
    discount of these places.

    Args:
        ranks: rank of every right candidate.
        owner: query of every right candidate; by default each query has one.

    Source:
        McSherry and Najork, ECIR 2008, as in :func:`recalls`.
    """
    gains = np.concatenate([[0.0], np.cumsum(1 / np.log2(np.arange(2, _NDCG_CUTOFF + 2)))])
    tied = ranks.equal + ranks.right
    first, last = (np.minimum(r, _NDCG_CUTOFF) for r in (ranks.greater, ranks.greater + tied))
    owner = np.arange(len(tied)) if owner is None else owner
    counts = np.bincount(owner)
    ideal = gains[np.minimum(counts, _NDCG_CUTOFF)]
    return min(1.0, float(((gains[last] - gains[first]) / tied / ideal[owner]).sum() / len(counts)))


def _mrr(ranks: Ranks, n_candidates: int) -> float:
    """Average 1 / rank of the first right candidate over all orders of ties."""
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, n_candidates + 1))])
    last = ranks.greater + ranks.equal + 1
    mean = (harmonic[last] - harmonic[ranks.greater]) / (ranks.equal + 1)
    several = (ranks.right > 1) & (ranks.equal > 0)
    counts = np.stack([ranks.greater, ranks.equal, ranks.right], axis=1)[several]
    distinct, inverse = np.unique(counts, axis=0, return_inverse=True)
    reciprocals = [_mean_reciprocal(*row) for row in distinct.tolist()]
    mean[several] = np.array(reciprocals)[inverse.reshape(-1)]
    return float(mean.mean())


def _mean_reciprocal(greater: int, wrong: int, right: int) -> float:
    """Average 1 / place of the first of several right candidates tied with wrong ones.

    The first right one is at place q of the tie with probability
    C(wrong + right - q, right - 1) / C(wrong + right, right), computed as a cumulative product.
    """
    places = np.arange(1, wrong + 1)
    left = wrong + right - places
    steps = np.concatenate([[right / (wrong + right)], (left - right + 1) / left])
    return float((np.cumprod(steps) / (greater + np.arange(1, wrong + 2))).sum())


def _exact_hits(ranks: Ranks, cutoff: int) -> Fraction:
    tied = ranks.equal > 0
    hits = Fraction(int(np.count_nonzero(~tied & (ranks.greater < cutoff))))
    if not tied.any():
        return hits
    places = np.clip(cutoff - ranks.greater, 0, ranks.equal + ranks.right)
    ties = np.stack([ranks.equal, ranks.right, places], axis=1)[tied]
    distinct, counts = np.unique(ties, axis=0, return_counts=True)
    for (wrong, right, first), count in zip(distinct.tolist(), counts.tolist(), strict=True):
        hits += count * (1 - Fraction(comb(wrong, first), comb(wrong + right, first)))
    return hits


def _check_owner(shape: tuple[int, int], owner: Labels | None) -> Labels:
    images, captions = shape
    if owner is None:
        if images != captions or images == 0:
            raise ValueError(f"found a matrix {shape}, expected as many images as captions")
        return np.arange(captions)
    if len(owner) != captions or not np.array_equal(np.unique(owner), np.arange(images)):
        expected = f"one for each of {captions} captions, each of {images} images at least once"
        raise ValueError(f"found {len(owner)} owners, expected {expected}")
    return owner


def _duplicates(
    images: Labels, captions: Labels, owner: Labels
) -> Iterator[tuple[slice, Bool[np.ndarray, "_ captions"], Bool[np.ndarray, "_ captions"]]]:
    """Yield slices of rows with masks of the candidates with the same image and same caption."""
    order = np.argsort(owner, kind="stable")
    counts = np.bincount(owner, minlength=len(images))
    firsts = np.cumsum(counts) - counts
    places = np.minimum(np.arange(counts.max()), counts[:, None] - 1)
    captions_of = order[firsts[:, None] + places]  # captions of each image, the last repeated
    step = max(8, 4 * _BLOCK_BYTES // len(captions))
    for start in range(0, len(images), step):
        span = slice(start, start + step)
        same_image = images[span, None] == images[owner]
        same_text = np.zeros_like(same_image)
        for columns in captions_of[span].T:
            same_text |= captions[columns, None] == captions
        yield span, same_image, same_text


Target: TypeAlias = tuple[Float[np.ndarray, " _"], Labels, Labels]


def _count(matrix: Matrix, row_target: Target, column_target: Target) -> tuple[Ranks, Ranks]:
    """Compare each row and each column with its target, in one pass over blocks of rows.

    A target is the value of the right candidates, the place after which equal candidates count as
    later, and the number of right candidates. Columns are summed as bytes, which cannot overflow
    for the number of rows in a block.
    """
    n_rows, n_columns = matrix.shape
    dtype = np.float64 if matrix.dtype.itemsize > 4 else np.float32
    row_values, column_values = row_target[0].astype(dtype), column_target[0].astype(dtype)
    step = min(_BLOCK_ROWS, max(8, _BLOCK_BYTES // (n_columns * np.dtype(dtype).itemsize)))
    rows, columns = (Ranks(*np.zeros((4, n), np.int64)) for n in matrix.shape)
    pairs = np.bincount(np.minimum(column_target[1], n_rows), minlength=n_rows + 1)
    buffer = np.empty((step, n_columns), np.bool_)
    for start in range(0, n_rows, step):
        span = slice(start, min(start + step, n_rows))
        block = np.ascontiguousarray(matrix[span], dtype=dtype)
        mask = buffer[: len(block)]
        if not np.isfinite(block, out=mask).all():
            raise ValueError(f"rows {span.start} to {span.stop - 1}: found a value not finite")
        targets = row_values[span, None]
        rows.greater[span] = _by_row(np.greater(block, targets, out=mask))
        rows.equal[span] = _by_row(np.equal(block, targets, out=mask))
        if rows.equal[span].sum() > len(block):
            later = np.arange(n_columns) > row_target[1][span, None]
            rows.later[span] = _by_row(mask & later)
        columns.greater[:] += _by_column(np.greater(block, column_values, out=mask))
        equal = _by_column(np.equal(block, column_values, out=mask))
        columns.equal[:] += equal
        if equal.sum() > pairs[span].sum():
            later = np.arange(span.start, span.stop)[:, None] > column_target[1]
            columns.later[:] += _by_column(mask & later)
    for ranks, (_, _, right) in ((rows, row_target), (columns, column_target)):
        ranks.equal[:] -= right
        ranks.right[:] = right
    return rows, columns


def _by_row(mask: Bool[np.ndarray, "rows captions"]) -> list[int]:
    return [int(np.count_nonzero(line)) for line in mask]


def _by_column(mask: Bool[np.ndarray, "rows captions"]) -> Integer[np.ndarray, " captions"]:
    return np.asarray(np.add.reduce(mask.view(np.uint8), axis=0, dtype=np.uint8))
