"""Crawl on a Ray cluster: host groups are handed out as tasks, poison shards are set aside."""

import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from now_builder.crawl.engines.local import crawl_shards
from now_builder.crawl.plan.host_groups import host_groups, join_into_tasks
from now_builder.crawl.settings import CrawlSettings
from now_builder.errors import CrawlError
from now_builder.formats.io import write_json
from now_builder.formats.shard import Planned, complete_shards, read_rows
from now_builder.machine.ray_engine import RayEngine
from now_builder.program.progress import Progress

POISON = "poison.json"
_LOCK_WAIT_S = 60.0
_SLACK_S = 300.0
_TASKS_A_WORKER = 4
_ATTEMPTS = 3
"""Workers that may be lost over the same shards: more would be the fault of these."""

Shards = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Report:
    shards: Shards
    visited: int


def crawl_on_ray(captures: Path, plan: Sequence[Planned], settings: CrawlSettings) -> int:
    """Crawl the rest of a plan on a Ray cluster and return the number of pages visited.

    ``captures`` is a folder that every worker reaches.

    Raises:
        CrawlError: If shards failed in every attempt; they are listed in ``poison.json``.
        ConfigError: If Ray is not installed or its cluster cannot be reached.
    """
    captures = captures.resolve()
    pages = _pages_left(captures, plan, settings)
    groups = host_groups(plan)
    group_of = {shard: number for number, group in enumerate(groups) for shard in group}

    def parts(task: Shards) -> list[Shards]:
        cut: dict[int, list[int]] = defaultdict(list)
        for shard in task:
            cut[group_of[shard]].append(shard)
        return [tuple(part) for part in cut.values()]

    tasks = join_into_tasks(groups, pages, _task_pages(sum(pages.values()), settings))
    engine = RayEngine(
        partial(_work, captures, _for_workers(settings)),
        _limits(plan, settings),
        parts,
        settings,
        attempts=_ATTEMPTS,
    )
    with Progress("crawl", sum(pages.values())) as progress:

        def on_report(report: _Report) -> None:
            progress.add(sum(pages[shard] for shard in report.shards))

        outcome = engine.run(tasks, on_report)
    _note_poison(captures, outcome.poison)
    return sum(report.visited for report in outcome.reports)


def _work(captures: Path, settings: CrawlSettings, shards: Shards) -> _Report:
    return _Report(shards, crawl_shards(captures, shards, settings, wait_s=_LOCK_WAIT_S))


def _for_workers(settings: CrawlSettings) -> CrawlSettings:
    """Make all paths absolute, and set the concurrency by a worker's CPUs, not its machine's."""
    changes: dict[str, Any] = {
        name: path.resolve()
        for name in ("never", "browser")
        if (path := getattr(settings, name)) is not None
    }
    changes["concurrency"] = settings.concurrency or max(1, round(3 * settings.worker_cpus))
    return settings.model_copy(update=changes)


def _pages_left(captures: Path, plan: Sequence[Planned], settings: CrawlSettings) -> dict[int, int]:
    """Count the pages of the shards that are to be done."""
    done = set(complete_shards(captures))
    if settings.retry_failed:
        done = {
            shard
            for shard in done
            if all(row.status != "failed" for row in read_rows(captures, shard))
        }
    return dict(Counter(line.shard for line in plan if line.shard not in done))


def _task_pages(pages: int, settings: CrawlSettings) -> int:
    """Choose the pages of a task: some tasks for each worker, so that all end together."""
    workers = settings.workers or (os.cpu_count() or 1)
    return min(settings.task_pages, max(1, pages // (_TASKS_A_WORKER * workers)))


def _limits(plan: Sequence[Planned], settings: CrawlSettings) -> Callable[[Shards], float]:
    """Limit a task to the seconds of its pages, or of its largest host if that is more."""
    hosts: dict[int, Counter[str]] = defaultdict(Counter)
    for line in plan:
        hosts[line.shard][line.site] += 1
    page_s = (1 + settings.retries) * (settings.page_timeout_s + 5.0)
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
