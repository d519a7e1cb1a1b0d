"""Statistics of the content that images and captions share, from similarities off the diagonal.

Row order is public, so a forger can raise the values on the diagonal, or near it. A method cannot:
it raises a pair because of what the two show, and the same content then shows elsewhere in the
matrix, in how either of them compares with all other images and captions.
"""

from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist

import numpy as np
from jaxtyping import Bool, Float

from leaderboard.metrics import Labels, Matrix

WINDOW = 1000
"""Number of images, each with its captions, that are checked at once."""

STEPS = 8
"""Largest distance of rows that count as neighbours."""

_TINY = 1e-12

Square = Float[np.ndarray, "images images"]


@dataclass(frozen=True, slots=True)
class Content:
    """Statistics of a square matrix whose row i and column i belong together.

    The off-diagonal values, less means of rows and columns, are scaled to variance 1. Values *far*
    from the diagonal are at least an eighth of the rows away.

    Attributes:
        own: mean of the diagonal, in standard deviations of the rest.
        shared: correlation of each far value with the one across the diagonal: whether image i
            is like caption j as far as image j is like caption i.
        inverse_dimensions: inverse of the effective number of dimensions, from the fourth moment of
            the singular values; 0 for independent noise, 1/d for isotropic embeddings in d
            dimensions.
        near: mean of the values k places beside the diagonal, for k from 1 to :data:`STEPS`.
        alike: how far images, and captions, that stand k places apart agree in their far values:
            the geometric mean of two correlations, each raised by two standard errors.
        size: number of rows.
    """

    own: float
    shared: float
    inverse_dimensions: float
    near: tuple[float, ...]
    alike: tuple[float, ...]
    size: int

    def dimensions_needed(self) -> float:
        r"""Return the least number of dimensions that embeddings with such own pairs need.

        If own pairs correlate with :math:`\rho` in each of d dimensions, they lie
        :math:`\rho \sqrt d` deviations above the rest, and :attr:`shared` is :math:`\rho^2`.
        """
        return max(self.own, 0.0) ** 2 / (max(self.shared, 0.0) + 4 * sqrt(2) / self.size)

    def dimensions(self) -> float:
        """Return a lower bound of the effective dimensions.

        The inverse is raised by four standard errors, as independent noise has them.
        """
        return 1 / (max(self.inverse_dimensions, 0.0) + 14 / self.size**2)

    def near_unexplained(self) -> float:
        """Return the largest value beside the diagonal, relative to how alike neighbours are.

        Neighbours that agree with c lie as much as c times the root of the dimensions above the
        rest.
        """
        noise = 6 / sqrt(2 * self.size), 4 / self.size
        return max(
            max(near - noise[0], 0.0) / max(alike, noise[1])
            for near, alike in zip(self.near, self.alike, strict=True)
        )


def own_square(similarity: Matrix, owner: Labels, first: int = 0) -> Square:
    """Return the normal scores of a window of images, each with the mean of its captions.

    Own pairs are on the diagonal. The window begins at row ``first`` and has at most
    :data:`WINDOW` images.
    """
    last = min(first + WINDOW, len(similarity))
    captions = np.flatnonzero((owner >= first) & (owner < last))
    captions = captions[np.argsort(owner[captions], kind="stable")]
    scores = normal_scores(similarity[first:last][:, captions])
    _, starts, counts = np.unique(owner[captions], return_index=True, return_counts=True)
    if len(starts) == scores.shape[1]:
        return scores
    return np.asarray(np.add.reduceat(scores, starts, axis=1) / counts)


def normal_scores(values: Matrix) -> Matrix:
    """Replace values by their order among those of the same image, then of the same caption.

    The order is given as normal quantiles, equal values as the middle of their places. It does not
    depend on a scale, or any other increasing function, of each query's own.
    """
    return _by_row(_by_row(values).T).T


def _by_row(values: Matrix) -> Matrix:
    size = values.shape[1]
    order = np.argsort(values, axis=1, kind="stable")
    ordered, places = np.take_along_axis(values, order, axis=1), np.arange(size)
    edges = np.ones((len(values), size + 1), np.bool_)
    edges[:, 1:-1] = ordered[:, 1:] != ordered[:, :-1]
    first = np.maximum.accumulate(np.where(edges[:, :-1], places, 0), axis=1)
    last = np.where(edges[:, 1:], places, size)[:, ::-1]
    last = np.minimum.accumulate(last, axis=1)[:, ::-1]
    normal, scores = NormalDist(), np.empty(values.shape)
    levels = [normal.inv_cdf((place + 1) / (2 * size)) for place in range(2 * size - 1)]
    np.put_along_axis(scores, order, np.array(levels)[first + last], axis=1)
    return scores


def read_content(square: Square) -> Content | None:
    """Compute the statistics; None if all values off the diagonal are (nearly) the same."""
    size = len(square)
    rows = np.arange(size)
    distance = np.abs(rows[:, None] - rows)
    off = distance > 0
    centred = _centred(square, off)
    spread = float(np.sqrt(np.mean(np.square(centred[off]))))
    if spread < _TINY * max(1.0, float(np.abs(square).max())):
        return None
    centred /= spread
    far = distance > max(1, size // 8)
    values = np.where(far, centred, 0.0)
    values /= np.sqrt(np.mean(np.square(centred[far]))) or 1.0
    steps = range(1, min(STEPS, size // 4) + 1)
    inverse = _inverse_dimensions(np.where(off, centred, 0.0))
    noise = 2 * sqrt(max(inverse, 1 / size) / size)
    return Content(
        own=float(np.diag(centred).mean()),
        shared=float((values * values.T).sum() / np.count_nonzero(far)),
        inverse_dimensions=inverse,
        near=tuple(_beside(centred, step) for step in steps),
        alike=tuple(_alike(values, far, step, noise) for step in steps),
        size=size,
    )


def _centred(square: Square, off: Bool[np.ndarray, "images images"]) -> Square:
    """Subtract the means of rows and columns, taken without the diagonal."""
    total = np.where(off, square, 0.0)
    by_row, by_column = (total.sum(axis=axis, keepdims=True) / (len(square) - 1) for axis in (1, 0))
    return np.asarray(square - by_row - by_column + by_row.mean())


def _inverse_dimensions(centred: Square) -> float:
    products = centred.astype(np.float32)
    products = products @ products.T
    fourth = float(np.square(products, dtype=np.float64).sum())
    # independent noise has 2 / size by itself
    return fourth / float(np.trace(products, dtype=np.float64)) ** 2 - 2 / len(centred)


def _beside(centred: Square, step: int) -> float:
    return float(np.diag(centred, step).mean() + np.diag(centred, -step).mean()) / 2


def _alike(
    values: Square, far: Bool[np.ndarray, "images images"], step: int, noise: float
) -> float:
    both = max(1, int(np.count_nonzero(far[step:] & far[:-step])))
    images = float(np.einsum("ij,ij->", values[step:], values[:-step])) / both
    captions = float(np.einsum("ij,ij->", values[:, step:], values[:, :-step])) / both
    return sqrt((max(images, 0.0) + noise) * (max(captions, 0.0) + noise))
