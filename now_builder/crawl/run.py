"""Crawl a list of URLs, here or by Ray: plan, visit, finish the shards; go on after any stop."""

import json
import logging
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from now_builder.crawl.crawler import RETRIES, crawl_shards
from now_builder.crawl.plan.planning import (
    assign_host_groups,
    check_can_start_over,
    host_groups,
    join_into_tasks,
    make_plan,
)
from now_builder.crawl.plan.urls import read_urls
from now_builder.crawl.politeness.resolver import make_resolver
from now_builder.crawl.settings import CrawlSettings
from now_builder.crawl.storage.folder import ALL_SHARDS, lock_shards, start_over
from now_builder.crawl.storage.shard_writer import write_errors_explained
from now_builder.crawl.visit import REFUSED
from now_builder.errors import ConfigError, CrawlError
from now_builder.formats.io import write_json
from now_builder.formats.shard import Planned, complete_shards, read_columns
from now_builder.machine.distribution import read_share
from now_builder.machine.ray_engine import RayEngine
from now_builder.program.progress import Progress

_log = logging.getLogger(__name__)

_OFFLINE = "is this machine online, and may it connect to ports 80 and 443?"
_MENDS = {
    "dns_error": "is this machine online, and does its DNS know names (getent hosts example.org)?",
    "net_error": _OFFLINE,
    "timeout": _OFFLINE,
    "robots_unreachable": _OFFLINE,
    "tls_error": "is the clock right, and does nothing on the way put in its own certificates?",
    "private_address": "does a VPN answer for DNS? --allow-private is for hosts of one's own.",
}
"""Hints by error, if every page failed, for reasons of the network more often than for others."""

_MEANT = frozenset({"bad_url", "never", "only", "quota", "robots", "opt_out"})
"""Errors of pages that are no URL, or that the user or the site does not want to be visited."""

_PROXIES = frozenset({"http_proxy", "https_proxy", "all_proxy"})

POISON = "poison.json"
_LOCK_WAIT_S = 60.0
_SLACK_S = 300.0
_TASKS_A_WORKER, _TASK_PAGES = 4, 1000
"""Tasks of a Ray worker, and maximum pages of one, which a lost worker costs."""

_ATTEMPTS = 3
"""Workers that may be lost over the same shards: more would be the fault of these."""

Shards = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CrawlSummary:
    """Rows of a crawl, one per listed URL, by status and error; visits and duration of this run.

    Of a crawl in several ``shares``, the rows of one of them.
    """

    pages: int
    statuses: dict[str, int]
    errors: dict[str, int]
    visited: int
    seconds: float
    shares: int = 1

    def __str__(self) -> str:
        statuses = ", ".join(f"{count} {status}" for status, count in self.statuses.items())
        errors = ", ".join(f"{error} {count}" for error, count in self.errors.items())
        rate = self.visited / self.seconds if self.seconds else 0.0
        return (
            f"{self.pages} URLs: {statuses}{f' ({errors})' if errors else ''}; "
            f"visited {self.visited} in {self.seconds:.0f} s ({rate:.2f} pages/s)"
        )

    @property
    def failure(self) -> str | None:
        """The commonest reason and what to do, if all pages failed that were to be visited."""
        asked = {error: count for error, count in self.errors.items() if error not in _MEANT}
        if self.statuses.get("ok") or not asked:
            return None
        reason = max(asked, key=lambda error: asked[error])
        again = "--force" if REFUSED & asked.keys() else "--retry-failed"
        failed = f"no page was captured, {asked[reason]} of {self.pages} for {reason}: "
        if reason not in _MENDS:
            return f"{failed}error_message in the rows says more. Then crawl again with {again}"
        proxies = [name for name in os.environ if name.lower() in _PROXIES and os.environ[name]]
        unused = f" The crawl dials sites itself: {min(proxies)} is not used." if proxies else ""
        return f"{failed}{_MENDS[reason]}{unused} Then crawl again with {again}"

    def check(self, captures: Path) -> None:
        """Raise a CrawlError if all pages failed; of a share it is a warning."""
        if self.failure and self.shares == 1:
            raise CrawlError(f"{captures}: {self.failure}")
        if self.failure:
            _log.warning("%s: in this share %s", captures, self.failure)


def crawl(
    urls: Path,
    captures: Path,
    settings: CrawlSettings,
    force: bool = False,  # noqa: FBT001, FBT002 - as in every stage
) -> CrawlSummary:
    """Visit each URL of a list as a phone would and store the captures; every URL ends as one row.

    Args:
        urls: Text file (one a line), or CSV or Parquet with a column ``url``.
        captures: Folder to write.
        settings: Settings of the crawl.
        force: Start over instead of going on: delete what the plan in ``captures`` lists, first.

    Raises:
        FormatError: If the list cannot be read.
        ConfigError: If a setting is not valid.
        CrawlError: If there is no browser, the disk is full, or another crawl is at work here.
    """
    started = time.monotonic()
    listed = read_urls(urls, settings.url_column)
    make_resolver(settings)  # its errors come before anything is written
    share = read_share(settings.shards_from) if settings.shards_from else (0, 1)
    if settings.engine == "ray" and settings.shards_from:
        raise ConfigError("--shards-from: not with --engine ray, which shares the work itself")
    if force and share[1] > 1:
        raise ConfigError("--force: not with --shards-from; start over once, then share")
    with write_errors_explained(captures):
        captures.mkdir(parents=True, exist_ok=True)
        if force:
            with lock_shards(captures, ALL_SHARDS):
                check_can_start_over(captures, listed)
                start_over(captures)
        plan = make_plan(captures, listed, settings)
    if settings.retry_failed:  # finished shards are visited, too
        plan = assign_host_groups(plan, finished=())
    shards, visited = _dispatch(captures, plan, share, settings)
    summary = _summary(captures, set(shards), visited, time.monotonic() - started)
    return replace(summary, shares=share[1])


def _dispatch(
    captures: Path, plan: Sequence[Planned], share: tuple[int, int], settings: CrawlSettings
) -> tuple[list[int], int]:
    """Crawl the K-th of N shares of a plan, by Ray all of it, and return what was crawled.

    ``captures`` is a folder that every worker reaches.

    Returns:
        The shards of the share, and the number of pages visited.

    Raises:
        CrawlError: If a crawl fails, or shards in every attempt: they are in ``poison.json``.
        ConfigError: If Ray is not installed or its cluster cannot be reached.
    """
    groups = host_groups(plan)[share[0] :: share[1]]
    shards = [shard for group in groups for shard in group]
    if settings.engine == "local":
        return shards, crawl_shards(captures, shards, settings)
    captures = captures.resolve()
    pages = _pages_left(captures, plan, settings)
    # Some tasks for each worker, so that all end together.
    tasks = _TASKS_A_WORKER * (os.cpu_count() or 1)
    task_pages = min(_TASK_PAGES, max(1, pages.total() // tasks))

    def parts(task: Shards) -> list[Shards]:
        cut = [tuple(shard for shard in group if shard in task) for group in groups]
        return list(filter(None, cut))

    work, limit_s = partial(_work, captures, _for_workers(settings)), _limits(plan, settings)
    engine = RayEngine(work, limit_s, parts, settings, attempts=_ATTEMPTS)
    with Progress("crawl", pages.total()) as progress:
        outcome = engine.run(
            join_into_tasks(groups, pages, task_pages),
            lambda report: progress.add(sum(pages[shard] for shard in report[0])),
        )
    _note_poison(captures, outcome.poison)
    return shards, sum(visited for _, visited in outcome.reports)


def _work(captures: Path, settings: CrawlSettings, shards: Shards) -> tuple[Shards, int]:
    return shards, crawl_shards(captures, shards, settings, wait_s=_LOCK_WAIT_S)


def _for_workers(settings: CrawlSettings) -> CrawlSettings:
    """Make the path absolute, and set the concurrency by a worker's CPUs, not its machine's."""
    never = settings.never.resolve() if settings.never else None
    concurrency = settings.concurrency or max(1, round(3 * settings.worker_cpus))
    return settings.model_copy(update={"never": never, "concurrency": concurrency})


def _pages_left(captures: Path, plan: Sequence[Planned], settings: CrawlSettings) -> Counter[int]:
    """Count the pages of the shards that are to be done."""
    done = set(complete_shards(captures))
    if settings.retry_failed:
        statuses = {shard: read_columns(captures, shard, ("status",)) for shard in done}
        done = {n for n in done if all(row["status"] != "failed" for row in statuses[n])}
    return Counter(line.shard for line in plan if line.shard not in done)


def _limits(plan: Sequence[Planned], settings: CrawlSettings) -> Callable[[Shards], float]:
    """Limit a task to the seconds of its pages, or of its largest host if that is more."""
    hosts: dict[int, Counter[str]] = defaultdict(Counter)
    for line in plan:
        hosts[line.shard][line.site] += 1
    page_s = (1 + RETRIES) * (settings.page_timeout_s + 5.0)
    delay_s = max(settings.per_host_delay_s, 30.0 if settings.robots else 0.0)
    concurrency = _for_workers(settings).concurrency

    def limit_s(shards: Shards) -> float:
        pages: Counter[str] = sum((hosts[shard] for shard in shards), Counter())
        largest_s = max(pages.values()) * (page_s + delay_s)
        return _SLACK_S + max(pages.total() * page_s / concurrency, largest_s)

    return limit_s


def _note_poison(captures: Path, poison: Sequence[tuple[Shards, str]]) -> None:
    """Write the shards that were given up to ``poison.json``, or remove that file."""
    path = captures / POISON
    path.unlink(missing_ok=True)
    if not poison:
        return
    write_json(path, [{"shards": list(shards), "why": why} for shards, why in poison])
    shards = [shard for task, _ in poison for shard in task]
    raise CrawlError(
        f"shards {json.dumps(shards)} were given up, see {path} ({poison[0][1][:200]}); all others "
        "are done, and the same command tries these again"
    )


def _summary(captures: Path, shards: Collection[int], visited: int, seconds: float) -> CrawlSummary:
    statuses: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    for shard in complete_shards(captures):
        if shard in shards:
            for row in read_columns(captures, shard, ("status", "error")):
                statuses[row["status"]] += 1
                if row["error"] is not None and row["status"] != "duplicate":
                    errors[row["error"]] += 1
    by_status, by_error = dict(statuses.most_common()), dict(errors.most_common())
    return CrawlSummary(statuses.total(), by_status, by_error, visited, seconds)
