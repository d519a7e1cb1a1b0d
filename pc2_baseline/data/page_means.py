"""Pages as the means of their regions, and what standardises them."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pc2_baseline.data.pairs import PairSet, cut

_IMAGES = 128


def mean_regions(split: PairSet) -> Float[Tensor, "images features"]:
    """Return the mean region of each image of a split, in float64 on the CPU."""
    blocks = cut(np.arange(split.images), _IMAGES)
    return torch.cat(
        [split.image_batch(rows).mean(1, dtype=torch.float64).cpu() for rows in blocks]
    )


def centre_and_scale(
    pages: Float[Tensor, "images features"],
) -> tuple[Float[Tensor, " features"], Float[Tensor, " features"]]:
    """Return mean and standard deviation of each feature; 1 for one that is the same everywhere."""
    spread = pages.std(0, correction=0)
    return pages.mean(0), torch.where(spread > 0, spread, torch.ones_like(spread))
