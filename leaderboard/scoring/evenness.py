"""Whether some power or exponential of similarities has even sums of rows and of columns."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float

from leaderboard.metrics import Labels, Matrix

SAMPLE = 192
"""Number of rows, and of columns, whose sums are compared."""

_VALUES = 2**20
_GRID = np.geomspace(0.1, 40, 16)
_REFINED = 8


def even_power(similarity: Matrix, owner: Labels, spread: float) -> float:
    r"""Return the least spread of row and column sums over :math:`e^{a s}` and :math:`s^a`.

    It is in units of what unrelated values give, the larger of rows and columns: 0 for any power or
    logarithm of a matrix that was normalised both ways, about 0.5 for CSLS and the logarithm of a
    mild dual softmax, which take half of such effects away, and 1 or more for scores of images
    and captions one by one.
    """
    rows, columns = (_chosen(size, other) for size, other in _both(similarity.shape))
    of_rows = np.arange(similarity.shape[0])[rows, None] == owner
    of_columns = owner[columns] == np.arange(similarity.shape[0])[:, None]
    parts = [(similarity[rows], of_rows), (similarity[:, columns].T, of_columns.T)]
    least = _least(lambda power: _evenness(parts, power / spread))
    if min(values.min() for values, _ in parts) <= 0:
        return least
    logs = [(np.log(values), own) for values, own in parts]
    wide = max(float(logs[0][0].std()), 1e-12)
    return min(least, _least(lambda power: _evenness(logs, power / wide)))


def _both(shape: tuple[int, ...]) -> tuple[tuple[int, int], tuple[int, int]]:
    return (shape[0], shape[1]), (shape[1], shape[0])


def _chosen(size: int, other: int) -> Labels:
    count = min(size, SAMPLE, max(50, _VALUES // other))
    return np.sort(np.random.default_rng(0).permutation(size)[:count])


def _least(evenness: Callable[[float], float]) -> float:
    """Search a grid of powers, then between the neighbours of its best."""
    found = [evenness(power) for power in _GRID]
    best = int(np.argmin(found))
    low, high = np.log(_GRID[[max(0, best - 1), min(len(_GRID) - 1, best + 1)]])
    least = found[best]
    for _ in range(_REFINED):
        thirds = low + (high - low) / 3, high - (high - low) / 3
        values = [evenness(float(np.exp(place))) for place in thirds]
        least = min(least, *values)
        low, high = (low, thirds[1]) if values[0] < values[1] else (thirds[0], high)
    return least


Part = tuple[Float[np.ndarray, "_ _"], Bool[np.ndarray, "_ _"]]


def _evenness(parts: list[Part], power: float) -> float:
    return max(_of_rows(values, own, power) for values, own in parts)


def _of_rows(
    values: Float[np.ndarray, "some values"], own: Bool[np.ndarray, "some values"], power: float
) -> float:
    """Return the spread of the rows' means in units of the values' spread within rows."""
    raised = np.exp(power * (values - values.max()).astype(np.float64))
    others = np.where(own, 0.0, raised)
    count = own.shape[1] - np.count_nonzero(own, axis=1)
    total = others.sum(axis=1)
    # Own pairs can be all equal, and larger by more than a float holds: each part is centred alone.
    sums = [np.where(own, raised, 0.0).sum(axis=1), total]
    even = sum(part - part.mean() for part in sums) / values.shape[1]
    apart = np.where(own, 0.0, raised - (total / count)[:, None])
    unrelated = np.sqrt(float(np.mean(np.square(apart).sum(axis=1) / count)) / values.shape[1])
    return float(np.std(even) / unrelated) if unrelated else 1.0
