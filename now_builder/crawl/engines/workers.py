"""Workers: each takes page after page from the scheduler and makes its row final."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from now_builder.crawl.browser.visit import BUSY, TRANSIENT, VisitRecord
from now_builder.crawl.engines.page import Attempt, PageVisitor
from now_builder.crawl.politeness.proxy import Proxy
from now_builder.crawl.politeness.scheduler import Scheduler
from now_builder.crawl.settings import CrawlSettings
from now_builder.crawl.storage.shard_tracker import ShardTracker
from now_builder.formats.shard import Planned
from now_builder.program.progress import Progress
from now_builder.urls import site_of

_CRASH_RETRIES = 2
_BACK_OFF_S = 0.5
_BUSY_S, _LONGEST_BUSY_S = 10.0, 120.0
"""First pause of a busy host that names none, and the longest pause that a crawl waits for."""


@dataclass(slots=True)
class Workers:
    """The workers of one process; threads of ``pool`` do what would hold up other pages."""

    visitor: PageVisitor
    tracker: ShardTracker
    scheduler: Scheduler
    progress: Progress
    settings: CrawlSettings
    pool: ThreadPoolExecutor
    _finishing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _put_off: Counter[str] = field(default_factory=Counter)
    _in_flight: int = 0
    _outcomes: Counter[str | None] = field(default_factory=Counter)

    async def run(self, proxies: Sequence[Proxy]) -> None:
        """Visit all pages, with one worker for each proxy."""
        workers = [asyncio.create_task(self._work(proxy)) for proxy in proxies]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, proxy: Proxy) -> None:
        loop = asyncio.get_running_loop()
        while True:
            line = await self.scheduler.take()
            if line is None:
                return
            started = time.monotonic()
            self._in_flight += 1
            attempt = await self._visit(line, proxy)
            self._in_flight -= 1
            if attempt.put_off is not None:
                self.scheduler.give_back(line, 0.0, attempt.put_off)
                continue
            pause_s = self._pause(line, attempt)
            if pause_s is not None:
                busy = site_of(attempt.row.final_url or line.url_canonical)
                self.scheduler.give_back(line, pause_s, busy)
                continue
            row = replace(attempt.row, elapsed_s=round(time.monotonic() - started, 3))
            await loop.run_in_executor(self.pool, self.tracker.add, line, row, attempt.capture)
            self.scheduler.done(line)
            self._show(row.error)
            if self.tracker.added(line, row):
                async with self._finishing:
                    await loop.run_in_executor(self.pool, self.tracker.finish_ready)

    def _show(self, error: str | None) -> None:
        """Show a page that is done, with its error if it is not ok, and the commonest errors."""
        self._outcomes[error] += 1
        share = 100 * self._outcomes[None] / self._outcomes.total()
        errors = " ".join(f"{e}:{count}" for e, count in self._outcomes.most_common(6) if e)
        self.progress.add(1, f"{self._in_flight} in flight, ok {share:.0f} % {errors}".rstrip())

    def _pause(self, line: Planned, attempt: Attempt) -> float | None:
        """Return the seconds for which a busy host is left alone; ``None`` if the row is final."""
        if attempt.row.error not in BUSY:
            return None
        before = self._put_off[line.key]
        asked = attempt.retry_after_s
        pause_s = _BUSY_S * 2**before if asked is None else asked
        if before >= self.settings.busy_retries or pause_s > _LONGEST_BUSY_S:
            return None
        self._put_off[line.key] += 1
        return pause_s

    async def _visit(self, line: Planned, proxy: Proxy) -> Attempt:
        """Visit until a visit succeeds or the attempts are used up.

        A crash of the whole browser may be the fault of another page, so that it has attempts of
        its own, in a browser without other pages.
        """
        attempts = 0
        alone = False
        left = Counter(dict.fromkeys(TRANSIENT, self.settings.retries))
        left["browser_crashed"] = _CRASH_RETRIES
        while True:
            attempt = await self.visitor.visit(line, proxy, VisitRecord(), alone=alone)
            if (task := asyncio.current_task()) and task.cancelling():
                # A signal to all processes ends the browser, too: closing what is gone fails, and
                # that failure takes the place of the cancellation.
                raise asyncio.CancelledError
            attempts += 1
            error = attempt.row.error or ""
            alone = error == "browser_crashed"
            if not left[error]:
                row = replace(attempt.row, attempts=attempts + self._put_off[line.key])
                return replace(attempt, row=row)
            left[error] -= 1
            await asyncio.sleep(_BACK_OFF_S * attempts)
