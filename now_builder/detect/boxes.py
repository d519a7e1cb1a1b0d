"""Geometry of boxes: overlap, regression targets, suppression, anchors, windows of a grid."""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torchvision.ops import box_area, nms

_WEIGHTS = (10.0, 10.0, 5.0, 5.0)
_LARGEST_LOG = 4.135  # log(1000 / 16): limits the growth of a box in one regression


def intersection_over_minimum(
    a: Float[Tensor, "n 4"], b: Float[Tensor, "m 4"]
) -> Float[Tensor, "n m"]:
    r"""Compute :math:`|a \cap b| / \min(|a|, |b|)`; 1 if one box contains the other.

    Source:
        "IoM", which links elements and strings in APT (Gu et al., CVPR 2023, Fig. 3).
    """
    corner = torch.minimum(a[:, None, 2:], b[None, :, 2:])
    size = (corner - torch.maximum(a[:, None, :2], b[None, :, :2])).clamp(min=0)
    smaller = torch.minimum(box_area(a)[:, None], box_area(b)[None, :])
    return size[..., 0] * size[..., 1] / smaller.clamp(min=1e-6)


def decode(deltas: Float[Tensor, "n 4"], anchors: Float[Tensor, "n 4"]) -> Float[Tensor, "n 4"]:
    """Decode weighted offsets from anchors to boxes.

    Source:
        R-CNN (Girshick et al., CVPR 2014), with the weights (10, 10, 5, 5) of Fast R-CNN.
    """
    deltas = deltas / deltas.new_tensor(_WEIGHTS)
    base = (anchors[:, 2:] - anchors[:, :2]).clamp(min=1e-3)
    centre = anchors[:, :2] + base / 2 + deltas[:, :2] * base
    size = base * torch.exp(deltas[:, 2:].clamp(max=_LARGEST_LOG))
    return torch.cat([centre - size / 2, centre + size / 2], dim=1)


def clip(boxes: Float[Tensor, "n 4"], size: tuple[int, int]) -> Float[Tensor, "n 4"]:
    """Clip boxes to a screen of ``size`` (width, height), keeping a side of at least one px."""
    width, height = size
    left = boxes[:, 0].clamp(0, width - 1)
    top = boxes[:, 1].clamp(0, height - 1)
    right = torch.maximum(boxes[:, 2].clamp(max=width), left + 1)
    bottom = torch.maximum(boxes[:, 3].clamp(max=height), top + 1)
    return torch.stack([left, top, right, bottom], dim=1)


def select(
    boxes: Float[Tensor, "n 4"], scores: Float[Tensor, " n"], count: int, threshold: float = 0.5
) -> tuple[Int64[Tensor, " kept"], Bool[Tensor, " kept"]]:
    """Keep the ``count`` best boxes after class-agnostic suppression, relaxed if too few remain.

    Returns:
        Indices of the boxes kept at ``threshold``, then of those kept by a relaxed threshold, each
        by decreasing score; and whether each was kept at ``threshold``.

    Source:
        Relaxation (0.5, 0.6 … 0.9, none) as usual in bottom-up-attention extraction.
    """
    strict = nms(boxes, scores, threshold)[:count]
    kept = strict
    level = threshold
    while len(kept) < min(count, len(boxes)):
        level += 0.1
        wider = scores.argsort(descending=True, stable=True) if level > 0.95 else None
        kept = nms(boxes, scores, level) if wider is None else wider
        extra = kept[~torch.isin(kept, strict)]
        kept = torch.cat([strict, extra])[:count]
    return kept, torch.isin(kept, strict)


def windows(size: tuple[int, int]) -> Float[Tensor, "windows 4"]:
    """Return a grid of 36 overlapping windows (4 across, 9 down) of a screen, centre first."""
    width, height = size
    across, down = 4, 9
    w, h = width / 2.5, height / 5
    x = torch.linspace(0, width - w, across)
    y = torch.linspace(0, height - h, down)
    left, top = x.repeat(down), y.repeat_interleave(across)
    boxes = torch.stack([left, top, left + w, top + h], dim=1)
    centre = boxes.new_tensor([width / 2, height / 2])
    distance = ((boxes[:, :2] + boxes[:, 2:]) / 2 - centre).square().sum(dim=1)
    return boxes[distance.argsort(stable=True)]


def anchors(
    grid: tuple[int, int], stride: int, shapes: Float[Tensor, "shapes 2"]
) -> Float[Tensor, "anchors 4"]:
    """Return anchors of each shape (px) at each cell of a map, row by row."""
    rows, columns = grid
    y = (torch.arange(rows, device=shapes.device) + 0.5) * stride
    x = (torch.arange(columns, device=shapes.device) + 0.5) * stride
    centres = torch.stack([x.repeat(rows), y.repeat_interleave(columns)], dim=1)[:, None]
    half = shapes[None] / 2
    return torch.cat([centres - half, centres + half], dim=2).reshape(-1, 4)


def describe(boxes: Float[Tensor, "n 4"], size: tuple[int, int]) -> Float[Tensor, "n 8"]:
    """Describe boxes on a screen, both in px, by eight numbers of similar size.

    Returns:
        Edges as shares of the screen; logarithms of the shares of its width and height, of the
        aspect ratio, and of the area (divided by ten).
    """
    screen = boxes.new_tensor(size)
    sides = (boxes[:, 2:] - boxes[:, :2]).clamp(min=1)
    width, height = sides[:, :1], sides[:, 1:]
    shares = [boxes / screen.repeat(2), (sides / screen).log()]
    return torch.cat([*shares, (width / height).log(), (width * height).log() / 10], dim=1)


def paired_iou(a: Float[Tensor, "n 4"], b: Float[Tensor, "n 4"]) -> Float[Tensor, " n"]:
    """Compute the overlap (IoU) of each box with the box in the same row."""
    corner = torch.minimum(a[:, 2:], b[:, 2:])
    shared = (corner - torch.maximum(a[:, :2], b[:, :2])).clamp(min=0).prod(dim=1)
    overlap: Tensor = shared / (box_area(a) + box_area(b) - shared).clamp(min=1e-6)
    return overlap
