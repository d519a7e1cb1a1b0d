"""What a user watches a training by: TensorBoard scalars and pictures; they never stop it."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from pc2_baseline.analysis.truth import Truth
from pc2_baseline.config import TrainSettings
from pc2_baseline.methods.base import rate
from pc2_baseline.training.checkpoint import CheckpointState
from pc2_baseline.training.progress import say
from pc2_baseline.training.run_folder import CURVES, PICTURES, TENSORBOARD
from pc2_baseline.training.tensorboard import Board


class Watch:
    """Show each epoch; what fails is told once and left out from then on.

    Args:
        run: The run folder.
        pairs: Of the training split.
        train: What to show, and which rate an epoch has.
        truth: Colours the pictures where it is known.
        first: The epoch that comes next.
    """

    def __init__(
        self, run: Path, pairs: int, train: TrainSettings, truth: Truth | None, first: int
    ) -> None:
        self.run = run
        self.pairs = pairs
        self.train = train
        self.truth = truth
        self.first = first
        self.board: Board | None = None
        self.shown: dict[str, Callable[[CheckpointState, Mapping[str, np.ndarray]], None]] = {}
        if self.train.tensorboard:
            self.shown[f"{run / TENSORBOARD}"] = self._scalars
        if self.train.pictures:
            self.shown[f"pictures of {run}"] = self._pictures

    def close(self) -> None:
        """Close the event file."""
        if self.board is not None:
            self.board.close()

    def epoch(self, state: CheckpointState, beliefs: Mapping[str, np.ndarray]) -> None:
        """Show the epoch that just ended.

        Args:
            state: With the new epoch's record at its end.
            beliefs: The epoch's division, by the names of ``divisions/``; may be empty.
        """
        for name, show in list(self.shown.items()):
            try:
                show(state, beliefs)
            except Exception as error:  # noqa: BLE001 - no picture is worth a training
                reason = str(error).partition("\n")[0]
                say(f"{name}: left out from here on ({type(error).__name__}: {reason})")
                del self.shown[name]

    def _scalars(self, state: CheckpointState, _: Mapping[str, np.ndarray]) -> None:
        self.board = self.board or Board(self.run / TENSORBOARD, self.first)
        record = state.history[-1]
        train = self.train
        factor = rate(record.epoch, train.warmup_epochs, train.lr_drop_epoch)
        scalars = {
            **{f"dev/{name}": value for name, value in record.dev.items()},
            **{f"figures/{name}": value for name, value in record.figures.items()},
            "train/learning_rate": train.lr * factor,
            "train/pairs_per_second": self.pairs / record.seconds,
        }
        self.board.add(record.epoch, scalars)

    def _pictures(self, state: CheckpointState, beliefs: Mapping[str, np.ndarray]) -> None:
        from pc2_baseline.analysis.pictures import draw_curves, draw_division  # noqa: PLC0415 - seconds

        if beliefs:
            path = self.run / PICTURES / f"{state.epoch:05d}.png"
            draw_division(path, beliefs, self.truth, f"Epoch {state.epoch + 1}")
        draw_curves(self.run / CURVES, state, self.pairs, self.train.warmup_epochs)
