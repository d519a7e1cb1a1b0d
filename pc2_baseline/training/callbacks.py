"""Callbacks of a training: what may judge or show an epoch, without any influence on it."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from pc2_baseline.training.checkpoint import CheckpointState
from pc2_baseline.training.method import EpochOutputs

Judge = Callable[[EpochOutputs], dict[str, float]]
"""Computes figures of an epoch for the log, the first also for the progress line; maybe none."""


@runtime_checkable
class Callback(Protocol):
    """Shows the epochs of a training."""

    name: str
    """Name in messages."""

    def on_epoch_end(self, state: CheckpointState, outputs: EpochOutputs) -> None:
        """Show the epoch that just ended."""

    def close(self) -> None:
        """Release what the callback holds open."""
