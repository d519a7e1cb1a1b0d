"""The plan of a crawl: keys, shards and host groups, extended by new URLs, never changed."""

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
"""Maximum pages of a shard."""

_SMALLEST_SHARD, _SHARDS_OF_A_SHORT_LIST = 16, 8
_MOST_SHARDS = 100_000
"""As many as the five digits of a key can number."""


def make_plan(captures: Path, listed: Sequence[str], settings: CrawlSettings) -> list[Planned]:
    """Read the plan and add the new URLs of the list; the split is fixed with the first plan.

    Several processes may do so at once with the same list: they get the same plan.

    Raises:
        CrawlError: If a shard to be planned has the name of a file that no plan lists.
        FormatError: If there is a plan that cannot be read.
    """
    path = captures / ".plan.lock"
    with path.open("a") as lock:
        with locking(path):
            fcntl.flock(lock, fcntl.LOCK_EX)  # it dies with its process
        sweep_plan(captures)
        planned = plan_path(captures).exists()
        plan = read_plan(captures) if planned else []
        new = Counter(listed) - Counter(line.url for line in plan)
        if planned and settings.split_by != "auto":
            by = read_split(captures / "split.toml").by
            if by != settings.split_by:
                _log.warning(
                    "crawl: --split-by %s is not used, as this crawl is split by %s; --force "
                    "starts over", settings.split_by, by,
                )  # fmt: skip
        if not new:
            return plan
        extended = extend_plan(plan, listed, _SHARD_SIZE)
        _check_numbers_free(captures, {line.shard for line in extended[len(plan) :]})
        extended = assign_host_groups(extended, complete_shards(captures))
        if not planned:
            split = captures / "split.toml"
            if split.exists():
                read_split(split)  # of a run that was killed before it wrote the plan, or not ours
            write_split(split, _split(extended, settings))
        write_plan(captures, extended)
        return extended


def check_can_start_over(captures: Path, listed: Sequence[str]) -> None:
    """Refuse to start over where the new plan's shards have the names of files of no plan.

    Raises:
        CrawlError: If there is such a file.
        FormatError: If there is a plan that cannot be read.
    """
    own = {line.shard for line in read_plan(captures)} if plan_path(captures).exists() else set()
    planned = {line.shard for line in extend_plan([], listed, _SHARD_SIZE)}
    _check_numbers_free(captures, planned - own)


def _check_numbers_free(captures: Path, shards: Collection[int]) -> None:
    """Refuse to plan shards whose names other files have."""
    names = (path.name for path in captures.iterdir())
    taken = sorted(name for name in names if shard_of(name) in shards)
    if taken:
        raise CrawlError(
            f"{captures}: the crawl would write {taken[0]}, which no plan lists "
            f"({len(taken)} such files); move them away, or take another folder"
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
    """Add the new URLs of a list to a plan, in new shards; planned lines stay.

    A shard is a part of a host-hash bucket, so that a site is in few shards. A URL that is listed
    twice is planned twice: every URL in, one row out. The shards of a short list are smaller than
    ``shard_size``.

    Raises:
        ConfigError: If that would be more shards than keys can name.
    """
    have = Counter(line.url for line in plan)
    new = []
    for url in urls:
        if have[url]:
            have[url] -= 1
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
            f"{len(extended)} URLs would be {shard} shards, expected at most {_MOST_SHARDS}; "
            "crawl them into several folders"
        )
    return extended


def assign_host_groups(plan: Sequence[Planned], finished: Collection[int]) -> list[Planned]:
    """Assign a host group to each shard: unfinished shards that share a host share a group.

    One worker at a time crawls a host group, so that pauses between visits to a host need no
    coordinator. A group has the number of its first shard. Groups are fixed when the plan is made
    or extended, so that all workers read the same; finished shards keep theirs, unless they are
    visited again.
    """
    joined: dict[int, set[int]] = {}  # the shards of a group, by each of them
    first_with: dict[str, int] = {}
    for line in plan:
        if line.shard in finished:
            continue
        ours = joined.setdefault(line.shard, {line.shard})
        theirs = joined[first_with.setdefault(line.site, line.shard)]
        if ours is not theirs:
            small, large = sorted((ours, theirs), key=len)
            large |= small
            joined |= dict.fromkeys(small, large)
    numbers: dict[int, int] = {}
    for shard, group in joined.items():
        if shard not in numbers:
            numbers |= dict.fromkeys(group, min(group))
    return [replace(line, host_group=numbers.get(line.shard, line.host_group)) for line in plan]


def host_groups(plan: Iterable[Planned]) -> list[list[int]]:
    """List the shards of each host group, groups and shards in the order of their numbers."""
    groups: dict[int, set[int]] = defaultdict(set)
    for line in plan:
        groups[line.host_group].add(line.shard)
    return [sorted(groups[group]) for group in sorted(groups)]


def join_into_tasks(
    groups: Iterable[Sequence[int]], pages: Mapping[int, int], at_least: int
) -> list[tuple[int, ...]]:
    """Join host groups into tasks of some pages, so that a group's slow last pages cost little.

    A shard that has no ``pages`` left is left out; each task but the last has ``at_least`` pages.
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
