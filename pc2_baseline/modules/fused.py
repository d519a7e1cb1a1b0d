"""Element-wise chains with backward passes written by hand: fewer passes over large tensors."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

EPSILON = 1e-8


def unit(x: Float[Tensor, "*shape dim"]) -> Float[Tensor, "*shape dim"]:
    r"""Scale vectors to length 1, :math:`x / (\|x\| + 10^{-8})`.

    A zero vector stays zero, and its gradient is that of the scaling alone.
    """
    scaled: Tensor = _Unit.apply(x)
    return scaled


def compare(
    context: Float[Tensor, "images words dim"],
    words: Float[Tensor, "words dim"],
    weight: Float[Tensor, "node dim"],
    bias: Float[Tensor, " node"],
) -> Float[Tensor, "images words node"]:
    """Project the squared difference between unit contexts and words.

    The same as ``linear((unit(context) - words) ** 2)``, keeping one large tensor for the backward
    pass instead of five.

    Args:
        context: What each word attends to in each image, of any length.
        words: Unit vectors.
        weight: Of the projection.
        bias: Of the projection.
    """
    projected: Tensor = _Compare.apply(context, words, weight, bias)
    return projected


def _unit_(x: Tensor) -> tuple[Tensor, Tensor]:
    """Scale vectors to length 1 out of place; give them and their lengths."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / (length + EPSILON), length


def _unit_backward_(gradient: Tensor, scaled: Tensor, length: Tensor) -> Tensor:
    """Turn the gradient of unit vectors into that of the vectors, in place."""
    along = torch.linalg.vecdot(gradient, scaled).unsqueeze(-1)
    along = along * ((length + EPSILON) / length).masked_fill(length == 0, 0.0)
    return gradient.addcmul_(scaled, along, value=-1).div_(length + EPSILON)


class _Unit(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        scaled, length = _unit_(x)
        ctx.save_for_backward(scaled, length)
        return scaled

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _unit_backward_(gradient.clone(), *ctx.saved_tensors)


class _Compare(Function):
    @staticmethod
    def forward(ctx: Any, context: Tensor, words: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        scaled, length = _unit_(context)
        ctx.save_for_backward(scaled, length, words, weight)
        return functional.linear((scaled - words).square_(), weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        scaled, length, words, weight = ctx.saved_tensors
        flat = gradient.flatten(0, 1)
        difference = scaled - words
        inner = (gradient @ weight).mul_(difference).mul_(2)
        of_weight = flat.T @ difference.square_().flatten(0, 1)
        of_words = -inner.sum(0)
        return _unit_backward_(inner, scaled, length), of_words, of_weight, flat.sum(0)
