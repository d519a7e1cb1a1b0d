"""The regions of a page on their way to the feature file: filled up to 36, joined to a batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from now_builder.detect.base import Page
from now_builder.formats.features import SOURCES, FeatureBatch
from now_builder.formats.shard import HEIGHT, WIDTH

NMS = 0.5
"""Overlap (IoU) above which suppression drops the weaker of two regions at first."""
DETECTOR, RELAXED, GRID = (SOURCES.index(name) for name in ("detector", "relaxed", "grid"))


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
