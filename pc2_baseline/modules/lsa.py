"""Latent semantic analysis: captions as vectors of few dimensions, in closed form."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from pc2_baseline.modules.seeds import stream
from pc2_baseline.networks.fused import unit

_ROUNDS = 8
_MORE = 10
_SKETCH = 5  # part of the stream's name

Captions = Sequence[Int[np.ndarray, " _"]]
"""Ids of each caption between ``<start>`` and ``<end>``."""


@dataclass(frozen=True, slots=True)
class Lsa:
    """TF-IDF, projected on the first singular vectors of the captions that it was fitted to.

    Attributes:
        idf: Weight of each token.
        tokens: Vector of each token: a right singular vector a column; zeros for tokens that no
            fitted caption has.
        mean: Mean of the fitted captions' unit vectors.
    """

    idf: Float[Tensor, " vocabulary"]
    tokens: Float[Tensor, "vocabulary dim"]
    mean: Float[Tensor, " dim"]

    def vectors(self, captions: Captions) -> Float[Tensor, "captions dim"]:
        """Return a vector a caption: its projection, scaled to unit length, less the mean."""
        return unit(torch.sparse.mm(_tf_idf(captions, self.idf), self.tokens)) - self.mean


def fit_lsa(captions: Captions, vocabulary: int, dim: int, seed: int) -> Lsa:
    r"""Fit the analysis to captions.

    Counts are weighed by :math:`1 + \log\frac{1 + n}{1 + n_t}`, with :math:`n_t` of :math:`n`
    captions that have token :math:`t`, and rows scaled to unit length. The singular vectors come
    from subspace iteration, begun at random.

    Args:
        captions: What to learn from.
        vocabulary: Number of tokens.
        dim: Singular vectors; fewer where there are fewer captions or tokens.
        seed: Seed of the draw.

    Source:
        Deerwester et al., JASIS 1990; the smoothed weight as in scikit-learn; the iteration as in
        Halko et al., SIAM Review 2011, algorithm 4.4.
    """
    counted = [np.unique(caption[1:-1]) for caption in captions]
    having = np.bincount(np.concatenate(counted), minlength=vocabulary)
    idf = torch.from_numpy(1 + np.log((1 + len(captions)) / (1 + having)))
    table = _tf_idf(captions, idf)
    width = min(dim + _MORE, *table.shape)
    sketch = stream(seed, len(captions), _SKETCH).normal(size=(vocabulary, width))
    basis = torch.from_numpy(sketch)
    for _ in range(_ROUNDS):
        left = torch.linalg.qr(torch.sparse.mm(table, basis)).Q
        basis = torch.linalg.qr(torch.sparse.mm(table.t(), left)).Q
    right = torch.linalg.svd(torch.sparse.mm(table, basis), full_matrices=False).Vh
    tokens = (basis @ right.T)[:, :dim] * torch.from_numpy(having > 0)[:, None]
    fresh = Lsa(idf, tokens, tokens.new_zeros(tokens.shape[1]))
    return Lsa(idf, tokens, fresh.vectors(captions).mean(0))


def _tf_idf(
    captions: Captions, idf: Float[Tensor, " vocabulary"]
) -> Float[Tensor, "captions vocabulary"]:
    """Return the sparse table of weighed counts, its rows of unit length."""
    rows = np.repeat(np.arange(len(captions)), [len(caption) - 2 for caption in captions])
    columns = np.concatenate([caption[1:-1] for caption in captions])
    cells, counts = np.unique(rows * len(idf) + columns, return_counts=True)
    rows, columns = np.divmod(cells, len(idf))
    values = counts * idf.numpy()[columns]
    norms = np.sqrt(np.bincount(rows, values**2, minlength=len(captions)))
    return torch.sparse_coo_tensor(
        torch.from_numpy(np.stack([rows, columns])),
        torch.from_numpy(values / norms[rows]),
        (len(captions), len(idf)),
        check_invariants=False,
        is_coalesced=True,
    )
