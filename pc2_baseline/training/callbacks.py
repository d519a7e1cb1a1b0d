"""Callbacks of a training: what may judge or show an epoch, without any influence on it."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from pc2_baseline.progress import say
from pc2_baseline.training.checkpoint import CheckpointState
from pc2_baseline.training.method import EpochOutputs


@runtime_checkable
class Judge(Protocol):
    """Computes figures of an epoch from its outputs, for the log.

    Attributes:
        headline: The figure that the progress line shows.
    """

    headline: str

    def figures(self, outputs: EpochOutputs) -> dict[str, float]:
        """Return figures by name; empty if the outputs have nothing to judge."""


@runtime_checkable
class Callback(Protocol):
    """Shows the epochs of a training.

    Attributes:
        name: Name in messages.
    """

    name: str

    def on_epoch_end(self, state: CheckpointState, outputs: EpochOutputs) -> None:
        """Show the epoch that just ended.

        Args:
            state: State whose last record is the new epoch's.
            outputs: See :meth:`~pc2_baseline.training.method.Method.epoch_outputs`.
        """

    def close(self) -> None:
        """Release what the callback holds open."""


class Callbacks:
    """Several callbacks; one that fails is reported once and left out from then on."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._all = list(callbacks)
        self._active = list(callbacks)

    def on_epoch_end(self, state: CheckpointState, outputs: EpochOutputs) -> None:
        """Call each callback that has not failed yet."""
        for callback in list(self._active):
            try:
                callback.on_epoch_end(state, outputs)
            except Exception as error:  # noqa: BLE001 - no picture is worth a training
                reason = str(error).partition("\n")[0]
                say(f"{callback.name}: left out from here on ({type(error).__name__}: {reason})")
                self._active.remove(callback)

    def close(self) -> None:
        """Close all callbacks."""
        for callback in self._all:
            callback.close()
