"""Similarity matrices of whole splits, in blocks, and the mean of an ensemble's."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float

from pc2_baseline.data import PairSet, cut
from pc2_baseline.modules.codes import CaptionCodes, ImageCodes
from pc2_baseline.modules.network import MatchingNetwork

BLOCK = 128


@torch.no_grad()
def similarity_matrix(
    net: MatchingNetwork, split: PairSet, block: int = BLOCK
) -> Float[np.ndarray, "images captions"]:
    """Score every image of a split against every caption, in evaluation mode.

    Args:
        net: On the split's device.
        split: Its images and captions.
        block: Images, and captions, scored at once.
    """
    net.eval()
    rows = cut(np.arange(len(split)), block)
    by_length = np.argsort([len(caption) for caption in split.captions], kind="stable")
    columns = cut(by_length, block)
    images = [_images(net, split, row) for row in rows]
    matrix = np.empty((len(split), len(split)), dtype=np.float32)
    for column in columns:
        captions = _captions(net, split, column)
        for row, codes in zip(rows, images, strict=True):
            matrix[np.ix_(row, column)] = net.score(codes, captions).float().cpu().numpy()
    return matrix


def _images(net: MatchingNetwork, split: PairSet, rows: np.ndarray) -> ImageCodes:
    return net.encode_images(split.batch(rows).regions)


def _captions(net: MatchingNetwork, split: PairSet, rows: np.ndarray) -> CaptionCodes:
    return net.encode_captions(*split.caption_batch(rows))


def ensemble(
    matrices: Sequence[Float[np.ndarray, "images captions"]],
) -> Float[np.ndarray, "images captions"]:
    """Average the similarity matrices of several networks."""
    return np.asarray(np.stack(matrices).mean(axis=0, dtype=np.float64), dtype=np.float32)
