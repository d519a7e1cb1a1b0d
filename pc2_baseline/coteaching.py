"""Co-teaching: two peers, each taught by the other's division."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from pc2_baseline.division import Division

PEERS = ("a", "b")


@dataclass(frozen=True, slots=True)
class Beliefs:
    """What one peer believes of all training pairs at the end of an epoch.

    Attributes:
        loss: Mean-negative triplet loss of each pair.
        division: From the losses.
        oscillation: How far its pseudo-prediction moved; zeros in the first epoch.
        stable_prob: Posterior of little oscillation; zeros where none could be told.
    """

    loss: Float[np.ndarray, " pairs"]
    division: Division
    oscillation: Float[np.ndarray, " pairs"]
    stable_prob: Float[np.ndarray, " pairs"]


def crossed(beliefs: Sequence[Beliefs]) -> Iterator[tuple[int, Beliefs]]:
    """Give each peer's number with the beliefs of the *other* peer.

    Args:
        beliefs: Of the first and the second peer.
    """
    first, second = beliefs
    yield 0, second
    yield 1, first
