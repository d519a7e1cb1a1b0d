"""Show the progress of long loops on stderr: a bar on a terminal, lines elsewhere."""

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

from tqdm import tqdm

DELAY_S = 2.0
"""Seconds until the bar appears."""
FIRST_S, EVERY_S = 5.0, 30.0
"""Seconds until the first line, and between lines, without a terminal."""

Item = TypeVar("Item")


class Progress:
    """A bar on a terminal; elsewhere a line after 5 s and then every 30 s, with the time left.

    Args:
        name: Name of the task.
        total: Number of units.
        unit: Singular noun; bytes, ``B``, are shown in powers of 1000.
        done: Number of units already done.
    """

    def __init__(self, name: str, total: int, unit: str = "page", done: int = 0) -> None:
        self._name, self._total, self._unit = name, total, unit
        self._first = self._count = done
        self._started = time.monotonic()
        self._next = self._started + FIRST_S
        self._bar = tqdm(
            desc=name, total=total, unit=unit, unit_scale=unit == "B", leave=False, disable=None,
            delay=DELAY_S, initial=done,
        )  # fmt: skip

    def __enter__(self) -> "Progress":  # noqa: PYI034 - beartype reads no Self here
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def add(self, count: int = 1, state: str = "") -> None:
        """Count units as done; ``state`` is shown after the time left."""
        self._count += count
        self._bar.set_postfix_str(state, refresh=False)
        self._bar.update(count)
        now = time.monotonic()
        if self._bar.disable and now >= self._next:
            self._next = now + EVERY_S
            rate = (self._count - self._first) / (now - self._started)
            left = tqdm.format_interval((self._total - self._count) / rate)
            units = f" {self._unit}{'es' if self._unit.endswith('ch') else 's'}"
            done, total, speed = str(self._count), f"{self._total}{units}", f"{rate:.1f}{units}"
            if self._unit == "B":
                sizes = self._count, self._total, rate
                done, total, speed = (f"{tqdm.format_sizeof(size)}B" for size in sizes)
            state = f", {state}" if state else ""
            sys.stderr.write(f"{self._name}: {done} of {total}, {speed}/s, {left} left{state}\n")


def track_progress(
    items: Iterable[Item], name: str, unit: str = "page", total: int | None = None
) -> Iterator[Item]:
    """Yield items and show how many are done; ``total`` is needed if they have no length."""
    if total is None:
        total = len(items) if isinstance(items, Sized) else 0
    with Progress(name, total, unit) as progress:
        for item in items:
            yield item
            progress.add()
