"""The plan of a crawl: made from the list and extended by its new URLs, but never changed."""

import fcntl
from collections import Counter
from collections.abc import Sequence

from now_builder.config import build
from now_builder.crawl.plan.host_groups import assign_host_groups
from now_builder.crawl.plan.urls import extend_plan
from now_builder.crawl.settings import CrawlSettings
from now_builder.crawl.storage.shard_storage import ShardStorage
from now_builder.errors import ConfigError
from now_builder.formats.shard import Planned, plan_path, read_plan, write_plan
from now_builder.formats.split import (
    Shares,
    SplitPlan,
    default_shares,
    registrable_domain,
    suffix_list,
    write_split,
)


def make_plan(
    storage: ShardStorage, listed: Sequence[str], settings: CrawlSettings
) -> list[Planned]:
    """Read the plan and add what is new in the list; the split is fixed with the first plan.

    Several processes may do so at once with the same list: they get the same plan.
    """
    with (storage.folder / ".plan.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # it dies with its process
        for torn in storage.folder.glob(".[ps]*.tmp"):
            torn.unlink()
        storage.fetch_plan()
        planned = plan_path(storage.folder).exists()
        plan = read_plan(storage.folder) if planned else []
        new = Counter(listed) - Counter(line.url for line in plan)
        if not new and all(line.lot >= 0 for line in plan):
            return plan
        extended = extend_plan(plan, listed, settings.shard_size)
        extended = assign_host_groups(extended, storage.complete_shards())
        if not planned:
            write_split(storage.folder / "split.toml", _split(extended, settings))
        write_plan(storage.folder, extended)
        storage.store_plan()
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
        shares = build(Shares, {"train": train, "dev": dev, "test": test}, "split_shares")
    by = settings.split_by
    if by == "auto":
        domains = {registrable_domain(line.site) for line in plan if line.site}
        by = "page" if len(domains) <= 1 else "domain"
    suffixes = suffix_list() if by == "domain" else None
    return SplitPlan(seed=settings.split_seed, by=by, suffixes=suffixes, shares=shares)
