"""Recall both ways from one pass over a similarity matrix, where a tie counts by expectation."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import comb

import numpy as np
from jaxtyping import Bool, Float, Integer

CUTOFFS = (1, 5, 10)
"""The K of R@K."""

_BLOCK_ROWS = 128
_BLOCK_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Ranks:
    """Where the right candidate of each query stands: integers, so exact for any block size.

    Attributes:
        greater: Candidates with a strictly higher similarity than the right one.
        equal: Wrong candidates with exactly the same similarity.
        later: Those among ``equal`` that come later in the gallery.
        right: Right candidates at that similarity: 1, or more where duplicates count as right.
    """

    greater: Integer[np.ndarray, " pairs"]
    equal: Integer[np.ndarray, " pairs"]
    later: Integer[np.ndarray, " pairs"]
    right: Integer[np.ndarray, " pairs"]


@dataclass(frozen=True, slots=True)
class OneWay:
    """The figures of one direction.

    Attributes:
        n_pairs: Queries, and candidates for each.
        hits: Expected number of queries with a right candidate in the first K, exactly.
        most: The same if every tie were won (the optimistic bound).
        least: The same if every tie were lost (the pessimistic bound).
        median_rank: From 1; the half-integer median of an even number is rounded down, as the
            field does. Ties stand in the middle of their places.
        mean_rank: From 1, ties in the middle of their places.
        mrr: Mean reciprocal rank in [0, 1], ties by expectation.
    """

    n_pairs: int
    hits: dict[int, Fraction]
    most: dict[int, int]
    least: dict[int, int]
    median_rank: float
    mean_rank: float
    mrr: float

    def recall(self, cutoff: int) -> float:
        """R@K in percent, rounded once from the exact value."""
        return float(100 * self.hits[cutoff] / self.n_pairs)

    def optimistic(self, cutoff: int) -> float:
        """R@K in percent if every tie were won."""
        return float(Fraction(100 * self.most[cutoff], self.n_pairs))

    def pessimistic(self, cutoff: int) -> float:
        """R@K in percent if every tie were lost."""
        return float(Fraction(100 * self.least[cutoff], self.n_pairs))


@dataclass(frozen=True, slots=True)
class Recalls:
    """The figures of both directions.

    Attributes:
        i2t: Queries are images.
        t2i: Queries are captions.
        rsum: The six recalls added up, 0 to 600.
        rsum_optimistic: If every tie were won.
        rsum_pessimistic: If every tie were lost.
        rsum_argsort: What a stable ``argsort(...)[::-1]`` gives, for comparison with old logs: a
            tie goes to the candidate that comes later.
        per_pair: Expected hits of each pair over both directions and all cutoffs, 0 to 6; their
            mean times 100 is ``rsum``.
        ranks: Of images as queries, and of captions.
    """

    i2t: OneWay
    t2i: OneWay
    rsum: float
    rsum_optimistic: float
    rsum_pessimistic: float
    rsum_argsort: float
    per_pair: Float[np.ndarray, " pairs"]
    ranks: tuple[Ranks, Ranks]


def recalls(similarity: Float[np.ndarray, "images captions"]) -> Recalls:
    """Score a similarity matrix whose row i and column i belong together.

    Args:
        similarity: Rows are images, columns are captions; higher is more alike.

    Raises:
        ValueError: If it is empty or not square, or a value is not finite.

    Source:
        Ties: McSherry and Najork, Computing Information Retrieval Performance Measures
        Efficiently in the Presence of Tied Scores, ECIR 2008.

    Differs:
        The field ranks by an unstable ``argsort``, so that its value under ties depends on the
        machine; this is the mean over all orders of the tied.
    """
    return summarise(*count_ranks(similarity))


@dataclass(frozen=True, slots=True)
class OwnerRecalls:
    """The figures of a matrix with any number of captions an image, ties by expectation.

    Attributes:
        i2t: Percent of images with a caption of their own in the first K, by K.
        t2i: Percent of captions with their image in the first K.
        rsum: The six added up, 0 to 600; rounded once from the exact value.
    """

    i2t: dict[int, float]
    t2i: dict[int, float]
    rsum: float


def recalls_by_owner(
    similarity: Float[np.ndarray, "images captions"], owner: Integer[np.ndarray, " captions"]
) -> OwnerRecalls:
    """Score a similarity matrix whose caption j belongs to image ``owner[j]``.

    An image's rank is that of its best own caption. With one caption an image, in order, the
    figures are those of :func:`recalls`.

    Args:
        similarity: Rows are images, columns are captions; higher is more alike.
        owner: Row of each caption's image; every image has a caption.

    Raises:
        ValueError: If an image has no caption, an owner is no row, or a value is not finite.
    """
    exact = [
        {cutoff: _exact_hits(ranks, cutoff) / len(ranks.greater) for cutoff in CUTOFFS}
        for ranks in count_by_owner(similarity, owner)
    ]
    i2t, t2i = ({cutoff: float(100 * share) for cutoff, share in way.items()} for way in exact)
    total = sum((share for way in exact for share in way.values()), Fraction(0))
    return OwnerRecalls(i2t, t2i, rsum=float(100 * total))


def count_by_owner(
    similarity: Float[np.ndarray, "images captions"], owner: Integer[np.ndarray, " captions"]
) -> tuple[Ranks, Ranks]:
    """Count what stands above and beside each image's best own caption, and each caption's image.

    Args:
        similarity: Rows are images, columns are captions.
        owner: Row of each caption's image.

    Raises:
        ValueError: If an image has no caption, an owner is no row, or a value is not finite.
    """
    images, captions = similarity.shape
    if len(owner) != captions or not np.array_equal(np.unique(owner), np.arange(images)):
        raise ValueError(
            f"found {len(owner)} owners, {len(np.unique(owner))} of them different, expected one "
            f"for each of {captions} captions and every one of {images} images among them"
        )
    own = similarity[owner, np.arange(captions)]
    best = np.full(images, -np.inf, dtype=own.dtype)
    with np.errstate(invalid="ignore"):  # what is not finite is refused by _count
        np.maximum.at(best, owner, own)
    right = np.bincount(owner, weights=own == best[owner], minlength=images).astype(np.int64)
    rows, columns = _count(similarity, best, own)
    return (
        Ranks(rows.greater, rows.equal - right, np.zeros(images, np.int64), right),
        Ranks(columns.greater, columns.equal - 1, columns.later, np.ones(captions, np.int64)),
    )


def count_ranks(similarity: Float[np.ndarray, "images captions"]) -> tuple[Ranks, Ranks]:
    """Count what stands above and beside each pair, by row (i2t) and by column (t2i).

    Raises:
        ValueError: If the matrix is empty or not square, or a value is not finite.
    """
    _check_square(similarity)
    diagonal = np.array(np.diagonal(similarity))
    rows, columns = _count(similarity, diagonal, diagonal)
    one = np.ones(len(similarity), np.int64)
    return (
        Ranks(rows.greater, rows.equal - 1, rows.later, one),
        Ranks(columns.greater, columns.equal - 1, columns.later, one),
    )


def count_duplicate_aware(
    similarity: Float[np.ndarray, "images captions"],
    image_labels: Integer[np.ndarray, " pairs"],
    caption_labels: Integer[np.ndarray, " pairs"],
) -> tuple[Ranks, Ranks]:
    """Count ranks where every pair of an identical caption or an identical image is right too.

    The order of ties is not counted here (:attr:`Ranks.later` is 0).

    Args:
        similarity: Rows are images, columns are captions.
        image_labels: Equal for identical images.
        caption_labels: Equal for identical captions.

    Raises:
        ValueError: If the matrix is empty or not square, or a value is not finite.
    """
    _check_square(similarity)
    both = _labels_of_pairs(image_labels, caption_labels)
    best_row = np.array(np.diagonal(similarity))
    best_column = best_row.copy()
    for labels in (image_labels, caption_labels):
        for rows, columns in _blocks_of_equals(labels):
            part = similarity[np.ix_(rows, columns)]
            best_row[rows] = np.maximum(best_row[rows], part.max(axis=1))
            best_column[columns] = np.maximum(best_column[columns], part.max(axis=0))
    own_row = (np.diagonal(similarity) == best_row).astype(np.int64)
    own_column = (np.diagonal(similarity) == best_column).astype(np.int64)
    right_row, right_column = own_row.copy(), own_column.copy()
    for sign, labels in ((1, image_labels), (1, caption_labels), (-1, both)):
        for rows, columns in _blocks_of_equals(labels):
            part = similarity[np.ix_(rows, columns)]
            others = (part == best_row[rows, None]).sum(axis=1) - own_row[rows]
            right_row[rows] += sign * others
            others = (part == best_column[columns]).sum(axis=0)
            right_column[columns] += sign * others
            right_column[rows] -= sign * own_column[rows]
    by_row, by_column = _count(similarity, best_row, best_column)
    unordered = np.zeros(len(similarity), np.int64)
    return (
        Ranks(by_row.greater, by_row.equal - right_row, unordered, right_row),
        Ranks(by_column.greater, by_column.equal - right_column, unordered, right_column),
    )


def explained_ties(
    similarity: Float[np.ndarray, "images captions"],
    image_labels: Integer[np.ndarray, " pairs"],
    caption_labels: Integer[np.ndarray, " pairs"],
) -> tuple[Integer[np.ndarray, " pairs"], Integer[np.ndarray, " pairs"]]:
    """Count the ties that no scorer can avoid: with an identical caption (i2t) or image (t2i).

    Args:
        similarity: Rows are images, columns are captions.
        image_labels: Equal for identical images.
        caption_labels: Equal for identical captions.

    Returns:
        For each query, how many of its :attr:`Ranks.equal` are of that kind; i2t, then t2i.
    """
    diagonal = np.diagonal(similarity)
    i2t = np.zeros(len(similarity), np.int64)
    t2i = np.zeros(len(similarity), np.int64)
    for rows, columns in _blocks_of_equals(caption_labels):
        i2t[rows] += (similarity[np.ix_(rows, columns)] == diagonal[rows, None]).sum(axis=1) - 1
    for rows, columns in _blocks_of_equals(image_labels):
        t2i[columns] += (similarity[np.ix_(rows, columns)] == diagonal[columns]).sum(axis=0)
        t2i[rows] -= 1
    return i2t, t2i


def tie_width(
    ranks: tuple[Ranks, Ranks],
    explained: tuple[Integer[np.ndarray, " pairs"], Integer[np.ndarray, " pairs"]] | None = None,
) -> float:
    """How many rSum points ties decide: the optimistic value less the pessimistic one.

    Args:
        ranks: Of images as queries, and of captions.
        explained: Ties to leave out of account, per query of either direction.
    """
    n_pairs = len(ranks[0].greater)
    undecided = 0
    for way, forgiven in zip(ranks, explained or (0, 0), strict=True):
        for cutoff in CUTOFFS:
            won = way.greater < cutoff
            lost = way.greater + way.equal - forgiven >= cutoff
            undecided += int(np.count_nonzero(won & lost))
    return float(Fraction(100 * undecided, n_pairs))


def summarise(i2t: Ranks, t2i: Ranks) -> Recalls:
    """Turn ranks into recalls, rank statistics and rSum."""
    ways = _one_way(i2t), _one_way(t2i)
    n_pairs = len(i2t.greater)
    order = [way.greater + way.later for way in (i2t, t2i)]
    argsort = sum(int(np.count_nonzero(rank < k)) for rank in order for k in CUTOFFS)
    per_pair = np.zeros(n_pairs)
    for way in (i2t, t2i):
        for cutoff in CUTOFFS:
            per_pair += expected_hits(way, cutoff)
    return Recalls(
        *ways,
        rsum=_percent(sum((h for way in ways for h in way.hits.values()), Fraction(0)), n_pairs),
        rsum_optimistic=_percent(sum(h for way in ways for h in way.most.values()), n_pairs),
        rsum_pessimistic=_percent(sum(h for way in ways for h in way.least.values()), n_pairs),
        rsum_argsort=_percent(argsort, n_pairs),
        per_pair=per_pair,
        ranks=(i2t, t2i),
    )


def expected_hits(ranks: Ranks, cutoff: int) -> Float[np.ndarray, " pairs"]:
    r"""Give each query's chance, over all orders of the tied, of a right candidate in the first K.

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


def _percent(hits: Fraction | int, n_pairs: int) -> float:
    return float(100 * Fraction(hits) / n_pairs)


def _one_way(ranks: Ranks) -> OneWay:
    n_pairs = len(ranks.greater)
    middle = ranks.greater + ranks.equal / 2
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, n_pairs + 1))])
    last = ranks.greater + ranks.equal + 1
    return OneWay(
        n_pairs=n_pairs,
        hits={cutoff: _exact_hits(ranks, cutoff) for cutoff in CUTOFFS},
        most={cutoff: int(np.count_nonzero(ranks.greater < cutoff)) for cutoff in CUTOFFS},
        least={
            cutoff: int(np.count_nonzero(ranks.greater + ranks.equal < cutoff))
            for cutoff in CUTOFFS
        },
        median_rank=float(np.floor(np.median(middle)) + 1),
        mean_rank=float(middle.mean() + 1),
        mrr=float(np.mean((harmonic[last] - harmonic[ranks.greater]) / (ranks.equal + 1))),
    )


def _exact_hits(ranks: Ranks, cutoff: int) -> Fraction:
    tied = ranks.equal > 0
    hits = Fraction(int(np.count_nonzero(~tied & (ranks.greater < cutoff))))
    if not tied.any():
        return hits
    places = np.clip(cutoff - ranks.greater, 0, ranks.equal + ranks.right)
    kinds, counts = np.unique(
        np.stack([ranks.equal, ranks.right, places], axis=1)[tied], axis=0, return_counts=True
    )
    for (wrong, right, first), count in zip(kinds.tolist(), counts.tolist(), strict=True):
        hits += count * (1 - Fraction(comb(wrong, first), comb(wrong + right, first)))
    return hits


def _check_square(similarity: Float[np.ndarray, "images captions"]) -> None:
    if similarity.shape[0] != similarity.shape[1] or similarity.shape[0] == 0:
        raise ValueError(f"found a matrix {similarity.shape}, expected as many images as captions")


@dataclass(frozen=True, slots=True)
class _Counts:
    greater: Integer[np.ndarray, " pairs"]
    equal: Integer[np.ndarray, " pairs"]
    later: Integer[np.ndarray, " pairs"]


def _count(
    similarity: Float[np.ndarray, "images captions"],
    row_target: Float[np.ndarray, " images"],
    column_target: Float[np.ndarray, " captions"],
) -> tuple[_Counts, _Counts]:
    """Compare each row and each column with its target, in one pass over blocks of rows.

    Rows are counted one by one; columns are added up as bytes, which a block is too low to
    overflow.
    """
    n_rows, n_columns = similarity.shape
    kind = np.float64 if similarity.dtype.itemsize > 4 else np.float32
    row_target, column_target = row_target.astype(kind), column_target.astype(kind)
    step = min(_BLOCK_ROWS, max(8, _BLOCK_BYTES // (n_columns * np.dtype(kind).itemsize)))
    rows = _Counts(*np.zeros((3, n_rows), np.int64))
    columns = _Counts(*np.zeros((3, n_columns), np.int64))
    room = np.empty((step, n_columns), np.bool_)
    for start in range(0, n_rows, step):
        span = slice(start, min(start + step, n_rows))
        block = np.ascontiguousarray(similarity[span], dtype=kind)
        mask = room[: len(block)]
        if not np.isfinite(block, out=mask).all():
            raise ValueError(
                f"rows {span.start} to {span.stop - 1} hold a value that is not finite"
            )
        targets = row_target[span, None]
        rows.greater[span] = _by_row(np.greater(block, targets, out=mask))
        rows.equal[span] = _by_row(np.equal(block, targets, out=mask))
        if rows.equal[span].sum() > len(block):
            later = np.arange(n_columns) > np.arange(span.start, span.stop)[:, None]
            rows.later[span] = _by_row(mask & later)
        columns.greater[:] += _by_column(np.greater(block, column_target, out=mask))
        equal = _by_column(np.equal(block, column_target, out=mask))
        columns.equal[:] += equal
        if equal.sum() > len(block):
            later = np.arange(span.start, span.stop)[:, None] > np.arange(n_columns)
            columns.later[:] += _by_column(mask & later)
    return rows, columns


def _by_row(mask: Bool[np.ndarray, "rows captions"]) -> list[int]:
    return [int(np.count_nonzero(line)) for line in mask]


def _by_column(mask: Bool[np.ndarray, "rows captions"]) -> Integer[np.ndarray, " captions"]:
    return np.asarray(np.add.reduce(mask.view(np.uint8), axis=0, dtype=np.uint8))


def _labels_of_pairs(
    first: Integer[np.ndarray, " pairs"], second: Integer[np.ndarray, " pairs"]
) -> Integer[np.ndarray, " pairs"]:
    _, labels = np.unique(np.stack([first, second], axis=1), axis=0, return_inverse=True)
    return labels.reshape(-1)


def _blocks_of_equals(
    labels: Integer[np.ndarray, " pairs"],
) -> Iterator[tuple[Integer[np.ndarray, " rows"], Integer[np.ndarray, " columns"]]]:
    """Yield the places (rows, columns) of labels that occur more than once, in bounded parts.

    Each pair of equals is in one part; so is each such place with itself.
    """
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(np.diff(labels[order], prepend=labels[order[:1]] - 1))
    sizes = np.diff(starts, append=len(order))
    for start, size in zip(starts[sizes > 1], sizes[sizes > 1], strict=True):
        members = order[start : start + size]
        for first in range(0, size, 256):
            yield members[first : first + 256], members
