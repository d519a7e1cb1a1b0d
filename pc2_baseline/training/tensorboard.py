"""TensorBoard: the figures of a run by epoch, in ``RUN/tensorboard``."""

import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from pc2_baseline.training.checkpoint import CheckpointState
from pc2_baseline.training.method import EpochOutputs


def open_writer(folder: Path, first: int) -> Any:
    """Open a ``SummaryWriter``."""
    # If a module of this name exists, TensorBoard does not import TensorFlow, which takes seconds.
    sys.modules.setdefault("tensorboard.compat.notf", ModuleType("tensorboard.compat.notf"))
    from torch.utils.tensorboard import SummaryWriter

    # Readers sort files by name, which begins with the second: never open two in one second.
    while any(folder.glob(f"*.{int(time.time()):010d}.*")):
        time.sleep(0.05)
    return SummaryWriter(str(folder), purge_step=first)


class TensorBoardCallback:
    """Write recalls, figures and speed of each epoch."""

    def __init__(self, folder: Path, pairs: int) -> None:
        self.name = str(folder)
        self._folder = folder
        self._pairs = pairs
        self._writer: Any = None

    def on_epoch_end(self, state: CheckpointState, _: EpochOutputs) -> None:
        """Write the scalars of the epoch that just ended."""
        record = state.history[-1]
        self._writer = self._writer or open_writer(self._folder, record.epoch)
        for tag, value in record.scalars(self._pairs).items():
            self._writer.add_scalar(tag.replace("@", ""), value, record.epoch)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
