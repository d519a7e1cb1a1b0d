"""Which shards one worker must crawl, so that no two workers ever visit the same host at once."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from now_builder.formats.shard import Planned


def with_lots(plan: Sequence[Planned], finished: Collection[int]) -> list[Planned]:
    """Give each shard its lot: unfinished shards that share a host share a lot.

    A lot is crawled by one worker at a time, so that pauses between visits to a host need no
    coordinator. It has the number of its first shard. Lots are fixed when the plan is made or
    extended, so that every worker reads the same from it; finished shards keep theirs.

    Args:
        plan: All of it.
        finished: Shards that are complete now.
    """
    lot_of: dict[int, int] = {}
    first_with: dict[str, int] = {}
    for line in plan:
        if line.shard in finished:
            continue
        ours, theirs = _top(lot_of, line.shard), first_with.setdefault(line.site, line.shard)
        theirs = _top(lot_of, theirs)
        lot_of[max(ours, theirs)] = min(ours, theirs)
    lots = {
        line.shard: line.lot if line.shard in finished and line.lot >= 0 else line.shard
        for line in plan
    }
    lots |= {shard: _top(lot_of, shard) for shard in lot_of}
    return [replace(line, lot=lots[line.shard]) for line in plan]


def _top(lot_of: dict[int, int], shard: int) -> int:
    """Follow a shard to the first of its lot, and remember the short way."""
    lot_of.setdefault(shard, shard)
    while lot_of[shard] != shard:
        lot_of[shard] = lot_of[lot_of[shard]]
        shard = lot_of[shard]
    return shard


def lots(plan: Iterable[Planned]) -> list[list[int]]:
    """List the shards of each lot, lots and shards in the order of their numbers."""
    found: dict[int, set[int]] = defaultdict(set)
    for line in plan:
        found[line.lot].add(line.shard)
    return [sorted(found[lot]) for lot in sorted(found)]


def tasks(
    lots: Iterable[Sequence[int]], pages: dict[int, int], at_least: int
) -> list[tuple[int, ...]]:
    """Join lots until each task has some pages, so that the slow last ones of a lot cost little.

    Args:
        lots: Shards of each lot.
        pages: To visit, by shard; a shard without any is left out.
        at_least: Pages of a task, the last one excepted.
    """
    found: list[tuple[int, ...]] = []
    shards: list[int] = []
    count = 0
    for lot in lots:
        todo = [shard for shard in lot if pages.get(shard)]
        shards += todo
        count += sum(pages[shard] for shard in todo)
        if count >= at_least:
            found.append(tuple(shards))
            shards, count = [], 0
    return [*found, tuple(shards)] if shards else found
