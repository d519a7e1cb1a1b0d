"""Augmentation: colours changed at random, regions shifted a little."""

import torch
from jaxtyping import Float
from torch import Tensor

from now_builder.detect.boxes import clip


def recolour(
    pixels: Float[Tensor, "n 3 h w"], generator: torch.Generator
) -> Float[Tensor, "n 3 h w"]:
    """Change each channel's gain, brightness and contrast a little.

    Stronger changes (swapped channels, inversion, grey) teach the embedding to ignore colour, and
    with it much of what a picture shows. Never flips: text would become another script.

    Args:
        pixels: Values in [0, 1].
        generator: Source of randomness.
    """
    count = len(pixels)
    gain = torch.cat([_between(0.85, 1.15, count, generator) for _ in range(3)], dim=1)
    contrast = _between(0.8, 1.2, count, generator).to(pixels.device)
    brightness = _between(-0.1, 0.1, count, generator).to(pixels.device)
    pixels = pixels * gain.to(pixels.device)
    mean = pixels.mean(dim=(1, 2, 3), keepdim=True)
    return ((pixels - mean) * contrast + mean + brightness).clamp(0, 1)


def _between(
    low: float, high: float, count: int, generator: torch.Generator
) -> Float[Tensor, "n 1 1 1"]:
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
