"""The crawl: plan, visit, finish the shards; go on after anything."""

import asyncio
import fcntl
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from now_builder.config import build
from now_builder.crawl.browser import Browsers
from now_builder.crawl.crew import Crew
from now_builder.crawl.egress import Gate, Resolver, parse_mapping
from now_builder.crawl.language import detect_language
from now_builder.crawl.ledger import Ledger
from now_builder.crawl.pace import Pace
from now_builder.crawl.policy import Robots
from now_builder.crawl.progress import Progress
from now_builder.crawl.settings import CrawlSettings
from now_builder.crawl.shard import start_over, sweep
from now_builder.crawl.urls import extend_plan, read_hosts, read_urls
from now_builder.errors import ConfigError, CrawlError
from now_builder.formats.shard import (
    Planned,
    complete_shards,
    plan_path,
    read_plan,
    rows_path,
    write_plan,
)
from now_builder.formats.split import Shares, SplitPlan, default_shares, write_split


@dataclass(frozen=True, slots=True)
class CrawlSummary:
    """What a crawl has come to.

    Attributes:
        pages: Rows of all shards: one per listed URL.
        statuses: Rows by status.
        errors: Rows that are not ok by reason.
        visited: Pages visited in this run.
        seconds: Duration of this run.
    """

    pages: int
    statuses: dict[str, int]
    errors: dict[str, int]
    visited: int
    seconds: float

    def __str__(self) -> str:
        """Say it in one line."""
        statuses = ", ".join(f"{count} {status}" for status, count in self.statuses.items())
        errors = ", ".join(f"{error} {count}" for error, count in self.errors.items())
        rate = self.visited / self.seconds if self.seconds else 0.0
        return (
            f"{self.pages} URLs: {statuses}{f' ({errors})' if errors else ''}; "
            f"visited {self.visited} in {self.seconds:.0f} s ({rate:.2f} pages/s)"
        )


def crawl(
    urls: Path,
    captures: Path,
    settings: CrawlSettings,
    force: bool = False,  # noqa: FBT001, FBT002 - as in every stage
) -> CrawlSummary:
    """Visit each URL of a list with a phone and store what is seen; every URL ends as one row.

    Args:
        urls: Text file (one a line), or CSV or Parquet with a column ``url``.
        captures: Folder to write.
        settings: Of the crawl.
        force: Start over instead of going on.

    Raises:
        FormatError: If the list cannot be read.
        ConfigError: If a setting cannot be.
        CrawlError: If there is no browser, the disk is full, or another crawl is at work here.
    """
    started = time.monotonic()
    listed = read_urls(urls)
    mappings = [parse_mapping(text) for text in settings.resolve]
    never = read_hosts(settings.never) if settings.never else frozenset()
    resolver = Resolver(mappings, allow_private=settings.allow_private, never=never)
    captures.mkdir(parents=True, exist_ok=True)
    with _locked(captures):
        with _told(captures):
            if force:
                start_over(captures)
            sweep(captures)
            plan = _planned(captures, listed, settings)
            ledger = Ledger(captures, plan, retry_failed=settings.retry_failed)
        visited = 0
        if ledger.pending:
            _ask_who(ledger.pending, settings, resolver)
            try:
                visited = asyncio.run(_run(ledger, settings, resolver))
            except asyncio.CancelledError:
                raise CrawlError("stopped; run the same command again to go on") from None
        ledger.finish_ready()
        return _summary(captures, visited, time.monotonic() - started)


@contextmanager
def _locked(captures: Path) -> Iterator[None]:
    """Let one crawl at a time work in a folder; the lock dies with its process."""
    with (captures / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CrawlError(f"{captures}: another crawl is at work in this folder") from None
        yield


@contextmanager
def _told(captures: Path) -> Iterator[None]:
    """Say in one line that a disk is full or that nothing may be written."""
    try:
        yield
    except OSError as error:
        raise CrawlError(f"{captures}: cannot be written ({error})") from None


def _planned(captures: Path, listed: Sequence[str], settings: CrawlSettings) -> list[Planned]:
    """Read the plan and add what is new in the list; the split is fixed with the first plan."""
    planned = plan_path(captures).exists()
    plan = read_plan(captures) if planned else []
    extended = extend_plan(plan, listed, settings.shard_size)
    if not planned:
        write_split(captures / "split.toml", _split(extended, settings))
    if len(extended) > len(plan):
        write_plan(captures, extended)
    return extended


def _split(plan: Sequence[Planned], settings: CrawlSettings) -> SplitPlan:
    shares = default_shares(len(plan))
    if settings.split_shares is not None:
        try:
            train, dev, test = (float(share) for share in settings.split_shares.split(","))
        except ValueError:
            raise ConfigError(
                f"split_shares: found {settings.split_shares!r}, expected three numbers such as "
                "0.7,0.12,0.18"
            ) from None
        tree = {"train": train, "dev": dev, "test": test}
        shares = build(Shares, tree, "split_shares")
    by = settings.split_by
    if by == "auto":
        by = "page" if len({line.site for line in plan if line.site}) <= 1 else "site"
    return SplitPlan(seed=settings.split_seed, by=by, shares=shares)


def _summary(captures: Path, visited: int, seconds: float) -> CrawlSummary:
    statuses: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    for shard in complete_shards(captures):
        table = pq.read_table(rows_path(captures, shard), columns=["status", "error"])
        statuses.update(table["status"].to_pylist())
        errors.update(
            error
            for status, error in zip(
                table["status"].to_pylist(), table["error"].to_pylist(), strict=True
            )
            if error is not None and status != "duplicate"
        )
    return CrawlSummary(
        pages=statuses.total(),
        statuses=dict(statuses.most_common()),
        errors=dict(errors.most_common()),
        visited=visited,
        seconds=seconds,
    )


async def _run(ledger: Ledger, settings: CrawlSettings, resolver: Resolver) -> int:
    """Visit what is pending; a SIGTERM ends it like a Ctrl-C, with nothing lost."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    if task is not None:
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
    concurrency = settings.concurrency or 3 * _cores()
    concurrency = min(concurrency, len(ledger.pending))
    async with AsyncExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(concurrency))
        pool.submit(detect_language, "a model that takes a second to load, meanwhile", None)
        browsers = await stack.enter_async_context(Browsers(settings, concurrency))
        gates = [await stack.enter_async_context(Gate(resolver)) for _ in range(concurrency + 1)]
        gates[-1].begin(1 << 62)
        robots = Robots(gates[-1], browsers.user_agent)
        stack.push_async_callback(robots.close)
        pace = Pace(
            ledger.pending,
            settings.per_host_delay_s,
            settings.per_host_concurrency,
            resolver.is_local,
        )
        progress = stack.enter_context(Progress(len(ledger.pending), ledger.total))
        crew = Crew(settings, ledger, browsers, robots, pace, pool)
        workers = [asyncio.create_task(crew.work(gate, progress)) for gate in gates[:-1]]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
    return len(ledger.pending)


def _ask_who(pending: Sequence[Planned], settings: CrawlSettings, resolver: Resolver) -> None:
    """Ask for a contact where public sites will be visited."""
    public = any(not resolver.is_local(line.site) for line in pending)
    if public and not settings.user_agent_url:
        sys.stderr.write(
            "crawl: sites cannot learn who visits them; give a page that says so by "
            "--user-agent-url https://...\n"
        )


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
