"""Similarity matrices of whole splits, in blocks, and the mean of an ensemble's."""

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
    """Score every image of a split, once, against every caption, in evaluation mode.

    The scores are the logits of the similarities, which rank alike but do not round to 1.
    """
    net.eval()
    rows = cut(np.arange(split.images), block)
    by_length = np.argsort([len(caption) for caption in split.captions], kind="stable")
    columns = cut(by_length, block)
    images = [net.encode_images(split.image_batch(row)) for row in rows]
    matrix = np.empty((split.images, len(split)), dtype=np.float32)
    for column in bar(columns, "score", len(columns)):
        captions = net.encode_captions(*split.caption_batch(column))
        for row, codes in zip(rows, images, strict=True):
            found = net.score(codes, captions, logits=True)
            matrix[np.ix_(row, column)] = found.float().cpu().numpy()
    return matrix


def ensemble(
    matrices: Sequence[Float[np.ndarray, "images captions"]],
) -> Float[np.ndarray, "images captions"]:
    r"""Average the similarities of several networks.

    Returns:
        The logit of the mean similarity, :math:`\log\sum_k\sigma(l_k) - \log\sum_k\sigma(-l_k)`:
        a mean that is 1 to seven digits still ranks.
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
    """Compute ``rsum`` and the recalls both ways in percent, with the board's own function."""
    return _named(recalls(similarity, owner))


def _named(found: Recalls) -> dict[str, float]:
    ways = (("i2t", found.i2t), ("t2i", found.t2i))
    named = {f"{name}_R@{cutoff}": way.recall(cutoff) for name, way in ways for cutoff in CUTOFFS}
    return {"rsum": found.rsum, **named}


def fold_scores(
    similarity: Float[np.ndarray, "images captions"], owner: Int[np.ndarray, " captions"], size: int
) -> dict[str, float]:
    """Average the scores of consecutive folds of a split, as MS-COCO's 1K protocol does.

    Differs:
        Of the folds the authors' code reports the last one's rSum.
    """
    folds = [_named(found) for found in fold_recalls(similarity, owner, size)]
    return {name: float(np.mean([fold[name] for fold in folds])) for name in folds[0]}
