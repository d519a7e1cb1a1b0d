"""The plan of a crawl: made from the list and extended by its new URLs, but never changed."""

import fcntl
import logging
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

from now_builder.crawl.plan.host_groups import assign_host_groups
from now_builder.crawl.plan.urls import extend_plan
from now_builder.crawl.settings import CrawlSettings
from now_builder.crawl.storage.own_files import shard_of, sweep_plan
from now_builder.errors import CrawlError
from now_builder.formats.io import locking
from now_builder.formats.shard import (
    Planned,
    complete_shards,
    plan_path,
    read_plan,
    write_plan,
)
from now_builder.formats.split import (
    SplitPlan,
    choose_shares,
    read_split,
    registrable_domain,
    suffix_list,
    write_split,
)

_log = logging.getLogger(__name__)


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
            _warn_of_split(captures, settings.split_by)
        if not new:
            return plan
        extended = extend_plan(plan, listed, settings.shard_size)
        _check_numbers_free(captures, {line.shard for line in extended[len(plan) :]})
        extended = assign_host_groups(extended, complete_shards(captures))
        if not planned:
            split = captures / "split.toml"
            if split.exists():
                read_split(split)  # of a run that was killed before it wrote the plan, or not ours
            write_split(split, _split(extended, settings))
        write_plan(captures, extended)
        return extended


def check_can_start_over(captures: Path, listed: Sequence[str], settings: CrawlSettings) -> None:
    """Refuse to start over where the new plan's shards have the names of files of no plan.

    Raises:
        CrawlError: If there is such a file.
        FormatError: If there is a plan that cannot be read.
    """
    own = {line.shard for line in read_plan(captures)} if plan_path(captures).exists() else set()
    planned = {line.shard for line in extend_plan([], listed, settings.shard_size)}
    _check_numbers_free(captures, planned - own)


def _warn_of_split(captures: Path, wanted: str) -> None:
    """Warn if a crawl is split by another unit than the one asked for."""
    by = read_split(captures / "split.toml").by
    if by != wanted:
        text = "crawl: --split-by %s is not used, as this crawl is split by %s; --force starts over"
        _log.warning(text, wanted, by)


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
