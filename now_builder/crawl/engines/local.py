"""Crawl some shards of a plan in this process, for every engine."""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path

from now_builder.crawl.browser.pool import BrowserPool
from now_builder.crawl.caption.language import detect_language
from now_builder.crawl.engines.page import PageVisitor
from now_builder.crawl.engines.workers import Workers
from now_builder.crawl.politeness.proxy import UNLIMITED, Proxy
from now_builder.crawl.politeness.resolver import Resolver, parse_mapping, parse_pattern
from now_builder.crawl.politeness.scheduler import Scheduler
from now_builder.crawl.politeness.site_rules import SiteRules
from now_builder.crawl.settings import CrawlSettings
from now_builder.crawl.storage.locks import lock_shards
from now_builder.crawl.storage.own_files import sweep
from now_builder.crawl.storage.shard_tracker import ShardTracker
from now_builder.crawl.storage.shard_writer import write_errors_explained
from now_builder.errors import Stopped
from now_builder.formats.shard import read_plan
from now_builder.formats.tables import read_hosts
from now_builder.program.progress import Progress

_log = logging.getLogger(__name__)
_PAGES_PER_CORE = 3


def crawl_shards(
    captures: Path, shards: Sequence[int], settings: CrawlSettings, wait_s: float = 0.0
) -> int:
    """Crawl some shards of a plan and return the number of pages visited.

    It may be called again at any time, here or on another machine: final pages stay, missing ones
    are visited. The caller makes sure that one worker at a time has a host group.

    Raises:
        CrawlError: If there is no browser, the disk is full, or another crawl is at work on these.
        Stopped: If it is stopped by Ctrl-C, SIGTERM or SIGUSR1.
    """
    with lock_shards(captures, shards, wait_s):
        with write_errors_explained(captures):
            sweep(captures, shards)
            plan = read_plan(captures)
            tracker = ShardTracker(captures, plan, shards, retry_failed=settings.retry_failed)
        resolver = make_resolver(settings)
        visited = 0
        if tracker.pending:
            public = any(not resolver.is_local(line.site) for line in tracker.pending)
            if public and not settings.user_agent_url:
                _log.warning(
                    "crawl: sites cannot learn who visits them; give a page that says so by "
                    "--user-agent-url https://..."
                )
            signals: list[int] = []
            try:
                visited = asyncio.run(_visit_pending(tracker, settings, resolver, signals))
            except (asyncio.CancelledError, KeyboardInterrupt):
                kept = f"{tracker.kept} of {tracker.pages} pages are kept in {captures}"
                raise Stopped(kept, *signals[:1]) from None
        tracker.finish_ready()
        return visited


def make_resolver(settings: CrawlSettings) -> Resolver:
    """Return the resolver of a crawl's host names."""
    never = frozenset(read_hosts(settings.never) if settings.never else ())
    mappings = [parse_mapping(text) for text in settings.resolve]
    only = [parse_pattern(text) for text in settings.only]
    return Resolver(mappings, allow_private=settings.allow_private, never=never, only=only)


async def _visit_pending(
    tracker: ShardTracker, settings: CrawlSettings, resolver: Resolver, signals: list[int]
) -> int:
    """Visit the pending pages; a SIGTERM, noted in ``signals``, ends it like a Ctrl-C."""
    _cancel_on_signals(signals)
    concurrency = settings.concurrency or _PAGES_PER_CORE * _cores()
    concurrency = min(concurrency, len(tracker.pending))
    _log.info(
        "crawl: %d of %d pages to visit, %d at once; starting the browser",
        len(tracker.pending), tracker.total, concurrency,
    )  # fmt: skip
    async with AsyncExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(concurrency))
        pool.submit(detect_language, "a model that takes a second to load, meanwhile", None)
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
        visitor = PageVisitor(settings, browsers, rules, scheduler, ranks, pool)
        workers = Workers(visitor, tracker, scheduler, progress, settings, pool)
        await workers.run(proxies[:-1])
    return len(tracker.pending)


def _cancel_on_signals(signals: list[int]) -> None:
    """Treat the signals by which job schedulers announce the end as a Ctrl-C."""
    task = asyncio.current_task()
    if task is None or threading.current_thread() is not threading.main_thread():
        return

    loop = asyncio.get_running_loop()

    def cancel(number: int) -> None:
        if not signals:  # another would cancel the cleaning up
            task.cancel()
        signals.append(number)
        # A driver that the same signal ended fails what waits for it, which is no news any more.
        loop.set_exception_handler(lambda _loop, _context: None)

    for number in (signal.SIGTERM, signal.SIGUSR1):
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, cancel, number)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
