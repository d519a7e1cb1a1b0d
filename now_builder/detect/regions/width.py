"""Features of any width brought to the 768 numbers that a feature file has."""

from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from now_builder.formats.features import DIMENSION

PROJECTION_SEED = 0
PROJECTION = f"orthonormal, seed {PROJECTION_SEED}"
"""Attribute of feature files whose regions went through :func:`to_768`."""


@lru_cache(maxsize=4)
def orthonormal(width: int, seed: int = PROJECTION_SEED) -> Float[Tensor, "width 768"]:
    r"""Return the projection of ``width`` numbers to 768: a function of width and seed alone.

    From more than 768 its columns are orthonormal times :math:`\sqrt{width / 768}`, so that norms
    and inner products keep their expected values; from fewer its rows are orthonormal and keep
    them exactly.

    Source:
        Johnson and Lindenstrauss (1984), with a random orthonormal frame as in their proof.
    """
    wide, narrow = max(width, DIMENSION), min(width, DIMENSION)
    draw = np.random.default_rng([seed, width]).standard_normal((wide, narrow))
    frame, triangle = np.linalg.qr(draw)
    # The signs of a QR decomposition are the library's choice; these are not.
    frame = frame * np.where(np.diag(triangle) < 0, -1.0, 1.0)
    scaled = frame * np.sqrt(wide / DIMENSION) if width > DIMENSION else frame.T
    return torch.from_numpy(np.ascontiguousarray(scaled)).float()


def to_768(features: Float[Tensor, "n width"]) -> Float[Tensor, "n 768"]:
    """Project the pooled features of regions to 768 numbers each, never all zero.

    Features that are all zero (as those of a blank region may be after a ReLU) are replaced by a
    small constant.
    """
    features = features.nan_to_num()
    zero = features.abs().amax(dim=1, keepdim=True) == 0
    features = torch.where(zero, torch.full_like(features, 1e-3), features)
    width = features.shape[1]
    if width == DIMENSION:
        return features
    return features @ orthonormal(width).to(features.device)
