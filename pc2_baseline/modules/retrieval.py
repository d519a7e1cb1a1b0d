"""Similarity matrices of splits, their ensemble, and their recalls."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int

from leaderboard.metrics import CUTOFFS, Recalls, fold_recalls, recalls
from pc2_baseline.data.pairs import PairSet, cut
from pc2_baseline.networks.similarity import MatchingNetwork
from pc2_baseline.progress import bar

BLOCK = 128


@torch.inference_mode()
def similarity_matrix(
    net: MatchingNetwork, split: PairSet, block: int = BLOCK
) -> Float[np.ndarray, "images captions"]:
    """Score every image of a split against every caption, in evaluation mode.

    Scores are the logits of the similarities: the order is the same, and none rounds to 1.
    """
    net.eval()
    image_blocks = cut(np.arange(split.images), block)
    by_length = np.argsort([len(caption) for caption in split.captions], kind="stable")
    caption_blocks = cut(by_length, block)
    images = [net.encode_images(split.image_batch(rows)) for rows in image_blocks]
    matrix = np.empty((split.images, len(split)), dtype=np.float32)
    for columns in bar(caption_blocks, "score", len(caption_blocks)):
        captions = net.encode_captions(*split.caption_batch(columns))
        for rows, codes in zip(image_blocks, images, strict=True):
            scored = net.score(codes, captions, logits=True)
            matrix[np.ix_(rows, columns)] = scored.float().cpu().numpy()
    return matrix


def ensemble(
    matrices: Sequence[Float[np.ndarray, "images captions"]],
) -> Float[np.ndarray, "images captions"]:
    r"""Average the similarities of several networks.

    Returns:
        The logit of the mean similarity, :math:`\log\sum_k\sigma(l_k) - \log\sum_k\sigma(-l_k)`,
        so that means that round to 1 keep their order.
    """
    if len(matrices) == 1:
        return matrices[0]
    stacked = np.stack(matrices).astype(np.float64)
    right, wrong = (
        np.logaddexp.reduce(-np.logaddexp(0, sign * stacked), axis=0) for sign in (-1, 1)
    )
    return np.asarray(right - wrong, dtype=np.float32)


def scores(
    similarity: Float[np.ndarray, "images captions"], owner: Int[np.ndarray, " captions"]
) -> dict[str, float]:
    """Compute ``rsum`` and the recalls of both directions in percent, as the leaderboard does."""
    return _named(recalls(similarity, owner))


def _named(row: Recalls) -> dict[str, float]:
    ways = (("i2t", row.i2t), ("t2i", row.t2i))
    named = {f"{name}_R@{cutoff}": way.recall(cutoff) for name, way in ways for cutoff in CUTOFFS}
    return {"rsum": row.rsum, **named}


def fold_scores(
    similarity: Float[np.ndarray, "images captions"], owner: Int[np.ndarray, " captions"], size: int
) -> dict[str, float]:
    """Average the scores of consecutive folds of a split: the 1K protocol of MS-COCO.

    Differs:
        PC2's code reports the rSum of the last fold.
    """
    folds = [_named(row) for row in fold_recalls(similarity, owner, size)]
    return {name: float(np.mean([fold[name] for fold in folds])) for name in folds[0]}
