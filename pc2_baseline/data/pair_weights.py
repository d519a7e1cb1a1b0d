"""Weights of the training pairs that another model gives, before the training."""

from pathlib import Path

import numpy as np
from jaxtyping import Float

from now_builder.errors import ConfigError, FormatError
from now_builder.formats.noise import own_images
from now_builder.formats.pair_statistics import read_suspects
from now_builder.formats.release import map_array
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.data.readers import Reader

_ROWS = 256


def read_weights(reader: Reader, train: PairSet) -> Float[np.ndarray, " pairs"] | None:
    """Read the weights of the training pairs that ``data.weights_from`` gives; ``None`` without.

    Raises:
        ConfigError: If OSA has no file, or a table of pairs stands beside a noise file that has
            made other pairs.
        FormatError: If the file cannot be used, lacks a training pair, or gives none a weight.
    """
    path, by = reader.data.weights_from, reader.data.weights_by
    if path is None:
        if by == "cosine":
            raise ConfigError(
                'data.weights_by = "cosine": no cosines, expected --weights-from FILE, such as '
                "pc2-baseline rank-pairs --captures CAPTURES --model NAME writes"
            )
        return None
    if path.suffix == ".npy":
        weights = osa_weights(_of_matrix(path, train))
    else:
        values = _of_table(path, reader, train)
        weights = osa_weights(values) if by == "cosine" else values
    if not weights.any():
        raise FormatError(path, "no training pair has a weight above 0, expected some")
    return weights


def osa_weights(cosines: Float[np.ndarray, " pairs"]) -> Float[np.ndarray, " pairs"]:
    r"""Weigh pairs by the cosines that a pre-trained model gives them, less the mean of all.

    .. math:: w_i = s_i^2 (1 - s_i^2),\quad s_i = \max(c_i - \beta, 0) / \max_j (c_j - \beta)

    A pair has no weight up to :math:`\beta`, the cosine of a random page with a random caption:
    what does not belong together is orthogonal in so many dimensions, but for a shift.

    Args:
        cosines: :math:`c - \beta`.

    Source:
        OSA (Li et al., arXiv 2410.01944), and its released code, which the function is from.

    Differs:
        The code divides by the maximum of a batch; here it is that of all pairs, so that a weight
        is the pair's own. Its :math:`\beta` is the mean over random pixels with random tokens;
        here over pages with captions. CLIP is the network that it trains, too; here it is any.
    """
    above = np.maximum(cosines, 0)
    squares = (above / (above.max() or 1.0)) ** 2
    return np.asarray(squares * (1 - squares))


def _of_table(path: Path, reader: Reader, train: PairSet) -> Float[np.ndarray, " pairs"]:
    if (train.image_of != own_images(len(train), train.images)).any():
        raise ConfigError(
            f"data.weights_from = {path}: a table is of the release's own pairs, and "
            "data.noise_file makes others; expected a matrix (.npy)"
        )
    names = reader.pair_names(len(train))
    keys = names["key"]
    urls = dict(zip(keys, names.get("url", [""] * len(keys)), strict=True))
    known = read_suspects(path, urls, reader.data.weights_by)
    if missing := [key for key in keys if key not in known]:
        problem = f"{len(missing)} of {len(keys)} training pairs are not in it"
        raise FormatError(path, f"{problem}, such as {missing[0]}; expected all")
    return np.array([known[key] for key in keys])


def _of_matrix(path: Path, train: PairSet) -> Float[np.ndarray, " pairs"]:
    """Return each pair's cell of a similarity matrix, less the mean of all its cells."""
    matrix = map_array(path, "no such file; expected a matrix, images x captions")
    shape = (train.images, len(train))
    if matrix.shape != shape or matrix.dtype.kind != "f":
        found = f"{matrix.dtype} {matrix.shape}"
        raise FormatError(path, f"found {found}, expected floats {shape}: all of training")
    blocks = (matrix[start : start + _ROWS] for start in range(0, len(matrix), _ROWS))
    mean = sum(float(np.sum(block, dtype=np.float64)) for block in blocks) / matrix.size
    if not np.isfinite(mean):
        raise FormatError(path, "found similarities that are not finite, expected numbers")
    own: np.ndarray = matrix[train.image_of, np.arange(len(train))]
    return np.asarray(own.astype(np.float64) - mean)
