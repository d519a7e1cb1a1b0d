"""Flags of matrices that follow the order of rows, which no method knows."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import log, log1p, sqrt

import numpy as np
from jaxtyping import Bool, Float

from leaderboard.metrics import Labels, Matrix
from leaderboard.scoring.content import WINDOW, Content, own_square, read_content
from leaderboard.scoring.result import MATRIX_FLAGS, Code, Flag

MIN_IMAGES = 50
"""Number of images below which nothing is checked: chance alone could raise any flag."""

IDENTITY_GAP = 8.0
"""``identity-like``: how far own pairs may lie above the best wrong ones of a typical row, in
units of the distance from these to the row's median; more by 100 / rows in small matrices."""

DIMENSIONS = 600.0
"""``unexplained-pairs``: maximum effective dimensions of honest embeddings."""

OWN_PAIRS = 1.0
"""``unexplained-pairs``: deviations above the rest from which own pairs stand out."""

FAR_TREND = 0.8
"""``index-local``: correlation of the similarity of far rows with their nearness."""

NEAR_BAND = 1.0
"""``index-local``: how far above the rest nearly all direct neighbours may lie, in its
deviations."""

NEAR_UNEXPLAINED = 20.0
"""``index-local``: deviations that rows side by side may lie above the rest, in units of how far
they agree elsewhere."""

_BLOCKS = 20
_ROUNDS = 30
_COLUMNS = 64
_TINY = 1e-300
_HUGE = 2.0**300
_LARGE_GAP = 1e6


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive images with their captions, and statistics shared by the checks.

    Attributes:
        own: similarity of each caption with its image.
        rest: similarities, with own pairs, and captions equal to them, replaced by the mean of the
            row's others; ``rows``, ``columns`` and ``spread`` are its means and its standard
            deviation.
        ends: smallest and largest similarity, own pairs included.
    """

    owner: Labels
    own: Float[np.ndarray, " captions"]
    rest: Float[np.ndarray, "images captions"]
    rows: Float[np.ndarray, " images"]
    columns: Float[np.ndarray, " captions"]
    spread: float
    ends: tuple[float, float]


def check_matrix(similarity: Matrix, owner: Labels, captions: Labels) -> tuple[Flag, ...]:
    """Flag similarities made of the order of rows, checked by windows of 1,000 images.

    Args:
        similarity: scores, in any float type.
        owner: row of each caption's image.
        captions: labels of captions, equal for identical ones.

    Returns:
        The first flag of each code.
    """
    if len(similarity) < MIN_IMAGES:
        return ()
    similarity = _scaled(similarity)
    found: dict[str, Flag] = {}
    for first in window_starts(len(similarity)):
        for flag in _window_flags(similarity, owner, captions, first):
            found.setdefault(flag.code, flag)
    return tuple(found[code] for code in MATRIX_FLAGS if code in found)


def window_starts(images: int) -> list[int]:
    """Return the first rows of windows of :data:`WINDOW` images that together hold all of them."""
    last = max(0, images - WINDOW)
    return [int(start) for start in np.linspace(0, last, -(-images // WINDOW))]


def _window_flags(
    similarity: Matrix, owner: Labels, captions: Labels, first: int
) -> Iterator[Flag]:
    window = _read_window(similarity, owner, captions, first)
    content = read_content(own_square(similarity, owner, first))
    messages: dict[Code, str | None] = {
        "identity-like": _identity_like(window),
        "unexplained-pairs": _unexplained_pairs(content),
        "index-local": _index_local(window, content),
    }
    for code, message in messages.items():
        if message is not None:
            yield Flag(code=code, message=message)


def _scaled(similarity: Matrix) -> Matrix:
    """Return float32, or float64 scaled by a power of two where its squares would overflow."""
    if similarity.dtype.itemsize <= 4:
        return np.ascontiguousarray(similarity, np.float32)
    largest = np.abs(similarity).max()
    if largest and not 1 / _HUGE < largest < _HUGE:
        similarity = np.ldexp(similarity, -int(np.frexp(largest)[1]))
    return np.ascontiguousarray(similarity, np.float64)


def _read_window(similarity: Matrix, owner: Labels, captions: Labels, first: int) -> Window:
    rest = similarity[first : first + WINDOW].astype(np.float64)
    chosen = np.flatnonzero((owner >= first) & (owner < first + len(rest)))
    owner = owner[chosen] - first
    if len(chosen) < rest.shape[1]:
        rest = rest[:, chosen]
    ends = float(rest.min()), float(rest.max())
    own = rest[owner, np.arange(len(chosen))]
    right = _right(owner, captions[chosen])
    others = len(chosen) - np.count_nonzero(right, axis=1)
    means = rest.sum(axis=1, where=~right) / np.maximum(others, 1)
    np.copyto(rest, means[:, None], where=right)
    rows, columns = rest.mean(axis=1), rest.mean(axis=0)
    return Window(owner, own, rest, rows, columns, float(rest.std()), ends)


def _right(owner: Labels, captions: Labels) -> Bool[np.ndarray, "images captions"]:
    """Return which captions are an image's own, or identical to one of them."""
    _, captions = np.unique(captions, return_inverse=True)
    said = np.zeros((int(owner.max()) + 1, int(captions.max()) + 1), np.bool_)
    said[owner, captions] = True
    return said[:, captions]


def _identity_like(window: Window) -> str | None:
    """Compare own pairs with the best wrong one of a typical image."""
    gap = _own_gap(window)
    # the best of few wrong ones is not far above the rest
    limit = IDENTITY_GAP + 100 / len(window.rest)
    if gap <= limit:
        return None
    times = f"{gap:.0f} times" if gap < _LARGE_GAP else f"{gap:.0e} times"
    figure = "infinitely" if gap == float("inf") else times
    return (
        f"own pairs are {figure} as far above the best wrong ones as those above the rest,"
        f" expected {limit:.1f} times at most: the rest is nearly constant"
    )


def _own_gap(window: Window) -> float:
    """Return how far own pairs lie above the best wrong ones, relative to these above the rest.

    An exponential's or a sigmoid's values lie far apart by nature. Where logarithms (log odds if
    they end at 1) spread the rest about evenly to both sides, the gap of those counts if lesser.
    So does that of vectors scaled to one length: few long ones make few large products.
    """
    # at random: a fixed step could meet a pattern of the matrix
    chosen = np.sort(np.random.default_rng(0).permutation(window.rest.shape[1])[:_COLUMNS])
    some = window.rest[:, chosen]
    middle, best = float(np.median(some)), float(np.median(window.rest.max(axis=1)))
    own = float(np.percentile(window.own, 90))
    rest, own_even = _of_equal_lengths(window)
    even = (np.median(rest[:, chosen]), np.median(rest.max(axis=1)), np.percentile(own_even, 90))
    gap = min(_ratio(middle, best, own), _ratio(*map(float, even)))
    positive = some[some > 0]
    if best > 0 and window.ends[0] >= 0 and len(positive):
        odds = bool(window.ends[1] <= 1)
        least, half = np.quantile(positive, [1 / window.rest.shape[1], 0.5]).tolist()
        low, centre, high = (_log(value, odds=odds) for value in (least, half, best))
        if high - centre > (centre - low) / 2:
            return min(gap, _ratio(centre, high, _log(own, odds=odds)))
    return gap


def _of_equal_lengths(
    window: Window,
) -> tuple[Float[np.ndarray, "images captions"], Float[np.ndarray, " captions"]]:
    """Divide centred similarities, the rest and own pairs, by the size of their row and column."""
    middle = window.rest.mean()
    rest = window.rest - middle
    rows, columns = (np.sqrt(np.square(rest).mean(axis=axis)) for axis in (1, 0))
    rows[rows == 0], columns[columns == 0] = 1, 1
    own = (window.own - middle) / (rows[window.owner] * columns)
    return rest / (rows[:, None] * columns), own


def _ratio(middle: float, best: float, own: float) -> float:
    if own <= best:
        return 0.0
    return (own - best) / (best - middle) if best > middle else float("inf")


def _log(value: float, *, odds: bool) -> float:
    return log(max(value, _TINY)) - (log1p(-min(value, 1 - 2.0**-24)) if odds else 0.0)


def _unexplained_pairs(content: Content | None) -> str | None:
    """Look for own pairs far above the rest though images and captions share nothing else."""
    if content is None or content.own < OWN_PAIRS:
        return None
    needed, independent = content.dimensions_needed(), content.dimensions()
    if max(needed, independent) <= DIMENSIONS:
        return None
    return (
        f"own pairs lie {content.own:.1f} deviations above the rest, which says nothing of them:"
        f" embeddings would need {needed:.0f} dimensions and have {independent:.0f} at the least,"
        f" expected {DIMENSIONS:g} at most"
    )


def _index_local(window: Window, content: Content | None) -> str | None:
    """Look for similarity that falls with the distance of rows, own pairs left out.

    Rows and columns are centred. Sites whose pages are side by side make neighbours alike too;
    so far rows are compared in blocks, those on the diagonal left out, and of direct neighbours
    nearly all must be alike, as they are not where one site ends and the next begins. A split of
    fewer than five sites can still be flagged. Or neighbours are alike on the average while they
    have nothing in common with regard to far rows, as pages of one site have.
    """
    if not window.spread:
        return None
    near = []
    for step in (-1, 1):
        row = window.owner + step
        there = np.flatnonzero((row >= 0) & (row < len(window.rest)))
        row = row[there]
        expected = window.rows[row] + window.columns[there] - window.rows.mean()
        near.append((window.rest[row, there] - expected) / window.spread)
    band = float(np.quantile(np.concatenate(near), 0.002))
    trend = _far_trend(window.rest, window.owner)
    beside = content.near_unexplained() if content else 0.0
    if band <= NEAR_BAND and trend <= FAR_TREND and beside <= NEAR_UNEXPLAINED:
        return None
    return (
        f"similarity depends on how near two rows are: correlation {trend:.2f} between far rows,"
        f" at most {FAR_TREND:g} expected; direct neighbours at least {band:.1f} deviations above"
        f" the rest, at most {NEAR_BAND:g}; on the average {beside:.0f} times what they have in"
        f" common, at most {NEAR_UNEXPLAINED:g}"
    )


def _far_trend(rest: Matrix, owner: Labels) -> float:
    """Correlate means of blocks off the diagonal with the nearness of their rows."""
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
