"""Locks that let one process at a time work on a shard, and die with it."""

import fcntl
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from now_builder.errors import CrawlError
from now_builder.formats.io import locking

ALL_SHARDS = range(1 << 20)
"""More shards than a plan can have."""

_NAME = ".lock"
_WAIT_S = 0.2


@contextmanager
def lock_shards(folder: Path, shards: Collection[int], wait_s: float = 0.0) -> Iterator[None]:
    """Hold the locks of some shards.

    A shard is a byte of one lock file, so that a folder of any number of shards needs one file.

    Raises:
        CrawlError: If another process still holds one of them after ``wait_s`` seconds.
    """
    until = time.monotonic() + wait_s
    with (folder / _NAME).open("a") as file:
        for start, count in _runs(shards):
            while True:
                try:
                    with locking(folder / _NAME):
                        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, count, start)
                    break
                except OSError:
                    if time.monotonic() >= until:
                        raise CrawlError(
                            f"{folder}: another crawl is at work in this folder"
                        ) from None
                    time.sleep(_WAIT_S)
        yield


def is_locked(folder: Path) -> bool:
    """Whether a process holds the lock of any shard."""
    try:
        file = (folder / _NAME).open("rb")
    except OSError:
        return False
    with file:
        try:
            with locking(folder / _NAME):
                fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _runs(shards: Collection[int]) -> list[tuple[int, int]]:
    """Join consecutive numbers into runs of a first number and a count."""
    runs: list[tuple[int, int]] = []
    for shard in sorted(shards):
        if runs and sum(runs[-1]) == shard:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((shard, 1))
    return runs
