"""Outputs of the encoders: local and pooled vectors."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class ImageCodes:
    """Encoded screenshots.

    Attributes:
        regions: One unit vector a region.
        pooled: One unit vector a screenshot.
    """

    regions: Float[Tensor, "images regions dim"]
    pooled: Float[Tensor, "images dim"]

    def __getitem__(self, rows: slice | Int[Tensor, " rows"]) -> "ImageCodes":
        return ImageCodes(self.regions[rows], self.pooled[rows])


@dataclass(frozen=True, slots=True)
class CaptionCodes:
    """Encoded captions.

    Attributes:
        words: One unit vector a word; zeros from ``lengths`` on.
        pooled: One unit vector a caption.
        lengths: Words of each caption, on the CPU.
    """

    words: Float[Tensor, "captions words dim"]
    pooled: Float[Tensor, "captions dim"]
    lengths: Int[Tensor, " captions"]

    def __getitem__(self, rows: slice | Int[Tensor, " rows"]) -> "CaptionCodes":
        on_cpu = rows if isinstance(rows, slice) else rows.cpu()
        return CaptionCodes(self.words[rows], self.pooled[rows], self.lengths[on_cpu])


def word_mask(lengths: Int[Tensor, " captions"], words: int, device: torch.device) -> Tensor:
    """Mark the words that are there: (captions, words), bool."""
    return torch.arange(words, device=device) < lengths.to(device)[:, None]


def xavier(module: nn.Module) -> None:
    r"""Draw the linear layers of a module uniformly from ±√6/√(in+out), biases zero."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
