"""Crawl a list of URLs: plan, visit, finish the shards; go on after any stop."""

import logging
import os
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from now_builder.crawl.browser.visit import REFUSED
from now_builder.crawl.engines.local import crawl_shards, make_resolver
from now_builder.crawl.plan.host_groups import assign_host_groups, host_groups
from now_builder.crawl.plan.planning import check_can_start_over, make_plan
from now_builder.crawl.plan.urls import read_urls
from now_builder.crawl.settings import CrawlSettings
from now_builder.crawl.storage.locks import ALL_SHARDS, lock_shards
from now_builder.crawl.storage.own_files import start_over
from now_builder.crawl.storage.shard_writer import write_errors_explained
from now_builder.errors import ConfigError, CrawlError
from now_builder.formats.shard import complete_shards, read_columns
from now_builder.machine.distribution import read_share

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
                check_can_start_over(captures, listed, settings)
                start_over(captures)
        plan = make_plan(captures, listed, settings)
    if settings.retry_failed:  # finished shards are visited, too
        plan = assign_host_groups(plan, finished=())
    shards = [shard for group in host_groups(plan)[share[0] :: share[1]] for shard in group]
    if settings.engine == "ray":
        from now_builder.crawl.engines.ray_cluster import crawl_on_ray

        visited = crawl_on_ray(captures, plan, settings)
    else:
        visited = crawl_shards(captures, shards, settings)
    summary = _summary(captures, set(shards), visited, time.monotonic() - started)
    return replace(summary, shares=share[1])


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
