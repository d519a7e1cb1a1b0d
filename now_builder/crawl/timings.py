"""Time the steps of a visit to a page."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager


class StepTimer:
    """Seconds by step, in the order in which the steps were first taken; attempts add up."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time the block, also if it ends in an error."""
        begun = time.monotonic()
        self._seconds.setdefault(name, 0.0)
        try:
            yield
        finally:
            self._seconds[name] += time.monotonic() - begun

    def to_json(self) -> str:
        """Return the JSON of the column ``timings``, to the millisecond."""
        return json.dumps({name: round(seconds, 3) for name, seconds in self._seconds.items()})


def read_timings(timings: str | None) -> dict[str, float]:
    """Read a value of the column ``timings``; empty where nothing was timed."""
    return {} if timings is None else dict(json.loads(timings))


def add_step(timings: str | None, name: str, seconds: float) -> str | None:
    """Add a step to a value of the column ``timings``, unless it has that step already."""
    if timings is None:
        return None
    known = read_timings(timings)
    known.setdefault(name, round(seconds, 3))
    return json.dumps(known)
