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
    pooled: Float[Tensor, "images width"]

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
    pooled: Float[Tensor, "captions width"]
    lengths: Int[Tensor, " captions"]

    def __getitem__(self, rows: slice | Int[Tensor, " rows"]) -> "CaptionCodes":
        on_cpu = rows if isinstance(rows, slice) else rows.cpu()
        beside = rows if isinstance(rows, slice) else rows.to(self.words.device)
        return CaptionCodes(self.words[beside], self.pooled[beside], self.lengths[on_cpu])


def word_mask(lengths: Int[Tensor, " captions"], words: int, device: torch.device) -> Tensor:
    """Mark the words that are there: (captions, words), bool."""
    return torch.arange(words, device=device) < lengths.to(device)[:, None]


def word_places(
    lengths: Int[Tensor, " captions"], tokens: Int[Tensor, "captions words"]
) -> tuple[Int[Tensor, " allwords"], Int[Tensor, " allwords"]]:
    """Return the caption and the place of each word that is there, beside the tokens.

    They follow from the lengths, which the host has: a mask on the device would be waited for.
    """
    there = word_mask(lengths, tokens.shape[1], lengths.device)
    caption, place = there.nonzero().to(tokens.device).unbind(1)
    return caption, place


def xavier(module: nn.Module) -> None:
    r"""Draw the linear layers of a module uniformly from ±√6/√(in+out), biases zero."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
