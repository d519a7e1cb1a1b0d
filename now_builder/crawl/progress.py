"""The progress of a crawl: pages done, and the commonest errors."""

import logging
from collections import Counter

from now_builder.program import progress

_log = logging.getLogger(__name__)


class CrawlProgress(progress.Progress):
    """Progress of a crawl of ``total`` URLs, some ``pages`` to be visited.

    The workers update ``in_flight``.
    """

    def __init__(self, pages: int, total: int) -> None:
        super().__init__("crawl", pages)
        self.in_flight = 0
        self._outcomes: Counter[str | None] = Counter()
        _log.info("crawl: %d of %d pages to visit", pages, total)

    def count(self, error: str | None) -> None:
        """Count a page that is done, with its error if it is not ok."""
        self._outcomes[error] += 1
        share = 100 * self._outcomes[None] / self._outcomes.total()
        errors = " ".join(f"{e}:{count}" for e, count in self._outcomes.most_common(6) if e)
        self.add(1, f"{self.in_flight} in flight, ok {share:.0f} % {errors}".rstrip())
