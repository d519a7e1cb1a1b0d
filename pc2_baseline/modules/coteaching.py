"""Co-teaching: two peers, each taught by the other's division."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from pc2_baseline.modules.division import Division

PEERS = ("a", "b")


@dataclass(frozen=True, slots=True)
class Beliefs:
    """What one peer believes of all training pairs at the end of an epoch.

    Attributes:
        loss: Mean-negative triplet loss of each pair.
        division: From the losses.
        oscillation: How far its pseudo-prediction moved; zeros in the first epoch.
        stable_prob: Posterior of little oscillation; zeros where none could be told.
        is_stable: The pairs whose margin is rectified by it.
    """

    loss: Float[np.ndarray, " pairs"]
    division: Division
    oscillation: Float[np.ndarray, " pairs"]
    stable_prob: Float[np.ndarray, " pairs"]
    is_stable: Bool[np.ndarray, " pairs"]


def taught_by(beliefs: Sequence[Beliefs], peer: int) -> Beliefs:
    """Give the beliefs that a peer learns by: those of the *other* one.

    Args:
        beliefs: Of the first and the second peer.
        peer: Who learns.
    """
    return beliefs[1 - peer]
