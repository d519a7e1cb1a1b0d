"""Progress on stderr: bars over batches, and a line per epoch."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

from now_builder.program.progress import track_progress
from pc2_baseline.process_groups import is_first

Batch = TypeVar("Batch")


def bar(batches: Iterable[Batch], name: str, total: int, unit: str = "batch") -> Iterator[Batch]:
    """Yield the batches, and show how many are done, in the first process alone."""
    yield from track_progress(batches, name, unit, total) if is_first() else batches


def say(line: str) -> None:
    """Write one line to stderr, above any bar, in the first process alone."""
    if is_first():
        tqdm.write(line, file=sys.stderr)


class Clock:
    """Time the epochs of a run and estimate the time left; ``done`` of them ran before it began."""

    def __init__(self, done: int, total: int) -> None:
        self._first = done
        self._total = total
        self._start = time.perf_counter()
        self._last = self._start

    def lap(self, epoch: int) -> tuple[float, str]:
        """Return the seconds of the epoch that just ended, and the time left in words."""
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        mean = (now - self._start) / (epoch + 1 - self._first)
        return seconds, in_words(mean * (self._total - epoch - 1))


def in_words(seconds: float) -> str:
    """Write a duration in hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
