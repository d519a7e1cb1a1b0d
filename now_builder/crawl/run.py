"""Crawl a list of URLs, locally or on Ray: plan, visit, finish the shards; resume after a stop."""

import logging
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from now_builder.crawl.crawler import PAGES_PER_CORE, RETRIES, crawl_shards
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

_OFFLINE = "Is this machine online, and may it connect to ports 80 and 443?"
_HINTS = {
    "dns_error": "Is this machine online, and does its DNS work (getent hosts example.org)?",
    "net_error": _OFFLINE,
    "timeout": _OFFLINE,
    "robots_unreachable": _OFFLINE,
    "tls_error": "Is the clock right, and does no firewall replace certificates?",
    "private_address": "Does a VPN answer DNS queries? For your own hosts: --allow-private.",
}
"""Hints by the most common error, if every page failed because of the network."""

_INTENDED = frozenset({"bad_url", "never", "only", "quota", "robots", "opt_out"})
"""Errors of invalid URLs, and of pages that the user or the site excludes."""

_PROXIES = frozenset({"http_proxy", "https_proxy", "all_proxy"})

POISON = "poison.json"
_LOCK_WAIT_S = 60.0
_SLACK_S = 300.0
_TASKS_PER_WORKER, _TASK_PAGES = 4, 1000
"""Number of tasks per Ray worker, and maximum pages of a task, which are lost with its worker."""

_ATTEMPTS = 3
"""Number of workers that may be lost to the same shards before these are given up."""

Shards = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CrawlSummary:
    """Number of rows, one per listed URL, by status and error; visits and duration of this run.

    With several ``shares``, only the rows of one share are counted.
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
        """The most common error and its remedy, if no page was captured but some should be."""
        errors = {error: count for error, count in self.errors.items() if error not in _INTENDED}
        if self.statuses.get("ok") or not errors:
            return None
        reason = max(errors, key=lambda error: errors[error])
        hint = _HINTS.get(reason, "See error_message in the rows.")
        proxies = [name for name in os.environ if name.lower() in _PROXIES and os.environ[name]]
        if proxies and reason in _HINTS:
            hint += f" The crawl connects directly: {min(proxies)} is not used."
        option = "--force" if REFUSED & errors.keys() else "--retry-failed"
        problem = f"no page was captured ({errors[reason]} of {self.pages}: {reason})"
        return f"{problem}. {hint} Then crawl again with {option}"

    def check(self, captures: Path) -> None:
        """Raise a CrawlError if all pages failed; for a share, log a warning."""
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
    """Visit each URL of a list as a phone and store the captures; every URL gets one row.

    Args:
        urls: Text file (one URL per line), or CSV or Parquet with a column ``url``.
        captures: Folder to write.
        settings: Settings of the crawl.
        force: Start over instead of resuming: first delete all shards in the plan.

    Raises:
        FormatError: If the list cannot be read.
        ConfigError: If a setting is invalid.
        CrawlError: If there is no browser, the disk is full, or another crawl uses the folder.
    """
    started = time.monotonic()
    listed = read_urls(urls, settings.url_column)
    make_resolver(settings)  # to report invalid settings before anything is written
    share = read_share(settings.shards_from) if settings.shards_from else (0, 1)
    if settings.engine == "ray" and settings.shards_from:
        raise ConfigError(
            "--shards-from: not possible with --engine ray, which distributes the shards itself"
        )
    if force and share[1] > 1:
        raise ConfigError("--force: not possible with --shards-from. Start over without it first.")
    with write_errors_explained(captures):
        captures.mkdir(parents=True, exist_ok=True)
        if force:
            with lock_shards(captures, ALL_SHARDS):
                check_can_start_over(captures, listed)
                start_over(captures)
        plan = make_plan(captures, listed, settings)
    if settings.retry_failed:  # also visits finished shards
        plan = assign_host_groups(plan, finished=())
    shards, visited = _dispatch(captures, plan, share, settings)
    statuses, errors = _count_rows(captures, shards)
    seconds = time.monotonic() - started
    return CrawlSummary(sum(statuses.values()), statuses, errors, visited, seconds, share[1])


def _dispatch(
    captures: Path, plan: Sequence[Planned], share: tuple[int, int], settings: CrawlSettings
) -> tuple[list[int], int]:
    """Crawl a share of a plan, or all of it on Ray.

    Returns:
        The shards of the share, and the number of pages visited.

    Raises:
        CrawlError: If a crawl fails; on Ray, if shards in ``poison.json`` failed in every attempt.
        ConfigError: If Ray is not installed or its cluster cannot be reached.
    """
    groups = host_groups(plan)[share[0] :: share[1]]
    shards = [shard for group in groups for shard in group]
    if settings.engine == "local":
        return shards, crawl_shards(captures, shards, settings)
    captures = captures.resolve()
    pages = _pages_left(captures, plan, settings)
    # Several tasks per worker, so that all workers end at about the same time.
    tasks = _TASKS_PER_WORKER * (os.cpu_count() or 1)
    task_pages = min(_TASK_PAGES, max(1, pages.total() // tasks))

    def parts(task: Shards) -> list[Shards]:
        return [part for group in groups if (part := tuple(n for n in group if n in task))]

    work, limit_s = partial(_work, captures, _for_workers(settings)), _limits(plan, settings)
    engine = RayEngine(work, limit_s, parts, settings, attempts=_ATTEMPTS)
    with Progress("crawl", pages.total()) as progress:
        outcome = engine.run(
            join_into_tasks(groups, pages, task_pages),
            lambda report: progress.add(sum(pages[shard] for shard in report[0])),
        )
    _report_poison(captures, outcome.poison)
    return shards, sum(visited for _, visited in outcome.reports)


def _work(captures: Path, settings: CrawlSettings, shards: Shards) -> tuple[Shards, int]:
    return shards, crawl_shards(captures, shards, settings, wait_s=_LOCK_WAIT_S)


def _for_workers(settings: CrawlSettings) -> CrawlSettings:
    """Make the path absolute, and adapt the concurrency to a worker's CPUs."""
    never = settings.never.resolve() if settings.never else None
    concurrency = settings.concurrency or max(1, round(PAGES_PER_CORE * settings.worker_cpus))
    return settings.model_copy(update={"never": never, "concurrency": concurrency})


def _pages_left(captures: Path, plan: Sequence[Planned], settings: CrawlSettings) -> Counter[int]:
    """Count the pages of each shard to crawl."""
    done = set(complete_shards(captures))
    if settings.retry_failed:
        statuses = {shard: read_columns(captures, shard, ("status",)) for shard in done}
        done = {n for n in done if all(row["status"] != "failed" for row in statuses[n])}
    return Counter(line.shard for line in plan if line.shard not in done)


def _limits(plan: Sequence[Planned], settings: CrawlSettings) -> Callable[[Shards], float]:
    """Return the time limit of a task: enough for its pages, and for its largest host."""
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


def _report_poison(captures: Path, poison: Sequence[tuple[Shards, str]]) -> None:
    """Write the shards that failed in every attempt to ``poison.json``, or remove that file."""
    path = captures / POISON
    path.unlink(missing_ok=True)
    if poison:
        write_json(path, [{"shards": list(shards), "why": why} for shards, why in poison])
        shards = [shard for task, _ in poison for shard in task]
        raise CrawlError(
            f"{path}: shards {shards} failed in every attempt ({poison[0][1][:200]}). All others "
            "are done; run the same command again to retry these"
        )


def _count_rows(captures: Path, shards: Collection[int]) -> tuple[dict[str, int], dict[str, int]]:
    """Count rows by status, and those that are not duplicates by error."""
    complete = sorted(set(complete_shards(captures)).intersection(shards))
    rows = [row for shard in complete for row in read_columns(captures, shard, ("status", "error"))]
    statuses = Counter(row["status"] for row in rows)
    errors = Counter(row["error"] for row in rows if row["error"] and row["status"] != "duplicate")
    return dict(statuses.most_common()), dict(errors.most_common())
