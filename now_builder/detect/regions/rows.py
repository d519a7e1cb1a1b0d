"""Pad pages to 36 regions, bring features of any width to 768, and stack pages into batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from now_builder.detect.base import Page
from now_builder.formats.features import DIMENSION, SOURCES, FeatureBatch
from now_builder.formats.shard import HEIGHT, WIDTH

NMS = 0.5
"""Overlap (IoU) above which suppression drops the weaker of two regions at first."""
DETECTOR, RELAXED, GRID, DOM = map(SOURCES.index, ("detector", "relaxed", "grid", "dom"))

PROJECTION_SEED = 0
PROJECTION = f"orthonormal, seed {PROJECTION_SEED}"
"""Attribute of feature files whose regions went through :func:`to_768`."""


@dataclass(frozen=True, slots=True)
class PageRegions:
    """Regions of one page."""

    boxes: Float[Tensor, "n 4"]
    scores: Float[Tensor, " n"]
    classes: Tensor
    embedded: Float[Tensor, "n 768"]
    source: Tensor

    def fill(
        self, windows: Float[Tensor, "m 4"], embedded: Float[Tensor, "m 768"]
    ) -> "PageRegions":
        """Append windows of a grid, which have neither score nor class."""
        count = len(windows)
        return PageRegions(
            torch.cat([self.boxes, windows]),
            torch.cat([self.scores, self.scores.new_zeros(count)]),
            torch.cat([self.classes, self.classes.new_full((count,), -1)]),
            torch.cat([self.embedded, embedded]),
            torch.cat([self.source, self.source.new_full((count,), GRID)]),
        )


def to_batch(
    pages: Sequence[Page],
    rows: Sequence[PageRegions],
    regions: Float[Tensor, "pages 36 768"],
    size: tuple[int, int],
    own: int,
) -> FeatureBatch:
    """Join the rows of some pages; their boxes, on a screen of ``size``, become image px."""
    factors = torch.tensor([WIDTH / size[0], HEIGHT / size[1]]).repeat(2)

    def stack(name: str) -> Tensor:
        return torch.stack([getattr(page, name) for page in rows]).cpu()

    source = stack("source").numpy().astype(np.int8)
    return FeatureBatch(
        [page.key for page in pages],
        regions=regions.float().cpu().numpy(),
        boxes=(stack("boxes").float() * factors).numpy(),
        scores=stack("scores").float().numpy(),
        classes=stack("classes").numpy().astype(np.int16),
        source=source,
        n_regions=(source == own).sum(axis=1).astype(np.int16),
    )


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
