"""Folds of the pairs, each judged by a network that did not train on it."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int, Num

from now_builder.errors import TrainingError
from pc2_baseline.modules.division import THRESHOLD, Division, Scale, divide
from pc2_baseline.modules.seeds import stream

_FOLDS = 3  # part of the stream's name


def assign_folds(
    image_of: Int[np.ndarray, " pairs"],
    captions: Sequence[Num[np.ndarray, " _"]],
    folds: int,
    seed: int,
) -> Int[np.ndarray, " pairs"]:
    """Return the fold of each pair; pairs that share an image or a caption are in one fold.

    So a network that did not train on a fold has seen none of its images and none of its captions,
    not even on another page. Without repeated captions folds differ by one image at most; with
    them, the largest groups are dealt first, each into the fold with the fewest pairs. A fold has
    at least two groups: a pair's loss needs a negative.

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
    """Return a number for each pair, equal where pairs share an image or a caption, also by others.

    Without repeated captions it is the image.
    """
    numbers: dict[bytes, int] = {}
    caption_of = np.array(
        [numbers.setdefault(np.asarray(own).tobytes(), len(numbers)) for own in captions]
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
    statistic: Float[np.ndarray, " pairs"],
    fold: Int[np.ndarray, " pairs"],
    seed: int,
    threshold: float = THRESHOLD,
    scale: Scale = "linear",
) -> Division:
    """Divide the pairs of each fold by a mixture of their own.

    A fold's statistic comes from a network of its own, so folds have no common scale.
    """
    clean_prob = np.zeros(len(fold))
    is_clean = np.zeros(len(fold), dtype=bool)
    for number in np.unique(fold):
        own = fold == number
        division = divide(statistic[own], seed, threshold, scale)
        clean_prob[own], is_clean[own] = division.clean_prob, division.is_clean
    return Division(clean_prob, is_clean)
