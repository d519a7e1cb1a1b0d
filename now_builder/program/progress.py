"""Progress on stderr, for what takes longer than seconds: a bar on a terminal, else lines."""

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

from tqdm import tqdm

DELAY_S = 2.0
"""After which a bar appears."""
EVERY_S = 30.0
"""Between two lines where there is no terminal."""

Item = TypeVar("Item")


class Progress:
    """A bar on a terminal; elsewhere a line every half minute, with the rate and the time left.

    Args:
        name: What is done.
        total: How much of it there is.
        unit: One of it; bytes are written in powers of 1000.
    """

    def __init__(self, name: str, total: int, unit: str = "page") -> None:
        self._name, self._total, self._unit, self._count = name, total, unit, 0
        self._started = self._said = time.monotonic()
        self._bar = tqdm(
            desc=name, total=total, unit=unit, unit_scale=unit == "B", leave=False, disable=None,
            delay=DELAY_S,
        )  # fmt: skip

    def __enter__(self) -> "Progress":  # noqa: PYI034 - beartype reads no Self here
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def say(self, line: str) -> None:
        """Write a line where there is no terminal."""
        if self._bar.disable:
            sys.stderr.write(f"{line}\n")

    def add(self, count: int = 1) -> None:
        """Count what has been done."""
        self._bar.update(count)
        self._count += count
        now = time.monotonic()
        if self._bar.disable and now - self._said >= EVERY_S:
            self._said = now
            rate = self._count / (now - self._started)
            left = tqdm.format_interval((self._total - self._count) / rate)
            units = f" {self._unit}s"
            done, total, speed = str(self._count), f"{self._total}{units}", f"{rate:.1f}{units}"
            if self._unit == "B":
                sizes = self._count, self._total, rate
                done, total, speed = (f"{tqdm.format_sizeof(size)}B" for size in sizes)
            self.say(f"{self._name}: {done} of {total}, {speed}/s, {left} left")


def watched(
    items: Iterable[Item], name: str, unit: str = "page", total: int | None = None
) -> Iterator[Item]:
    """Yield items and show how many are done.

    Args:
        items: What is gone through.
        name: What is done with it.
        unit: What one is.
        total: Their number; needed where they have no length.
    """
    if total is None:
        total = len(items) if isinstance(items, Sized) else 0
    with Progress(name, total, unit) as progress:
        for item in items:
            yield item
            progress.add()
