"""TensorBoard: the figures of a run by epoch, in ``RUN/tensorboard``."""

import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from pc2_baseline.config import TrainSettings
from pc2_baseline.modules.learner import rate
from pc2_baseline.training.checkpoint import CheckpointState
from pc2_baseline.training.method import EpochOutputs


class TensorBoardWriter:
    """Write scalars; events of an earlier call about epochs that never ended become void.

    Args:
        folder: Folder of the event files.
        first: Next epoch; older events from it on are void.

    Raises:
        ImportError: If TensorBoard is not installed.
    """

    def __init__(self, folder: Path, first: int) -> None:
        # TensorBoard takes its own file functions instead of importing TensorFlow, with its
        # greetings and its seconds, where a module of this name can be found
        sys.modules.setdefault("tensorboard.compat.notf", ModuleType("tensorboard.compat.notf"))
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - seconds

        self._writer = SummaryWriter(str(folder), purge_step=first)

    def add(self, epoch: int, scalars: Mapping[str, float]) -> None:
        """Write an epoch's scalars to the disk.

        Args:
            epoch: From 0.
            scalars: Values by tag, such as ``dev/rsum``.
        """
        for tag, value in scalars.items():
            self._writer.add_scalar(tag.replace("@", ""), value, epoch)
        self._writer.flush()

    def close(self) -> None:
        """End the thread that writes."""
        self._writer.close()


class TensorBoardCallback:
    """Write recalls, figures, learning rate and speed of each epoch.

    Args:
        folder: Folder of the event files; made at the first epoch.
        pairs: Pairs of the training split.
        train: Settings from which the learning rate of an epoch follows.
    """

    def __init__(self, folder: Path, pairs: int, train: TrainSettings) -> None:
        self.name = str(folder)
        self._folder = folder
        self._pairs = pairs
        self._train = train
        self._writer: TensorBoardWriter | None = None

    def on_epoch_end(self, state: CheckpointState, _: EpochOutputs) -> None:
        """Write the scalars of the epoch that just ended."""
        record, train = state.history[-1], self._train
        self._writer = self._writer or TensorBoardWriter(self._folder, record.epoch)
        factor = rate(record.epoch, train.warmup_epochs, train.lr_drop_epoch)
        scalars = {
            **{f"dev/{name}": value for name, value in record.dev.items()},
            **{f"figures/{name}": value for name, value in record.figures.items()},
            "train/learning_rate": train.lr * factor,
            "train/pairs_per_second": self._pairs / record.seconds,
        }
        self._writer.add(record.epoch, scalars)

    def close(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
