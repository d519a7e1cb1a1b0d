"""The pools of a release: those of the crawl, or others chosen afterwards."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from now_builder.errors import FormatError
from now_builder.formats.shard import CaptureRow, Planned
from now_builder.formats.split import Split, SplitPlan, names_above, suffix_list
from now_builder.formats.tables import read_hosts
from now_builder.package.settings import PackageSettings

_log = logging.getLogger(__name__)

_SHOWN = 5
"""Sites that a warning names."""


def choose_pools(learned: SplitPlan, settings: PackageSettings, sites: list[str]) -> SplitPlan:
    """Return the pools of a release."""
    suffixes = (learned.suffixes or suffix_list()) if settings.by == "domain" else None
    chosen = {"seed": settings.seed, "by": settings.by, "suffixes": suffixes}
    if (settings.seed, settings.by) == (learned.seed, learned.by):
        chosen = {}  # a file of an older version names no list of suffixes
    return learned.model_copy(update=chosen | ({"test_sites": sites} if sites else {}))


def read_test_sites(path: Path, plan: Sequence[Planned]) -> list[str]:
    """Read the sites of the test pool: a host name or URL a line, or a column ``site`` or ``url``.

    A name stands for all hosts below it too. Names without a page in the crawl are logged.
    """
    sites = read_hosts(path)
    crawled = {name for line in plan for name in names_above(line.site)}
    missing = [site for site in sites if site not in crawled]
    if len(missing) == len(sites):
        raise FormatError(path, f"none of its {len(sites)} sites has a page in the crawl")
    if missing:
        rest = len(missing) - _SHOWN
        named = ", ".join(missing[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
        _log.warning("%s: no page in the crawl of %s", path, named)
    return sorted({*sites}.difference(missing))


def count_learned(
    learned: SplitPlan, rows: Mapping[str, CaptureRow], splits: Mapping[Split, Sequence[str]]
) -> dict[Split, int]:
    """Count the pairs of dev and test that were in the train pool of the stages before."""
    return {
        split: sum(learned.pool_of(rows[key].site, key) == "train" for key in keys)
        for split, keys in splits.items()
        if split != "train"
    }
