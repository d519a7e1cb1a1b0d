"""Vectors of words, centred and evened out in how far they spread."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pc2_baseline.networks.fused import unit

POWER = 0.8
"""How far spreads are evened out: 0 not at all, 1 wholly."""
FLOOR = 0.02
"""Share of the widest variance that is added to every variance."""


@dataclass(frozen=True, slots=True)
class Whitening:
    """A map that centres vectors and evens out how far they spread in each direction.

    Frequent letters and endings, which all texts have, count less after it.

    Attributes:
        mean: Mean of the vectors that it was fitted to.
        matrix: Symmetric.
    """

    mean: Float[Tensor, " dim"]
    matrix: Float[Tensor, "dim dim"]

    def __call__(self, rows: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows dim"]:
        """Return unit vectors."""
        mapped: Tensor = unit((rows - self.mean) @ self.matrix)
        return mapped


def fit_whitening(blocks: Iterable[Float[Tensor, "_ dim"]]) -> Whitening:
    r"""Fit :math:`(\Sigma + f\sigma_1 I)^{-p/2}` to vectors, with the widest variance sigma_1."""
    count, total, products = 0, torch.zeros(()), torch.zeros(())
    for block in blocks:
        count, total, products = (
            count + len(block),
            total + block.sum(0),
            products + block.T @ block,
        )
    mean = total / max(1, count)
    spread, axes = torch.linalg.eigh(products / max(1, count) - mean.outer(mean))
    spread = spread.clamp(min=0)
    scale = (spread + FLOOR * spread[-1] + 1e-12).pow(-POWER / 2)
    return Whitening(mean, (axes * scale) @ axes.T)
