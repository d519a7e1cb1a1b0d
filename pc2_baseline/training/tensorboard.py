"""TensorBoard: the figures of a run by epoch, in ``RUN/tensorboard``."""

import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType


class Board:
    """Write scalars; what an earlier call wrote of epochs that never ended no longer counts.

    Args:
        folder: Of the event files.
        first: The epoch that comes next; older events from it on are void.

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
            scalars: By tag, such as ``dev/rsum``.
        """
        for tag, value in scalars.items():
            self._writer.add_scalar(tag.replace("@", ""), value, epoch)
        self._writer.flush()

    def close(self) -> None:
        """End the thread that writes."""
        self._writer.close()
