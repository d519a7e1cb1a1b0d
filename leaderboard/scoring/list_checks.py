"""Checks for ranked lists: those of the checks of matrices that places in lists allow."""

from dataclasses import dataclass
from math import sqrt

import numpy as np
from jaxtyping import Bool, Float, Integer

from leaderboard.metrics import Labels, Matrix
from leaderboard.scoring.checks import (
    DIMENSIONS,
    FAR_TREND,
    LEAST_QUERIES,
    NEAR_UNEXPLAINED,
    Known,
    duplicates_apart,
    far_trend,
    first_of_each,
    make_flag,
    one_to_one,
    window_starts,
    words_unread,
)
from leaderboard.scoring.content import LARGEST, Content, normal_scores, read_content
from leaderboard.scoring.result import Flag
from leaderboard.submission.archive import Lists

NEAR_SHARE = 0.6
"""``index-local``: share of wrong candidates from rows nearby, if no site ends anywhere."""

ENDS = 0.005
"""``index-local``: share of rows whose near candidates are all others than those of the next."""

AGREEMENT = 6.0
"""``unexplained-pairs``: correlation of lists both ways, in units of that by chance."""

_REACH = 16

Scores = Float[np.ndarray, "images images"]


@dataclass(frozen=True, slots=True)
class _Part:
    """Lists of some images and of their first captions, as matrices.

    Attributes:
        scores: for either direction, by image and caption, the negative place in the list, or the
            negative length of the list if it is not in it.
        listed: whether it is in it.
        cut: how many times as many candidates there are as the shorter lists hold: the limits of
            matrices rise with it, as less is known.
    """

    scores: tuple[Scores, Scores]
    listed: tuple[Bool[np.ndarray, "images images"], Bool[np.ndarray, "images images"]]
    cut: float


def check_lists(
    lists: tuple[Lists, Lists], known: Known, hits_at_1: tuple[float, float]
) -> tuple[Flag, ...]:
    """Flag lists that follow the order of rows, are assigned, or are filled up at random.

    Args:
        lists: for each image captions, for each caption images, the best first.
        known: as for matrices.
        hits_at_1: expected numbers of image queries and of caption queries.
    """
    if len(lists[0]) < LEAST_QUERIES:
        return ()
    flags = []
    for start in window_starts(len(lists[0])):
        part = _read_part(lists, known.owner, start)
        square = _both(part)
        content = read_content(square)
        flags += [_unexplained_pairs(part, content), _index_local(part, content)]
        flags.append(words_unread(square, content, known, start))
    flags.append(duplicates_apart(lambda rows, captions: _placed(lists[0], rows, captions), known))
    if known.declared != "transductive":
        flags.append(one_to_one((lists[0][:, 0], lists[1][:, 0]), hits_at_1))
    return first_of_each(flags)


def _placed(lists: Lists, rows: Labels, captions: Labels) -> Float[np.ndarray, " pairs"]:
    """Return the negative places of captions in the lists of images."""
    there = lists[rows] == captions[:, None]
    places = np.where(there.any(axis=1), -there.argmax(axis=1), -lists.shape[1])
    return np.asarray(places, np.float64)


def _read_part(lists: tuple[Lists, Lists], owner: Labels, start: int) -> _Part:
    images, captions = np.unique(owner, return_index=True)
    images, captions = images[start : start + LARGEST], captions[start : start + LARGEST]
    size = len(images)
    row, column = np.full(len(lists[0]), -1), np.full(len(owner), -1)
    row[images] = column[captions] = np.arange(size)
    of_images = _scores(column[lists[0][images]], size)
    of_captions = _scores(row[lists[1][captions]], size).T
    depths = lists[0].shape[1], lists[1].shape[1]
    listed = of_images > -depths[0], of_captions > -depths[1]
    cut = max(len(owner) / depths[0], len(lists[0]) / depths[1])
    return _Part((of_images, of_captions), listed, cut)


def _scores(lists: Integer[np.ndarray, "queries depth"], size: int) -> Scores:
    """Place candidates in a matrix; -1 is none."""
    depth = lists.shape[1]
    found = np.full((len(lists), size + 1), -float(depth))
    places = np.broadcast_to(-np.arange(depth, dtype=np.float64), lists.shape)
    np.put_along_axis(found, np.where(lists < 0, size, lists), places, axis=1)
    return found[:, :size]


def _unexplained_pairs(part: _Part, content: Content | None) -> Flag | None:
    """Look for own pairs in lists that agree in nothing else, across directions or the diagonal."""
    if content is None:
        return None
    off = ~np.eye(content.size, dtype=np.bool_)
    first, second = (listed[off].astype(np.float64) for listed in part.listed)
    spread = float(first.std() * second.std())
    agreement = float(((first - first.mean()) * (second - second.mean())).mean()) / (spread or 1.0)
    needed, chance = content.dimensions_needed(), AGREEMENT / content.size
    if part.cut < 2:
        needed = max(needed, content.dimensions())
    most = DIMENSIONS * max(1.0, part.cut / 4)
    if content.own < 2 or (needed <= most and (agreement > chance or not spread)):
        return None
    return make_flag(
        "unexplained-pairs",
        f"own pairs lie {content.own:.1f} deviations above the rest of the lists: embeddings would"
        f" need {needed:.0f} dimensions for that, expected {most:.0f} at most; other pairs of"
        f" both directions' lists agree {agreement:.4f}, expected more than {chance:.4f}",
    )


def _both(part: _Part) -> Matrix:
    first, second = part.scores
    return np.asarray(normal_scores(first) + normal_scores(second))


def _index_local(part: _Part, content: Content | None) -> Flag | None:
    """Look for candidates that are in a list because their rows are near.

    Pages of one site stand side by side in each other's lists; but they agree in far candidates
    too, and there is a last page of every site.
    """
    beside = content.near_unexplained() if content else 0.0
    most = NEAR_UNEXPLAINED * sqrt(part.cut)
    found = [_nearness(listed) for listed in (part.listed[0], part.listed[1].T)]
    share, ends = max(found, key=lambda way: way[0])
    rows = np.arange(len(part.scores[0]))
    trend = max(far_trend(scores, rows) for scores in part.scores) if part.cut < 2 else 0.0
    if beside <= most and trend <= FAR_TREND and (share <= NEAR_SHARE or ends >= ENDS):
        return None
    return make_flag(
        "index-local",
        f"{100 * share:.0f} % of the wrong candidates come from rows near the query's, and"
        f" {100 * ends:.1f} % of rows share none of these with the next; rows side by side are"
        f" {beside:.0f} times as much alike as the rest of their lists, expected {most:.0f}"
        " at most",
    )


def _nearness(listed: Bool[np.ndarray, "queries candidates"]) -> tuple[float, float]:
    """Return the share of wrong candidates nearby, and the share of rows that share none of them.

    Where an eighth of the rows is no more than a list is long, nothing can be said.
    """
    size = len(listed)
    depth = int(listed.sum(axis=1).max())
    reach = max(_REACH, depth)
    if 8 * reach > size:
        reach = _REACH
    if 6 * reach > size:
        return 0.0, 1.0
    distance = np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
    wrong = listed & (distance > 0)
    near = wrong & (distance <= reach)
    shared = (near[1:] & near[:-1]).any(axis=1)
    return float(near.sum()) / max(1, int(wrong.sum())), float(1 - shared.mean())
