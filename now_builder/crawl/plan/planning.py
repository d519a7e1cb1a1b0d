"""Plan a crawl: assign keys, shards and host groups to URLs; new URLs extend the plan."""

import fcntl
import hashlib
import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path

from now_builder.crawl.settings import CrawlSettings
from now_builder.crawl.storage.folder import shard_of, sweep_plan
from now_builder.errors import ConfigError, CrawlError
from now_builder.formats.io import locking
from now_builder.formats.shard import Planned, complete_shards, plan_path, read_plan, write_plan
from now_builder.formats.split import (
    SplitPlan,
    choose_shares,
    read_split,
    registrable_domain,
    suffix_list,
    write_split,
)
from now_builder.urls import canonical, site_of

_log = logging.getLogger(__name__)

_SHARD_SIZE = 256
"""Maximum number of pages of a shard."""

_SMALLEST_SHARD, _SHARDS_OF_A_SHORT_LIST = 16, 8
_MOST_SHARDS = 100_000
"""Maximum number of shards: keys have five digits for them."""


def make_plan(captures: Path, listed: Sequence[str], settings: CrawlSettings) -> list[Planned]:
    """Read the plan and add the new URLs of the list; the first plan fixes the split.

    Processes that call it at the same time with the same list get the same plan.

    Raises:
        CrawlError: If a new shard would overwrite a file that is not part of a plan.
        FormatError: If the existing plan cannot be read.
    """
    path, split = captures / ".plan.lock", captures / "split.toml"
    with path.open("a") as lock:
        with locking(path):
            fcntl.flock(lock, fcntl.LOCK_EX)  # released when the process ends
        sweep_plan(captures)
        has_plan = plan_path(captures).exists()
        plan = read_plan(captures) if has_plan else []
        is_fixed = has_plan and settings.split_by != "auto"
        split_by = read_split(split).by if is_fixed else settings.split_by
        if split_by != settings.split_by:
            _log.warning(
                "crawl: --split-by %s is ignored: this crawl is split by %s. Start over with "
                "--force to change that", settings.split_by, split_by,
            )  # fmt: skip
        extended = extend_plan(plan, listed, _SHARD_SIZE)
        if len(extended) == len(plan):
            return plan
        _check_not_taken(captures, {line.shard for line in extended[len(plan) :]})
        extended = assign_host_groups(extended, complete_shards(captures))
        if not has_plan:
            if split.exists():
                read_split(split)  # of a run killed before it wrote the plan; fails if not ours
            write_split(split, _split(extended, settings))
        write_plan(captures, extended)
        return extended


def check_can_start_over(captures: Path, listed: Sequence[str]) -> None:
    """Check that a new plan would not overwrite files that are not part of the current plan.

    Raises:
        CrawlError: If it would.
        FormatError: If the current plan cannot be read.
    """
    current = read_plan(captures) if plan_path(captures).exists() else []
    new = {line.shard for line in extend_plan([], listed, _SHARD_SIZE)}
    _check_not_taken(captures, new - {line.shard for line in current})


def _check_not_taken(captures: Path, shards: Collection[int]) -> None:
    """Raise a CrawlError if files already have the names of new shards."""
    names = (path.name for path in captures.iterdir())
    taken = sorted(name for name in names if shard_of(name) in shards)
    if taken:
        raise CrawlError(
            f"{captures / taken[0]}: not part of a plan, and the crawl would overwrite it "
            f"({len(taken)} such files). Move these files or choose another folder"
        )


def _split(plan: Sequence[Planned], settings: CrawlSettings) -> SplitPlan:
    by = settings.split_by
    if by == "auto":
        domains = {registrable_domain(line.site) for line in plan if line.site}
        by = "page" if len(domains) <= 1 else "domain"
    suffixes = suffix_list() if by == "domain" else None
    shares = choose_shares(settings.split_shares, len(plan))
    return SplitPlan(seed=settings.split_seed, by=by, suffixes=suffixes, shares=shares)


def extend_plan(plan: Sequence[Planned], urls: Iterable[str], shard_size: int) -> list[Planned]:
    """Add the new URLs of a list to a plan, in new shards; existing lines do not change.

    URLs are grouped by the hash of their host, so that a site is in few shards. A URL that is
    listed twice is planned twice, as every listed URL gets a row. The shards of a short list are
    smaller than ``shard_size``.

    Raises:
        ConfigError: If there are more shards than keys can number.
    """
    planned = Counter(line.url for line in plan)
    new = []
    for url in urls:
        if planned[url]:
            planned[url] -= 1
        else:
            new.append(url)
    size = min(shard_size, max(_SMALLEST_SHARD, ceil(len(new) / _SHARDS_OF_A_SHORT_LIST)))
    buckets: dict[int, list[tuple[str, str, str]]] = defaultdict(list)
    for url in new:
        visited = canonical(url) or url
        site = site_of(visited)
        number = int.from_bytes(hashlib.sha256(site.encode()).digest()[:8], "big")
        buckets[number % ceil(len(new) / size)].append((url, visited, site))
    shard = max((line.shard for line in plan), default=-1) + 1
    extended = list(plan)
    for _, lines in sorted(buckets.items()):
        for start in range(0, len(lines), size):
            extended += [
                Planned(f"{shard:05d}_{place:04d}", shard, url, visited, site)
                for place, (url, visited, site) in enumerate(lines[start : start + size])
            ]
            shard += 1
    if shard > _MOST_SHARDS:
        raise ConfigError(
            f"{len(extended)} URLs need {shard} shards, expected at most {_MOST_SHARDS}; "
            "crawl them into several folders"
        )
    return extended


def assign_host_groups(plan: Sequence[Planned], finished: Collection[int]) -> list[Planned]:
    """Assign a host group to each shard: unfinished shards with a common host are in one group.

    One worker at a time crawls a host group, so that delays between visits to a host need no
    coordinator. A group has the number of its first shard. Groups are fixed when the plan is
    written, so that all workers read the same groups; finished shards keep theirs.
    """
    group_of: dict[int, set[int]] = {}  # the set of a group's shards, by each of its shards
    first_shard: dict[str, int] = {}
    for line in plan:
        if line.shard in finished:
            continue
        group = group_of.setdefault(line.shard, {line.shard})
        group_of_host = group_of[first_shard.setdefault(line.site, line.shard)]
        if group is not group_of_host:
            small, large = sorted((group, group_of_host), key=len)
            large |= small
            group_of |= dict.fromkeys(small, large)
    numbers: dict[int, int] = {}
    for shard, group in group_of.items():
        if shard not in numbers:
            numbers |= dict.fromkeys(group, min(group))
    return [replace(line, host_group=numbers.get(line.shard, line.host_group)) for line in plan]


def host_groups(plan: Iterable[Planned]) -> list[list[int]]:
    """List the shards of each host group, both in the order of their numbers."""
    groups: dict[int, set[int]] = defaultdict(set)
    for line in plan:
        groups[line.host_group].add(line.shard)
    return [sorted(groups[group]) for group in sorted(groups)]


def join_into_tasks(
    groups: Iterable[Sequence[int]], pages: Mapping[int, int], at_least: int
) -> list[tuple[int, ...]]:
    """Join host groups into tasks, so that the slow last pages of a group delay a worker little.

    Shards without ``pages`` are left out; each task but the last has ``at_least`` pages.
    """
    tasks: list[tuple[int, ...]] = []
    shards: list[int] = []
    count = 0
    for group in groups:
        todo = [shard for shard in group if pages.get(shard)]
        shards += todo
        count += sum(pages[shard] for shard in todo)
        if count >= at_least:
            tasks.append(tuple(shards))
            shards, count = [], 0
    return [*tasks, tuple(shards)] if shards else tasks
