"""Hubs: pages and captions near to everything, corrected by a bank of training pairs."""

from dataclasses import replace

import numpy as np
from jaxtyping import Float

from pc2_baseline.data.pairs import PairSet
from pc2_baseline.training.method import Method

NEAREST = 10
"""Neighbours in the bank over which a mean is taken; half of a bank that has fewer than 20."""


def draw_bank(split: PairSet, pairs: int) -> PairSet:
    """Return as many pairs of a split, each with its image; all of them if it has no more."""
    rows = np.random.default_rng(0).permutation(len(split))[:pairs]
    regions = split.image_batch(split.image_of[rows]).cpu().numpy()
    words = split.words
    if words is not None:
        known = words
        words = replace(words, read_texts=lambda: [known.texts[row] for row in rows])
    captions = [split.captions[row] for row in rows]
    own = np.arange(len(rows))
    return replace(
        split, regions=regions, captions=captions, image_of=own, words=words, matched=None
    )


def without_hubs(
    method: Method, split: PairSet, bank: PairSet
) -> Float[np.ndarray, "images captions"]:
    r"""Score a split, less how near its images and captions are to those of a bank.

    .. math:: s_{ij} - \tfrac12 r_i - \tfrac12 r_j

    with the mean similarity :math:`r_i` of an image to the captions of the bank that are nearest to
    it, and :math:`r_j` of a caption to its nearest images there. The bank is of other pairs, so a
    query is answered alike whichever other queries there are.

    Source:
        CSLS (Conneau et al., ICLR 2018); neighbours from a bank of training queries as in QB-Norm
        (Bogolin et al., CVPR 2022).
    """
    images = method.similarity(_paired(split, bank))
    captions = method.similarity(_paired(bank, split))
    nearest = min(NEAREST, -(-len(bank) // 2))
    by_image = np.partition(images, -nearest, axis=1)[:, -nearest:].mean(1)
    by_caption = np.partition(captions, -nearest, axis=0)[-nearest:].mean(0)
    corrected: np.ndarray = method.similarity(split) - (by_image[:, None] + by_caption) / 2
    return corrected


def _paired(images: PairSet, captions: PairSet) -> PairSet:
    """Return the images of one set with the captions of another, to be scored and no more."""
    nothing = np.zeros(len(captions), dtype=np.int64)
    return replace(
        images, captions=captions.captions, words=captions.words, image_of=nothing, matched=None
    )
