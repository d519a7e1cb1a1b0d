"""Hubs: pages and captions near to everything, corrected by a bank of training pairs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from pc2_baseline.data.pairs import PairSet

NEAREST = 10
"""Neighbours in the bank over which a mean is taken; half of a bank that has fewer than 20."""


def draw_bank(split: PairSet, pairs: int) -> PairSet:
    """Return as many pairs of a split, each with its image; all of them if it has no more."""
    rows = np.random.default_rng(0).permutation(len(split))[:pairs]
    images, words = split.image_of[rows], split.words
    if words is not None:
        pages = words.read_pages and partial(_some, words.read_pages, images)
        words = replace(words, read_texts=partial(_some, words.read_texts, rows), read_pages=pages)
    regions = split.image_batch(images).cpu().numpy()
    captions = [split.captions[row] for row in rows]
    own = np.arange(len(rows))
    return replace(
        split, regions=regions, captions=captions, image_of=own, words=words, matched=None
    )


def _some(read: Callable[[], Sequence[str]], rows: Int[np.ndarray, " _"]) -> list[str]:
    texts = read()
    return [texts[row] for row in rows]


def with_bank(split: PairSet, bank: PairSet) -> tuple[PairSet, PairSet, PairSet]:
    """Return what :func:`without_hubs` takes the similarities of, to be scored and no more.

    They are the split itself, its images with the captions of a bank, and the bank's images with
    its captions.
    """
    return split, _paired(split, bank), _paired(bank, split)


def without_hubs(
    matrix: Float[np.ndarray, "images captions"],
    to_bank: Float[np.ndarray, "images bank"],
    from_bank: Float[np.ndarray, "bank captions"],
) -> Float[np.ndarray, "images captions"]:
    r"""Lower similarities by how near images and captions are to those of a bank.

    .. math:: s_{ij} - \tfrac12 r_i - \tfrac12 r_j

    with the mean similarity :math:`r_i` of an image to the captions of the bank that are nearest to
    it, and :math:`r_j` of a caption to its nearest images there. The bank is of other pairs, so a
    query is answered alike whichever other queries there are.

    Source:
        CSLS (Conneau et al., ICLR 2018); neighbours from a bank of training queries as in QB-Norm
        (Bogolin et al., CVPR 2022).
    """
    corrected: np.ndarray = matrix - (nearness(to_bank, 1)[:, None] + nearness(from_bank, 0)) / 2
    return corrected


def nearness(
    matrix: Float[np.ndarray, "images captions"], axis: Literal[0, 1]
) -> Float[np.ndarray, " _"]:
    """Return the mean of the largest similarities along the axis of a bank."""
    nearest = min(NEAREST, -(-matrix.shape[axis] // 2))
    largest = np.partition(matrix, -nearest, axis).take(range(-nearest, 0), axis)
    found: np.ndarray = largest.mean(axis)
    return found


def _paired(images: PairSet, captions: PairSet) -> PairSet:
    """Return the images of one set with the captions of another."""
    nothing = np.zeros(len(captions), dtype=np.int64)
    return replace(images, captions=captions.captions, image_of=nothing, matched=None)
