"""Folds of the pairs, each judged by a network that did not train on it."""

import numpy as np
from jaxtyping import Float, Int

from now_builder.errors import TrainingError
from pc2_baseline.modules.division import Division, divide
from pc2_baseline.modules.seeds import stream

_FOLDS = 3  # part of the stream's name


def assign_folds(
    image_of: Int[np.ndarray, " pairs"], folds: int, seed: int
) -> Int[np.ndarray, " pairs"]:
    """Return the fold of each pair; folds differ by one image at most.

    All captions of an image are in one fold, so that a network that did not train on a fold has
    never seen its images.

    Args:
        image_of: Image of each pair, from 0.
        folds: Number of folds, 2 or more.
        seed: Seed of the draw; nothing else influences it.

    Raises:
        TrainingError: If a fold would have fewer than two images: a pair's loss needs a negative.
    """
    images = int(image_of.max(initial=-1)) + 1
    if images < 2 * folds:
        raise TrainingError(
            f"{images} training images in {folds} folds, expected at least 2 a fold; "
            "lower method.folds"
        )
    fold_of_image = np.empty(images, dtype=np.int64)
    fold_of_image[stream(seed, images, _FOLDS).permutation(images)] = np.arange(images) % folds
    return np.asarray(fold_of_image[image_of])


def divide_by_fold(
    statistic: Float[np.ndarray, " pairs"], fold: Int[np.ndarray, " pairs"], seed: int
) -> Division:
    """Divide the pairs of each fold by a mixture of their own.

    A fold's statistic comes from a network of its own, so folds have no common scale.

    Args:
        statistic: Low for clean pairs, by pair_index.
        fold: Fold of each pair.
        seed: Seed of the mixtures' initialisation.

    Raises:
        TrainingError: If the statistic of a fold is constant or not finite.
    """
    clean_prob = np.zeros(len(fold))
    is_clean = np.zeros(len(fold), dtype=bool)
    for number in np.unique(fold):
        own = fold == number
        division = divide(statistic[own], seed)
        clean_prob[own], is_clean[own] = division.clean_prob, division.is_clean
    return Division(clean_prob, is_clean)
