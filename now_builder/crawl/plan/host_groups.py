"""Group shards by host, so that no two workers ever visit the same host at once."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from now_builder.formats.shard import Planned


def assign_host_groups(plan: Sequence[Planned], finished: Collection[int]) -> list[Planned]:
    """Assign a host group to each shard: unfinished shards that share a host share a group.

    One worker at a time crawls a host group, so that pauses between visits to a host need no
    coordinator. A group has the number of its first shard. Groups are fixed when the plan is made
    or extended, so that all workers read the same; finished shards keep theirs, unless they are
    visited again.
    """
    parents: dict[int, int] = {}
    first_with: dict[str, int] = {}
    for line in plan:
        if line.shard in finished:
            continue
        ours, theirs = _root(parents, line.shard), first_with.setdefault(line.site, line.shard)
        theirs = _root(parents, theirs)
        parents[max(ours, theirs)] = min(ours, theirs)
    groups = {
        line.shard: line.host_group if line.shard in finished else line.shard for line in plan
    }
    groups |= {shard: _root(parents, shard) for shard in parents}
    return [replace(line, host_group=groups[line.shard]) for line in plan]


def _root(parents: dict[int, int], shard: int) -> int:
    """Find the first shard of a shard's group (union-find with path halving)."""
    parents.setdefault(shard, shard)
    while parents[shard] != shard:
        parents[shard] = parents[parents[shard]]
        shard = parents[shard]
    return shard


def host_groups(plan: Iterable[Planned]) -> list[list[int]]:
    """List the shards of each host group, groups and shards in the order of their numbers."""
    groups: dict[int, set[int]] = defaultdict(set)
    for line in plan:
        groups[line.host_group].add(line.shard)
    return [sorted(groups[group]) for group in sorted(groups)]


def join_into_tasks(
    groups: Iterable[Sequence[int]], pages: dict[int, int], at_least: int
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
