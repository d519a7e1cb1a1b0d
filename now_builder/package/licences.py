"""Licences of sites: select pages that may be copied, and list their sites in a release."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from now_builder.errors import FormatError, NowError
from now_builder.formats.release import LICENCES, Manifest
from now_builder.formats.shard import CaptureRow
from now_builder.formats.statistics import sort_counts
from now_builder.formats.tables import read_frame, write_csv
from now_builder.urls import canonical, site_of

Sites = dict[str, dict[str, str]]
"""Rows of a list of sites, by host name."""

_ATTRIBUTION = ("repository", "commit")
_COLUMNS = ("host", "licence", *_ATTRIBUTION)
_FREE = re.compile(r"(apache|mit|bsd|cc-by|cc0)(-\d(\.\d)?)?(-clause)?", re.IGNORECASE)
"""Licences that require only attribution: no -sa, -nc or -nd."""


def read_sites(path: Path) -> Sites:
    """Read a list of sites: CSV or Parquet with host, licence, repository, commit.

    Raises:
        FormatError: If a column is missing, a host is repeated or not valid, or a site with a free
            licence lacks repository or commit.
    """
    table = read_frame(path)
    if not {*_COLUMNS} <= {*table.columns}:
        raise FormatError(path, f"columns {[*table.columns]}, expected {', '.join(_COLUMNS)}")
    sites: Sites = {}
    for number, cells in enumerate(table.to_dict("records"), 2):
        row = {
            name: "" if cell is None else " ".join(str(cell).split())
            for name, cell in cells.items()
        }
        host = site_of(canonical(row["host"]) or "")
        if not host or host in sites:
            problem = f"host is {row['host']!r:.80}, expected a host name that no other row has"
            raise FormatError(path, f"row {number}: {problem}")
        missing = [name for name in _ATTRIBUTION if not row[name]]
        if is_free(row["licence"]) and missing:
            raise FormatError(path, f"row {number}: {missing[0]} of {host} is empty")
        sites[host] = {**row, "host": host}
    return sites


def is_free(licence: str) -> bool:
    """Return whether a licence allows copies and requires only attribution."""
    return _FREE.fullmatch(licence) is not None


def unlicensed(row: CaptureRow, sites: Sites) -> tuple[str, str] | None:
    """Return why a page may not be copied (reason and detail); ``None`` if it may."""
    landed = site_of(canonical(row.final_url or row.url) or "")
    if landed != row.site:
        return "not_licensed", f"led to {landed or 'no site'}, whose licence is another"
    if row.site not in sites:
        return "not_licensed", "not in the list of sites"
    licence = sites[row.site]["licence"]
    return None if is_free(licence) else ("not_licensed", licence or "none")


def write_licences(path: Path, sites: Sites, hosts: Iterable[str]) -> dict[str, int]:
    """Write the sites of pairs, given by host, with their counts; return pairs by licence."""
    pairs = Counter(hosts)
    rows = [{**sites[host], "pairs": count} for host, count in sorted(pairs.items())]
    write_csv(path, rows[0], (row.values() for row in rows))
    return _by_licence(sites, pairs)


def _by_licence(sites: Sites, pairs: Mapping[str, int]) -> dict[str, int]:
    counts = Counter[str]()
    for host, count in pairs.items():
        counts[sites[host]["licence"]] += count
    return sort_counts(counts)


def check_licences(release: Path, manifest: Manifest, pairs: Mapping[str, int]) -> list[str]:
    """Return the problems of a release packaged ``--licensed``; ``pairs`` has counts by site."""
    if not (manifest.licences or manifest.settings.get("licensed")):
        return []
    if LICENCES not in manifest.files:
        return [f"manifest.json: pages were selected by licence, but files lack {LICENCES}"]
    try:
        sites = read_sites(release / LICENCES)
    except NowError as error:
        return [str(error)]
    bad = [host for host in pairs if host not in sites or not is_free(sites[host]["licence"])]
    if bad:
        return [
            f"{LICENCES}: no licence that lets others have the {pairs[bad[0]]} pairs of {bad[0]}"
        ]
    counts = _by_licence(sites, pairs)
    if counts != manifest.licences or any(
        row.get("pairs") != str(pairs.get(host, 0)) for host, row in sites.items()
    ):
        return [f"{LICENCES}: pairs by licence {counts}, expected {manifest.licences}"]
    return []
