"""The crawl: plan, visit, finish the shards; go on after anything."""

import asyncio
import fcntl
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from now_builder.config import read_share
from now_builder.crawl.browser.browser import Browsers
from now_builder.crawl.caption.language import detect_language
from now_builder.crawl.engines.workers import Crew
from now_builder.crawl.plan.host_groups import lots
from now_builder.crawl.plan.planning import make_plan
from now_builder.crawl.plan.urls import read_hosts, read_urls
from now_builder.crawl.politeness.proxy import Gate, Resolver, parse_mapping
from now_builder.crawl.politeness.robots import Robots
from now_builder.crawl.politeness.scheduler import Pace
from now_builder.crawl.progress import Progress
from now_builder.crawl.settings import CrawlSettings
from now_builder.crawl.storage.ledger import Ledger
from now_builder.crawl.storage.places import depot, rows_of
from now_builder.crawl.storage.shard_writer import start_over, sweep
from now_builder.errors import ConfigError, CrawlError
from now_builder.formats.shard import Planned, complete_shards, read_plan, rows_path

_LOCK_WAIT_S = 0.2


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
    captures: Path | str,
    settings: CrawlSettings,
    force: bool = False,  # noqa: FBT001, FBT002 - as in every stage
) -> CrawlSummary:
    """Visit each URL of a list with a phone and store what is seen; every URL ends as one row.

    Args:
        urls: Text file (one a line), or CSV or Parquet with a column ``url``.
        captures: Folder to write, or a URL of one that fsspec knows, such as ``s3://bucket/now``.
        settings: Of the crawl.
        force: Start over instead of going on.

    Raises:
        FormatError: If the list cannot be read.
        ConfigError: If a setting cannot be.
        CrawlError: If there is no browser, the disk is full, or another crawl is at work here.
    """
    started = time.monotonic()
    listed = read_urls(urls)
    _resolver(settings)  # what cannot be read is said before anything is written
    share = read_share(settings.shards_from) if settings.shards_from else (0, 1)
    if settings.engine == "ray" and settings.shards_from:
        raise ConfigError("--shards-from: not with --engine ray, which shares the work itself")
    if force and share[1] > 1:
        raise ConfigError("--force: not with --shards-from; start over once, then share")
    with _told(captures):
        where = depot(captures, settings.scratch)
        if force:
            with _locked(where.folder, range(1 << 20)):
                where.clear()
                start_over(where.folder)
        plan = make_plan(where, listed, settings)
    shards = [shard for lot in lots(plan)[share[0] :: share[1]] for shard in lot]
    if settings.engine == "ray":
        from now_builder.crawl.engines.ray_cluster import crawl_on_ray  # noqa: PLC0415 - needs Ray

        visited = crawl_on_ray(str(captures), where, plan, settings)
    else:
        visited = crawl_shards(str(captures), shards, settings)
    with rows_of(captures) as folder:
        wanted = None if share == (0, 1) else set(shards)
        return _summary(folder, wanted, visited, time.monotonic() - started)


def crawl_shards(
    captures: str, shards: Sequence[int], settings: CrawlSettings, wait_s: float = 0.0
) -> int:
    """Crawl some shards of a plan; give the number of pages visited.

    The one function behind every engine. It knows of no other worker and may be called again at
    any time, here or on another machine: what is final stays, what is missing is done. Whoever
    calls it sees to it that whole lots are given to one worker at a time.

    Args:
        captures: Folder or URL, planned before.
        shards: Of the plan.
        settings: Of the crawl.
        wait_s: How long to wait for a worker that still holds one of the shards.

    Raises:
        CrawlError: If there is no browser, the disk is full, or another crawl is at work on these.
    """
    where = depot(captures, settings.scratch)
    with _locked(where.folder, shards, wait_s):
        with _told(captures):
            sweep(where.folder, shards)
            plan = read_plan(where.folder)
            where.fetch_rows(_concerned(plan, shards))
            if settings.retry_failed:
                where.fetch_members(sorted(set(shards) & where.complete()))
            ledger = Ledger(where, plan, shards, retry_failed=settings.retry_failed)
        resolver = _resolver(settings)
        visited = 0
        if ledger.pending:
            _ask_who(ledger.pending, settings, resolver)
            try:
                visited = asyncio.run(_run(ledger, settings, resolver))
            except asyncio.CancelledError:
                raise CrawlError("stopped; run the same command again to go on") from None
        ledger.finish_ready()
        return visited


def _resolver(settings: CrawlSettings) -> Resolver:
    never = read_hosts(settings.never) if settings.never else frozenset()
    mappings = [parse_mapping(text) for text in settings.resolve]
    return Resolver(mappings, allow_private=settings.allow_private, never=never)


@contextmanager
def _locked(folder: Path, shards: Collection[int], wait_s: float = 0.0) -> Iterator[None]:
    """Let one process at a time work on a shard; the locks die with it.

    A shard is a byte of the lock file, so that a folder of any number of them needs one file.
    """
    until = time.monotonic() + wait_s
    with (folder / ".lock").open("w") as file:
        for start, count in _runs(shards):
            while True:
                try:
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, count, start)
                    break
                except OSError:
                    if time.monotonic() >= until:
                        raise CrawlError(
                            f"{folder}: another crawl is at work in this folder"
                        ) from None
                    time.sleep(_LOCK_WAIT_S)
        yield


def _runs(shards: Collection[int]) -> list[tuple[int, int]]:
    """Join numbers that follow each other: first and how many."""
    runs: list[tuple[int, int]] = []
    for shard in sorted(shards):
        if runs and sum(runs[-1]) == shard:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((shard, 1))
    return runs


@contextmanager
def _told(captures: Path | str) -> Iterator[None]:
    """Say in one line that a disk is full or that nothing may be written."""
    try:
        yield
    except OSError as error:
        raise CrawlError(f"{captures}: cannot be written ({error})") from None


def _concerned(plan: Sequence[Planned], shards: Collection[int]) -> list[int]:
    """List shards, and those in which the same URLs stand."""
    ours = frozenset(shards)
    urls = {line.url_canonical for line in plan if line.shard in ours}
    return sorted({line.shard for line in plan if line.url_canonical in urls})


def _summary(
    captures: Path, shards: Collection[int] | None, visited: int, seconds: float
) -> CrawlSummary:
    statuses: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    for shard in complete_shards(captures):
        if shards is not None and shard not in shards:
            continue
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
    _stop_when_told()
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


def _stop_when_told() -> None:
    """Take the signals by which schedulers announce the end as a Ctrl-C."""
    task = asyncio.current_task()
    if task is None or threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, signal.SIGUSR1):
        if signal.getsignal(number) is signal.SIG_DFL:
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)


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
