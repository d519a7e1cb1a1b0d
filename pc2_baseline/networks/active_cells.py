"""Gradients of a similarity block from the cells that have one alone.

A hinge on the hardest negatives has a gradient in at most 3 B of the B² cells of a block, and a sum
over negatives in those that break the margin. So a block is scored without a graph, and the cells
that the loss then sends a gradient to are scored again with one: the same gradients, and a loss
sees the same matrix, ties included.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd import Function

from pc2_baseline.networks.codes import CaptionCodes, ImageCodes

FEW = 0.4
"""Share of active cells up to which scoring them again costs less than keeping a whole graph.

Measured on the CPU at widths 256 and 1,024: even at a half.
"""


@dataclass(frozen=True, slots=True)
class BlockScores:
    """How a block, and how single cells of it, are scored.

    Attributes:
        block: Scores every image with every caption.
        cells: Scores image *i* with caption *i*.
        runs: Cuts cells, in the order of their captions, into runs that fit into memory.
        parameters: Weights of both.
        count: Called with the share of active cells of a block.
    """

    block: Callable[[ImageCodes, CaptionCodes], Tensor]
    cells: Callable[[ImageCodes, CaptionCodes], Tensor]
    runs: Callable[[Int[Tensor, " cells"]], Iterable[tuple[int, int]]]
    parameters: tuple[Tensor, ...]
    count: Callable[[float], None]


def score_active(
    scores: BlockScores, images: ImageCodes, captions: CaptionCodes
) -> Float[Tensor, "images captions"]:
    """Return the similarities of a block, whose gradient is that of its active cells.

    The captions are sorted by length.
    """
    own = (images.regions, images.pooled, captions.words, captions.pooled)
    similarity: Tensor = _Block.apply(scores, captions.lengths, *own, *scores.parameters)
    return similarity


def active_share(gradient: Float[Tensor, "images captions"]) -> float:
    """Return the share of the cells of a block that have a gradient."""
    return int(gradient.count_nonzero()) / max(gradient.numel(), 1)


class _Block(Function):
    @staticmethod
    def forward(ctx: Any, scores: BlockScores, lengths: Tensor, *tensors: Tensor) -> Tensor:
        ctx.scores, ctx.lengths = scores, lengths
        ctx.save_for_backward(*tensors)
        regions, image, words, caption = tensors[:4]
        return scores.block(ImageCodes(regions, image), CaptionCodes(words, caption, lengths))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        codes, parameters = ctx.saved_tensors[:4], ctx.saved_tensors[4:]
        # Transposed, so that the cells come sorted by caption, and by the captions' lengths.
        columns, rows = gradient.T.nonzero(as_tuple=True)
        ctx.scores.count(len(rows) / max(gradient.numel(), 1))
        sums = [torch.zeros_like(tensor) for tensor in (*codes, *parameters)]
        lengths = ctx.lengths[columns.cpu()]
        for start, stop in ctx.scores.runs(lengths):
            i, j = rows[start:stop], columns[start:stop]
            places = (i, i, j, j)
            own = [code[place].requires_grad_() for code, place in zip(codes, places, strict=True)]
            with torch.enable_grad():
                similarity = ctx.scores.cells(
                    ImageCodes(own[0], own[1]), CaptionCodes(own[2], own[3], lengths[start:stop])
                )
            found = torch.autograd.grad(
                similarity, (*own, *parameters), gradient[i, j], materialize_grads=True
            )
            for total, place, value in zip(sums[:4], places, found[:4], strict=True):
                total.index_add_(0, place, value)
            for total, value in zip(sums[4:], found[4:], strict=True):
                total.add_(value)
        return None, None, *sums
