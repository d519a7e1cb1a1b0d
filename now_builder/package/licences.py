"""Licences of sites: which pages others may have copies of, and what a release says of them."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from now_builder.errors import FormatError, NowError
from now_builder.formats.release import LICENCES, Manifest
from now_builder.formats.shard import CaptureRow
from now_builder.formats.statistics import ranked
from now_builder.formats.tables import read_frame, write_csv
from now_builder.urls import canonical, site_of

Sites = dict[str, dict[str, str]]
"""The lines of a list of sites, by host name."""

_ATTRIBUTION = ("repository", "commit")
_NEEDED = ("host", "licence", *_ATTRIBUTION)
_FREE = re.compile(r"(apache|mit|bsd|cc-by|cc0)(-\d(\.\d)?)?(-clause)?", re.IGNORECASE)
"""Licences that ask for no more than attribution: neither -sa, nor -nc, nor -nd."""


def read_sites(path: Path) -> Sites:
    """Read a list of sites: CSV or Parquet with host, licence, repository, commit.

    Raises:
        FormatError: If it is no such list, names a host twice, or lacks the repository or commit of
            a site whose licence is free.
    """
    table = read_frame(path)
    if not {*_NEEDED} <= {*table.columns}:
        raise FormatError(path, f"columns {[*table.columns]}, expected {', '.join(_NEEDED)}")
    sites: Sites = {}
    for number, cells in enumerate(table.to_dict("records"), 2):
        row = {
            name: "" if cell is None else " ".join(str(cell).split())
            for name, cell in cells.items()
        }
        host = site_of(canonical(row["host"]) or "")
        if not host or host in sites:
            expected = "a host name that no other row has"
            raise FormatError(
                path, f"row {number}: host is {row['host']!r:.80}, expected {expected}"
            )
        lacking = [name for name in _ATTRIBUTION if not row[name]]
        if is_free(row["licence"]) and lacking:
            raise FormatError(path, f"row {number}: {lacking[0]} of {host} is empty")
        sites[host] = {**row, "host": host}
    return sites


def is_free(licence: str) -> bool:
    """Whether a licence lets others have copies and asks for no more than attribution."""
    return _FREE.fullmatch(licence) is not None


def unlicensed(row: CaptureRow, sites: Sites) -> tuple[str, str] | None:
    """Return why others may not have copies of a page (reason and detail), else ``None``."""
    landed = site_of(canonical(row.final_url or row.url) or "")
    if landed != row.site:
        return "not_licensed", f"led to {landed or 'no site'}, whose licence is another"
    if row.site not in sites:
        return "not_licensed", "not in the list of sites"
    licence = sites[row.site]["licence"]
    return None if is_free(licence) else ("not_licensed", licence or "none")


def write_licences(path: Path, sites: Sites, hosts: Iterable[str]) -> dict[str, int]:
    """Write the lines of the sites of some pairs, each with its count; return pairs by licence."""
    pairs = Counter(hosts)
    rows = [{**sites[host], "pairs": count} for host, count in sorted(pairs.items())]
    write_csv(path, rows[0], (row.values() for row in rows))
    return _by_licence(sites, pairs)


def _by_licence(sites: Sites, pairs: Mapping[str, int]) -> dict[str, int]:
    found = Counter[str]()
    for host, count in pairs.items():
        found[sites[host]["licence"]] += count
    return ranked(found)


def check_licences(release: Path, manifest: Manifest, pairs: Mapping[str, int]) -> list[str]:
    """Return the problems of a release packaged ``--licensed``; ``pairs`` are counts by site."""
    if not (manifest.licences or manifest.settings.get("licensed")):
        return []
    if LICENCES not in manifest.files:
        return [f"manifest.json: its pages are chosen by licence, but it names no {LICENCES}"]
    try:
        sites = read_sites(release / LICENCES)
    except NowError as error:
        return [str(error)]
    bad = [host for host in pairs if host not in sites or not is_free(sites[host]["licence"])]
    if bad:
        return [
            f"{LICENCES}: no licence that lets others have the {pairs[bad[0]]} pairs of {bad[0]}"
        ]
    found = _by_licence(sites, pairs)
    if found != manifest.licences or any(
        row.get("pairs") != str(pairs.get(host, 0)) for host, row in sites.items()
    ):
        return [f"{LICENCES}: pairs by licence {found}, expected {manifest.licences}"]
    return []
