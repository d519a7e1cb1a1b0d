"""Augmentation: colours changed at random, pages magnified or shrunk, regions shifted a little."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from jaxtyping import Bool, Float
from torch import Tensor
from torchvision.ops import box_area

from now_builder.detect.boxes import clip
from now_builder.detect.labels.elements import SMALLEST
from now_builder.detect.training.losses import Targets
from now_builder.formats.shard import WIDTH

_SHARE = 0.5
"""Share of the pages that are shrunk or magnified."""
_VISIBLE = 0.6
"""Share of an element that must stay on the screen for it to count."""


def recolour(
    pixels: Float[Tensor, "n 3 h w"], generator: torch.Generator
) -> Float[Tensor, "n 3 h w"]:
    """Change each channel's gain, brightness and contrast a little.

    Stronger changes (swapped channels, inversion, grey) teach the embedding to ignore colour, and
    with it much of what a picture shows. Never flips: text would become another script.
    """
    count = len(pixels)
    gain = torch.cat([_between(0.85, 1.15, count, generator) for _ in range(3)], dim=1)
    contrast = _between(0.8, 1.2, count, generator).to(pixels.device)
    brightness = _between(-0.1, 0.1, count, generator).to(pixels.device)
    pixels = pixels * gain.to(pixels.device)
    mean = pixels.mean(dim=(1, 2, 3), keepdim=True)
    return ((pixels - mean) * contrast + mean + brightness).clamp(0, 1)


def _between(low: float, high: float, count: int, generator: torch.Generator) -> Tensor:
    return (low + (high - low) * torch.rand(count, generator=generator)).view(-1, 1, 1, 1)


def jitter(
    boxes: Float[Tensor, "n 4"], size: tuple[int, int], generator: torch.Generator
) -> Float[Tensor, "n 4"]:
    """Move each edge by up to a tenth of the box's side."""
    side = (boxes[:, 2:] - boxes[:, :2]).repeat(1, 2)
    moved = (
        boxes + (torch.rand(boxes.shape, generator=generator).to(boxes.device) - 0.5) * 0.2 * side
    )
    return clip(moved, size)


def zoom(
    pixels: Float[Tensor, "n 3 h w"],
    targets: Sequence[Targets],
    largest: float,
    generator: torch.Generator,
) -> tuple[Float[Tensor, "n 3 h w"], list[Targets]]:
    """Shrink or magnify half of the pages by a random factor, at a random place of the screen.

    The factor's logarithm is uniform between ``1 / largest`` and the root of ``largest``: pages
    that were made for wide screens come shrunk. The space around a shrunk page repeats its edges.
    Elements that are cut off too far, or get too small to be labelled, become ignored ones; strings
    that are cut off as far are dropped.
    """
    height, width = pixels.shape[2:]
    screen = torch.tensor([float(width), float(height)])
    draws = torch.rand(len(pixels), 4, generator=generator)
    factors = torch.exp((1.5 * draws[:, 0] - 1) * math.log(largest))
    factors = torch.where(draws[:, 1] < _SHARE, factors, torch.ones_like(factors))
    shifts = draws[:, 2:] * (1 - factors[:, None]) * screen
    off_centre = shifts / screen + (factors[:, None] - 1) / 2
    affine = torch.zeros(len(pixels), 2, 3)
    affine[:, 0, 0] = affine[:, 1, 1] = 1 / factors
    affine[:, :, 2] = -2 * off_centre / factors[:, None]
    grid = F.affine_grid(affine, list(pixels.shape), align_corners=False).to(pixels)
    moved = F.grid_sample(pixels, grid, padding_mode="border", align_corners=False)
    places = zip(targets, factors.tolist(), shifts.to(pixels.device), strict=True)
    return moved, [_moved(page, factor, shift, (width, height)) for page, factor, shift in places]


def _moved(page: Targets, factor: float, shift: Tensor, size: tuple[int, int]) -> Targets:
    """Magnify and shift the boxes of a page and drop what leaves the screen or gets too small."""
    corner = shift.new_tensor(size).repeat(2)
    smallest = SMALLEST / WIDTH * size[0]

    def move(boxes: Float[Tensor, "n 4"]) -> tuple[Float[Tensor, "n 4"], Bool[Tensor, " n"]]:
        whole = boxes * factor + shift.repeat(2)
        seen = torch.minimum(whole.clamp(min=0), corner)
        return seen, box_area(seen) >= _VISIBLE * box_area(whole).clamp(min=1e-6)

    boxes, stays = move(page.boxes)
    stays &= (boxes[:, 2:] - boxes[:, :2]).amin(dim=1) >= smallest
    ignored, _ = move(page.ignored)
    texts, read = move(page.texts)
    left_over = torch.cat([ignored, boxes[~stays]])
    return replace(
        page,
        boxes=boxes[stays],
        classes=page.classes[stays],
        ignored=left_over[box_area(left_over) > 0],
        texts=texts[read],
        vectors=page.vectors[read],
    )
