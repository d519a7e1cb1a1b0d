"""Propose regions with a pyramid on the C4 map and anchors in the shapes of page elements."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torchvision.ops import Conv2dNormActivation, nms

from now_builder.detect import boxes as geometry
from now_builder.formats.shard import WIDTH

LEVELS = 3
SHAPES = (
    (0, 40, 32), (0, 128, 36), (0, 320, 44), (0, 600, 48),
    (1, 96, 96), (1, 300, 112), (1, 640, 128),
    (2, 220, 220), (2, 660, 300), (2, 660, 680),
)  # fmt: skip
"""Pyramid level, width and height of each anchor shape, in px of a 720 x 1280 screen: icons, words,
lines and headings; pictures, rows and cards; banners and dialogs."""
_RARE = -4.6
"""Initial logit of the objectness: one anchor in a hundred (Lin et al., ICCV 2017, Sec. 4.1)."""


class PageMaps(NamedTuple):
    """Feature maps of pages.

    Attributes:
        regions: C4 plus context, for the embedding of regions.
        levels: Maps at one, two and four times the stride of C4, for proposals.
    """

    regions: Float[Tensor, "n c i j"]
    levels: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Anchors:
    """Anchors of a page, level by level.

    Attributes:
        boxes: Boxes in input px.
        shape: Index of each anchor's shape.
        stride: Distance in input px to the next anchor of the same shape.
        shapes: Widths and heights of the shapes in input px.
    """

    boxes: Float[Tensor, "a 4"]
    shape: Int64[Tensor, " a"]
    stride: Float[Tensor, " a"]
    shapes: Float[Tensor, "shapes 2"]


@dataclass(frozen=True, slots=True)
class Proposals:
    """Class-agnostic boxes of one page, best first, in detector input px.

    Attributes:
        scores: Probability, in [0, 1], that a box shows an element.
    """

    boxes: Float[Tensor, "n 4"]
    scores: Float[Tensor, " n"]


class Pyramid(nn.Module):
    """Compute maps at several strides from C4, each with the coarser ones added.

    Source:
        Feature pyramid networks (Lin et al., CVPR 2017).

    Differs:
        The only input is C4; the coarsest map is used for context only; and the finest level is
        added to C4, so that regions are embedded with context.
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.reduce = Conv2dNormActivation(channels, width, 1)
        self.down = nn.ModuleList(
            Conv2dNormActivation(width, width, stride=2) for _ in range(LEVELS)
        )
        self.smooth = nn.ModuleList(Conv2dNormActivation(width, width) for _ in range(LEVELS))
        self.back = nn.Conv2d(width, channels, 1)

    def forward(self, c4: Float[Tensor, "n c i j"]) -> PageMaps:
        """Compute the maps of pages."""
        below = [self.reduce(c4)]
        for layer in self.down:
            below.append(layer(below[-1]))
        coarse = below.pop()
        levels: list[Tensor] = []
        for fine, layer in zip(reversed(below), self.smooth, strict=True):
            coarse = layer(fine + F.interpolate(coarse, size=fine.shape[2:], mode="nearest"))
            levels.insert(0, coarse)
        return PageMaps(c4 + self.back(levels[0]), tuple(levels))


class RegionProposals(nn.Module):
    """Predict for every anchor a box and its objectness, the expected overlap with an element.

    Source:
        Faster R-CNN (Ren et al., NeurIPS 2015), Sec. 3.1; the quality of a box as its objectness:
        generalized focal loss (Li et al., NeurIPS 2020).

    Differs:
        Anchors have the shapes of page elements, most of them wide and flat, instead of a grid of
        sizes and ratios; small ones are only on the fine level.
    """

    def __init__(
        self, width: int, input_size: tuple[int, int], stride: int, candidates: int, overlap: float
    ) -> None:
        super().__init__()
        self.size, self.stride = input_size, stride
        self.candidates, self.overlap = candidates, overlap
        self.tower = Conv2dNormActivation(width, width)
        counts = [sum(level == at for level, *_ in SHAPES) for at in range(LEVELS)]
        self.objectness = nn.ModuleList(nn.Conv2d(width, count, 1) for count in counts)
        self.deltas = nn.ModuleList(nn.Conv2d(width, 4 * count, 1) for count in counts)
        for heads, bias in ((self.objectness, _RARE), (self.deltas, 0.0)):
            for head in heads:
                nn.init.normal_(head.weight, std=0.01)  # type: ignore[arg-type]
                nn.init.constant_(head.bias, bias)  # type: ignore[arg-type]
        self._anchors: Anchors | None = None

    def forward(
        self, maps: PageMaps
    ) -> tuple[Float[Tensor, "n a"], Float[Tensor, "n a 4"], Anchors]:
        """Return objectness logits and regression offsets of every anchor, and the anchors."""
        scores, offsets = [], []
        for level, score, offset in zip(maps.levels, self.objectness, self.deltas, strict=True):
            hidden = self.tower(level)
            scores.append(score(hidden).permute(0, 2, 3, 1).flatten(1))
            deltas = offset(hidden).permute(0, 2, 3, 1)
            offsets.append(deltas.reshape(len(hidden), -1, 4))
        return torch.cat(scores, dim=1), torch.cat(offsets, dim=1), self.anchors(maps)

    def anchors(self, maps: PageMaps) -> Anchors:
        """Return the anchors for maps of this size and device."""
        cached, device = self._anchors, maps.regions.device
        grids = [(int(level.shape[2]), int(level.shape[3])) for level in maps.levels]
        count = sum(
            rows * columns * sum(level == at for level, *_ in SHAPES)
            for at, (rows, columns) in enumerate(grids)
        )
        if cached is not None and len(cached.boxes) == count and cached.boxes.device == device:
            return cached
        scale = self.size[0] / WIDTH
        shapes = torch.tensor([size for _, *size in SHAPES], device=device) * scale
        boxes, shape, strides = [], [], []
        for at, grid in enumerate(grids):
            places = [i for i, (level, *_) in enumerate(SHAPES) if level == at]
            of_level = torch.tensor(places, device=device)
            stride = self.stride * 2**at
            boxes.append(geometry.anchors(grid, stride, shapes[of_level]))
            shape.append(of_level.repeat(grid[0] * grid[1]))
            strides.append(torch.full((len(boxes[-1]),), float(stride)))
        self._anchors = Anchors(
            torch.cat(boxes), torch.cat(shape).to(device), torch.cat(strides).to(device), shapes
        )
        return self._anchors

    def propose(
        self,
        objectness: Float[Tensor, "n a"],
        deltas: Float[Tensor, "n a 4"],
        anchors: Anchors,
        count: int,
    ) -> list[Proposals]:
        """Keep the best boxes of each page after class-agnostic suppression, by objectness."""
        best, places = objectness.float().topk(min(self.candidates, objectness.shape[1]), dim=1)
        offsets = deltas.gather(1, places[:, :, None].expand(-1, -1, 4)).float()
        decoded = geometry.decode(offsets.flatten(0, 1), anchors.boxes[places.flatten()])
        decoded = geometry.clip(decoded, self.size).reshape(offsets.shape)
        pages = []
        for boxes, logits in zip(decoded, best, strict=True):
            kept = nms(boxes, logits, self.overlap)[:count]
            pages.append(Proposals(boxes[kept], logits[kept].sigmoid()))
        return pages
