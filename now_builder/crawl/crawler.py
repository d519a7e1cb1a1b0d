"""Crawl shards of a plan: visit their pages and store a row for each."""

import asyncio
import hashlib
import io
import json
import logging
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import imagehash

from now_builder import __version__
from now_builder.crawl.browser.pool import BrowserPool
from now_builder.crawl.caption.charset import misread
from now_builder.crawl.caption.describe import describe
from now_builder.crawl.caption.language import detect_language
from now_builder.crawl.politeness.opt_outs import TDM, check_opt_outs, opt_outs
from now_builder.crawl.politeness.proxy import UNLIMITED, Proxy
from now_builder.crawl.politeness.resolver import Resolver, make_resolver
from now_builder.crawl.politeness.robots_rules import PRODUCT
from now_builder.crawl.politeness.scheduler import Scheduler
from now_builder.crawl.politeness.site_rules import SiteRules
from now_builder.crawl.settings import CrawlSettings
from now_builder.crawl.storage.folder import lock_shards, sweep
from now_builder.crawl.storage.shard_tracker import ShardTracker
from now_builder.crawl.storage.shard_writer import write_errors_explained
from now_builder.crawl.visit import BUSY, POSTPONED, TRANSIENT, PageError, Visit
from now_builder.errors import NowError, Stopped
from now_builder.formats.shard import Capture, CaptureRow, Planned, read_plan
from now_builder.program.progress import Progress
from now_builder.urls import canonical, site_of

_log = logging.getLogger(__name__)

PAGES_PER_CORE = 3
_GRACE_S = 150.0
"""Timeout in seconds of a visit in addition to the page's, for robots.txt and a browser's start."""

RETRIES, _CRASH_RETRIES, _BUSY_RETRIES = 1, 2, 2
"""Maximum retries after a transient error, a crash of the browser, and status 429 or 503."""

_BACK_OFF_S = 0.5
_BUSY_S, _LONGEST_BUSY_S = 10.0, 120.0
"""Default of the first pause of a busy host, and maximum pause, in seconds."""


def crawl_shards(
    captures: Path, shards: Sequence[int], settings: CrawlSettings, wait_s: float = 0.0
) -> int:
    """Crawl shards of a plan and return the number of pages visited.

    A second call, here or on another machine, visits only the pages without a row. The caller
    ensures that one worker at a time crawls a host group.

    Raises:
        CrawlError: If there is no browser, the disk is full, or another crawl has locked the
            shards.
        Stopped: After Ctrl-C, SIGTERM or SIGUSR1.
    """
    with lock_shards(captures, shards, wait_s):
        with write_errors_explained(captures):
            sweep(captures, shards)
            plan = read_plan(captures)
            tracker = ShardTracker(captures, plan, shards, retry_failed=settings.retry_failed)
        pending = tracker.pending
        if pending:
            resolver = make_resolver(settings)
            has_public = any(not resolver.is_local(line.site) for line in pending)
            if has_public and not settings.user_agent_url:
                _log.warning(
                    "crawl: the user agent does not tell sites who visits them. Set "
                    "--user-agent-url to a page about your crawl."
                )
            signals: list[int] = []
            try:
                asyncio.run(_visit_pending(tracker, settings, resolver, signals))
            except (asyncio.CancelledError, KeyboardInterrupt):
                kept = f"{tracker.kept} of {tracker.pages} pages are kept in {captures}"
                raise Stopped(kept, *signals[:1]) from None
        tracker.finish_ready()
        return len(pending)


async def _visit_pending(
    tracker: ShardTracker, settings: CrawlSettings, resolver: Resolver, signals: list[int]
) -> None:
    """Visit the pending pages; SIGTERM and SIGUSR1 cancel it and are appended to ``signals``."""
    _cancel_on_signals(signals)
    has_affinity = hasattr(os, "sched_getaffinity")  # absent on macOS
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    concurrency = min(settings.concurrency or PAGES_PER_CORE * cores, len(tracker.pending))
    _log.info(
        "crawl: %d of %d pages to visit, %d at a time; starting the browser",
        len(tracker.pending), tracker.total, concurrency,
    )  # fmt: skip
    async with AsyncExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(concurrency))
        pool.submit(detect_language, "loads the model early, which takes a second", None)
        browsers = await stack.enter_async_context(BrowserPool(settings, concurrency))
        stack.push_async_callback(resolver.close)
        proxies = [await stack.enter_async_context(Proxy(resolver)) for _ in range(concurrency + 1)]
        proxies[-1].begin(UNLIMITED)
        opt_outs = settings.obeyed_opt_outs()
        rules = SiteRules(proxies[-1], browsers.user_agent, opt_outs, obey_robots=settings.robots)
        stack.push_async_callback(rules.close)
        scheduler = Scheduler(tracker.pending, settings.per_host_delay_s, resolver.is_local)
        progress = stack.enter_context(Progress("crawl", len(tracker.pending)))
        ranks = tracker.ranks() if settings.per_host_quota else {}
        crawler = Crawler(settings, tracker, browsers, rules, scheduler, progress, pool, ranks)
        await crawler.run(proxies[:-1])


def _cancel_on_signals(signals: list[int]) -> None:
    """Treat SIGTERM and SIGUSR1, which job schedulers send before the end, like Ctrl-C."""
    task = asyncio.current_task()
    if task is None or threading.current_thread() is not threading.main_thread():
        return

    loop = asyncio.get_running_loop()

    def cancel(number: int) -> None:
        if not signals:  # a second cancellation would interrupt the cleanup
            task.cancel()
        signals.append(number)
        # The same signal may end the browser's driver; errors of its pending calls do not matter.
        loop.set_exception_handler(lambda _loop, _context: None)

    for number in (signal.SIGTERM, signal.SIGUSR1):
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, cancel, number)


@dataclass(slots=True)
class Crawler:
    """Visits the pages from the scheduler and stores their rows.

    The scheduler is informed of crawl delays, and enforces the delays of hosts to which pages lead.
    Threads of ``pool`` parse, hash and write, so that other pages need not wait. ``ranks`` number
    the pages of each host, for the quota.
    """

    settings: CrawlSettings
    tracker: ShardTracker
    browsers: BrowserPool
    rules: SiteRules
    scheduler: Scheduler
    progress: Progress
    pool: ThreadPoolExecutor
    ranks: Mapping[str, int]
    _finishing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _busy: Counter[str] = field(default_factory=Counter)
    _in_flight: int = 0
    _outcomes: Counter[str | None] = field(default_factory=Counter)

    async def run(self, proxies: Sequence[Proxy]) -> None:
        """Visit all pages, with one worker per proxy."""
        workers = [asyncio.create_task(self._work(proxy)) for proxy in proxies]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, proxy: Proxy) -> None:
        """Visit page after page; store its row, or give the page back to the scheduler."""
        loop = asyncio.get_running_loop()
        while (line := await self.scheduler.take()) is not None:
            started = time.monotonic()
            self._in_flight += 1
            visit = await self._visit_until_final(line, proxy)
            self._in_flight -= 1
            if self._gives_back(line, visit):
                continue
            visit.update(elapsed_s=round(time.monotonic() - started, 3))
            await loop.run_in_executor(self.pool, self.tracker.add, line, visit.row, visit.capture)
            self.scheduler.done(line)
            self._show_progress(visit.row.error)
            if self.tracker.added(line, visit.row):
                async with self._finishing:
                    await loop.run_in_executor(self.pool, self.tracker.finish_ready)

    def _gives_back(self, line: Planned, visit: Visit) -> bool:
        """Return whether the page was given back, to be visited again after a host's pause."""
        error = visit.error
        if error is not None and error.code == POSTPONED:
            self.scheduler.give_back(line, 0.0, error.message)
            return True
        if error is None or error.code not in BUSY:
            return False
        retries = self._busy[line.key]
        pause_s = _BUSY_S * 2**retries if error.retry_after_s is None else error.retry_after_s
        if retries >= _BUSY_RETRIES or pause_s > _LONGEST_BUSY_S:
            return False
        self._busy[line.key] += 1
        host = site_of(visit.row.final_url or line.url_canonical)
        self.scheduler.give_back(line, pause_s, host)
        return True

    def _show_progress(self, error: str | None) -> None:
        """Count a page, with its error if it failed, and show the most common errors."""
        self._outcomes[error] += 1
        share = 100 * self._outcomes[None] / self._outcomes.total()
        errors = " ".join(f"{e}:{count}" for e, count in self._outcomes.most_common(6) if e)
        self.progress.add(1, f"{self._in_flight} in flight, ok {share:.0f} % {errors}".rstrip())

    async def _visit_until_final(self, line: Planned, proxy: Proxy) -> Visit:
        """Visit a page until it succeeds or no retry is left.

        Another page may be at fault for a crash of the browser: the retries after one are counted
        separately and happen in a browser without other pages.
        """
        attempts = 0
        alone = False
        retries = Counter(dict.fromkeys(TRANSIENT, RETRIES))
        retries["browser_crashed"] = _CRASH_RETRIES
        while True:
            visit = await self._visit(line, proxy, alone=alone)
            if (task := asyncio.current_task()) and task.cancelling():
                # A signal to all processes ends the browser too; the error of closing it has
                # replaced the cancellation.
                raise asyncio.CancelledError
            attempts += 1
            error = visit.row.error or ""
            alone = error == "browser_crashed"
            if not retries[error]:
                visit.update(attempts=attempts + self._busy[line.key])
                return visit
            retries[error] -= 1
            await asyncio.sleep(_BACK_OFF_S * attempts)

    async def _visit(self, line: Planned, proxy: Proxy, *, alone: bool) -> Visit:
        """Visit a page once; the only place that turns a page's failure into its row."""
        row = CaptureRow(
            line.key, line.url, line.url_canonical, line.site, "ok",
            fetched_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            browser=f"Chromium {self.browsers.version}",
            tool=f"{PRODUCT}/{__version__}",
        )  # fmt: skip
        visit = Visit(row, {self.scheduler.queue_of(line)})
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.settings.page_timeout_s + _GRACE_S):
                self._check_line(line)
                url = line.url_canonical.partition("#")[0]
                visit.update(robots=await self._decide(line, visit, url))
                check_url = partial(self._check_url, line, visit)
                await self.browsers.visit(visit, proxy, check_url, alone=alone)
            await loop.run_in_executor(self.pool, _describe, visit, self.settings)
        except PageError as error:
            visit.fail(error)
        except TimeoutError:
            # Every step has its own timeout, so the browser's driver is at fault, not the page.
            _log.warning(
                "crawl: %s: the browser does not answer; restarting it", line.url_canonical
            )
            await self.browsers.reset()
            visit.fail(PageError("browser_crashed", "stuck"))
        except NowError:
            raise  # not a failure of this page: no browser, a full disk
        except Exception as error:  # noqa: BLE001 - a page's failure must become its row
            visit.fail(PageError("internal_error", f"{type(error).__name__}: {error}"))
        return visit

    def _check_line(self, line: Planned) -> None:
        """Raise a PageError for an invalid URL or a page beyond its host's quota."""
        if canonical(line.url_canonical) is None:
            raise PageError("bad_url", "not an http(s) URL")
        quota = self.settings.per_host_quota
        if quota and self.ranks[line.key] >= quota and not self.scheduler.is_local(line.site):
            raise PageError("quota", f"more than {quota} pages of one host")

    async def _check_url(
        self, line: Planned, visit: Visit, url: str, *, frame: bool = False
    ) -> None:
        """Raise a PageError if the URL of a redirect, link or frame must not be requested."""
        url = canonical(url) or url
        if not frame:
            await self._decide(line, visit, url)
        elif (decision := await self.rules.robots(url)).verdict != "allowed":
            raise PageError(decision.verdict, decision.note)

    async def _decide(self, line: Planned, visit: Visit, url: str) -> str:
        """Check a URL, wait for the delay of its host, and return the note about robots.txt.

        Raises:
            PageError: If the URL must not be requested, or not now.
        """
        decision = await self.rules.decide(url)
        site = site_of(url)
        if decision.delay_s:
            self.scheduler.slow_down(site, decision.delay_s)
        if decision.verdict != "allowed":
            visit.update(robots=decision.note)
            raise PageError(decision.verdict, decision.note)
        if TDM in decision.opt_outs:  # the page itself may override it
            visit.tdm_file[url] = decision.opt_outs[TDM]
        check_opt_outs(decision.opt_outs, self.settings.obeyed_opt_outs() - {TDM})
        if site not in visit.hosts:
            pause_s = self.scheduler.turn(line, site)
            if pause_s is None:
                raise PageError(POSTPONED, site)
            visit.hosts.add(site)
            await asyncio.sleep(pause_s)
        return decision.note


def _describe(visit: Visit, settings: CrawlSettings) -> None:
    """Add caption, language and hashes to the row of a captured page, and set its capture."""
    row, document = visit.row, visit.document
    scripted = [text for name, text in visit.metas if name.strip().lower() == "description"]
    page = describe(document.body, row.content_type, visit.charset, scripted)
    tdm_file = visit.tdm_file.get(canonical(document.url) or document.url)
    directives = opt_outs(document.headers, page.metas, visit.metas, tdm_file)
    check_opt_outs(directives, settings.obeyed_opt_outs())
    texts = (element.text for element in visit.elements if element.visible)
    garbled = misread(texts, page.charset, visit.charset)
    screenshot = visit.screenshot
    if settings.image == "webp":
        encoded = io.BytesIO()
        visit.picture.convert("RGB").save(encoded, "WEBP", lossless=True, method=2)
        screenshot = encoded.getvalue()
    visit.update(
        charset=page.charset,
        charset_source=page.charset_source,
        charset_browser=visit.charset if garbled else page.charset,
        title=page.title,
        caption=page.caption,
        caption_source=page.source,
        candidates=json.dumps(page.candidates, ensure_ascii=False),
        lang=detect_language(" ".join(filter(None, (page.caption, page.title))), page.lang),
        lang_declared=page.lang,
        sha256=hashlib.sha256(screenshot).hexdigest(),
        html_sha256=hashlib.sha256(document.body).hexdigest(),
        phash=str(imagehash.phash(visit.picture)),
        ink=visit.ink[0],
        ink_middle=visit.ink[1],
        load_state="settled" if visit.settled else "partial",
        overlays=visit.overlays,
    )
    visit.capture = Capture(row.key, screenshot, document.body, visit.elements)
