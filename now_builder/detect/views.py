"""Two views of a page: its colours changed at random, its regions shifted a little."""

import torch
from jaxtyping import Float
from torch import Tensor

from now_builder.detect.boxes import clip


def recolour(
    pixels: Float[Tensor, "n 3 h w"], generator: torch.Generator
) -> Float[Tensor, "n 3 h w"]:
    """Swap and mix channels, invert now and then, change brightness and contrast.

    Never flips: text would become another script.

    Args:
        pixels: Values in [0, 1].
        generator: The source of randomness.
    """
    count = len(pixels)
    mixed = torch.stack([_mixing(generator) for _ in range(count)]).to(pixels.device)
    pixels = torch.einsum("nij,njhw->nihw", mixed, pixels)
    inverted = (torch.rand(count, generator=generator) < 0.15).to(pixels.device).view(-1, 1, 1, 1)
    pixels = torch.where(inverted, 1 - pixels, pixels)
    contrast = _between(0.7, 1.3, count, generator).to(pixels.device)
    brightness = _between(-0.15, 0.15, count, generator).to(pixels.device)
    mean = pixels.mean(dim=(1, 2, 3), keepdim=True)
    return ((pixels - mean) * contrast + mean + brightness).clamp(0, 1)


def _mixing(generator: torch.Generator) -> Float[Tensor, "3 3"]:
    """Draw a channel permutation (half the time) and a shift towards grey."""
    matrix = torch.eye(3)
    if float(torch.rand((), generator=generator)) < 0.5:
        matrix = matrix[torch.randperm(3, generator=generator)]
    grey = float(torch.rand((), generator=generator)) ** 2
    return (1 - grey) * matrix + grey * torch.full((3, 3), 1 / 3)


def _between(
    low: float, high: float, count: int, generator: torch.Generator
) -> Float[Tensor, "n 1 1 1"]:
    return (low + (high - low) * torch.rand(count, generator=generator)).view(-1, 1, 1, 1)


def jitter(
    boxes: Float[Tensor, "n 4"], size: tuple[int, int], generator: torch.Generator
) -> Float[Tensor, "n 4"]:
    """Move each edge by up to a tenth of the box's side.

    Args:
        boxes: In input px.
        size: Width and height of the input.
        generator: The source of randomness.
    """
    side = (boxes[:, 2:] - boxes[:, :2]).repeat(1, 2)
    moved = (
        boxes + (torch.rand(boxes.shape, generator=generator).to(boxes.device) - 0.5) * 0.2 * side
    )
    return clip(moved, size)
