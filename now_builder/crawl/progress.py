"""Show the progress of a crawl on stderr."""

import sys
import time
from collections import Counter

from tqdm import tqdm

_EVERY_S = 30.0


class Progress:
    """A bar on a terminal, a line every half minute elsewhere.

    Of ``total`` URLs some ``pages`` are to be visited; the workers update ``in_flight``.
    """

    def __init__(self, pages: int, total: int) -> None:
        self._pages = pages
        self.in_flight = 0
        self._ok = 0
        self._done = 0
        self._errors: Counter[str] = Counter()
        self._started = self._said = time.monotonic()
        self._bar = tqdm(total=pages, unit="page", desc="crawl", disable=None, smoothing=0.05)
        if self._bar.disable:
            sys.stderr.write(f"crawl: {pages} of {total} pages to visit\n")

    def __enter__(self) -> "Progress":  # noqa: PYI034 - beartype reads no Self here
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def count(self, error: str | None) -> None:
        """Count a page that is done, with its error if it is not ok."""
        self._done += 1
        self._ok += error is None
        if error is not None:
            self._errors[error] += 1
        self._bar.update()
        self._bar.set_postfix_str(self._state(), refresh=False)
        now = time.monotonic()
        if self._bar.disable and now - self._said >= _EVERY_S:
            self._said = now
            rate = self._done / (now - self._started)
            left_s = (self._pages - self._done) / rate
            sys.stderr.write(
                f"crawl: {self._done}/{self._pages}, {rate:.2f} pages/s, "
                f"{self._bar.format_interval(left_s)} left, {self._state()}\n"
            )

    def _state(self) -> str:
        reasons = " ".join(f"{error}:{count}" for error, count in self._errors.most_common(5))
        share = 100 * self._ok / self._done
        return f"{self.in_flight} in flight, ok {share:.0f} % {reasons}".rstrip()
