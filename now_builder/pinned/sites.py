"""Read the list of the pinned web, and read and write the result of each site, as CSV."""

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from now_builder.errors import FormatError
from now_builder.formats.io import read_lines
from now_builder.formats.tables import normalize_names, read_records, write_csv

LIST = Path(__file__).with_name("sites.csv")
MOST_PAGES = 100
"""Maximum number of pages per site."""


@dataclass(frozen=True, slots=True)
class Site:
    """A row of the list.

    Attributes:
        repository: ``owner/name`` on GitHub.
        commit: Hash of the commit, 40 hexadecimal digits.
        folder: Folder to serve; empty: the whole repository.
        host: Host name ``<name>.<owner>.test``.
        pages: Maximum number of pages to list, from 1 to 100.
        language: Main language of the pages (BCP 47).
        licence: Licence stated in the repository (SPDX); ``none`` without one.
        size: Size of the folder's files in bytes.
        kind: Kind of site, such as ``shop``, ``blog`` or ``documentation``.
    """

    repository: str
    commit: str
    folder: str
    host: str
    pages: int
    language: str
    licence: str
    size: int
    kind: str = ""


@dataclass(frozen=True, slots=True)
class MadeSite(Site):
    """A row of ``WEB/sites.csv``; ``pages`` and ``size`` are measured.

    Attributes:
        status: ``ok``, or for a site that is not served ``gone``, ``other_commit``, ``too_large``,
            ``no_pages``, ``timeout``, ``unreachable`` or ``damaged``.
        reason: Reason of the status; of an ``ok`` site, the files left out.
    """

    status: str = "ok"
    reason: str = ""


_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NUMBER = ("a number", re.compile(r"[0-9]{1,15}"))
_RULES = {
    "repository": ("owner/name", re.compile(r"[A-Za-z0-9][\w-]*/(?!\.{1,2}$)[\w.-]+", re.ASCII)),
    "commit": ("40 hexadecimal digits", re.compile(r"[0-9a-f]{40}")),
    "folder": ("a path such as docs", re.compile(r"(?!(?:.*/)?\.\.?(?:/|$))[^/\\]+(?:/[^/\\]+)*|")),
    "host": ("<name>.<owner>.test in lower case", re.compile(rf"{_LABEL}\.{_LABEL}\.test")),
    "pages": _NUMBER,
    "language": ("a tag such as zh-Hant", re.compile(r"[A-Za-z]{2,3}(?:-[A-Za-z0-9]+)*|")),
    "licence": ("a name such as MIT", re.compile(r"[ -~]*")),
    "size": _NUMBER,
    "kind": ("a word", re.compile(r"[\w -]*")),
    "status": ("a word", re.compile(r"[a-z_]+")),
    "reason": ("a line", re.compile(r".*")),
}  # fmt: skip


def read_sites(path: Path = LIST) -> list[Site]:
    """Read a list of sites; other columns are ignored, and ``kind`` is optional.

    Raises:
        FormatError: If the list is missing or empty, a cell is invalid, two rows have the same
            host, or a site has no page.
    """
    return _read(path, Site, "a list of sites")


def read_made(web: Path) -> list[Any]:
    """Read the ``sites.csv`` of a folder that ``pinned make`` wrote."""
    return _read(web / "sites.csv", MadeSite, "a pinned web, made by now-builder pinned make")


def write_sites(path: Path, rows: Iterable[MadeSite]) -> None:
    """Write rows as CSV, atomically."""
    names = (field.name for field in fields(MadeSite))
    write_csv(path, names, (asdict(row).values() for row in rows))


def _read(path: Path, kind: type[Site], missing: str) -> list[Any]:
    read_lines(path, f"file not found; expected {missing}")
    (_, names), *records = read_records(path, path.read_bytes())
    header = normalize_names(names)
    columns = [field.name for field in fields(kind)]
    absent = [name for name in columns if name not in {*header, "kind"}]
    if absent or len({*header}) < len(header):
        raise FormatError(path, f"line 1: columns {','.join(header)}, expected {','.join(columns)}")
    rows: list[Any] = []
    lines: dict[str, int] = {}
    for line, cells in records:
        cell = dict(zip(header, cells, strict=False))
        row = kind(**{name: _value(path, line, name, cell.get(name, "")) for name in columns})
        if kind is Site and not row.pages:  # a made site may have no page
            raise FormatError(path, f"line {line}: pages is 0, expected 1 to {MOST_PAGES}")
        if (first := lines.setdefault(row.host, line)) != line:
            raise FormatError(path, f"line {line}: host {row.host} is also on line {first}")
        rows.append(row)
    if not rows:
        raise FormatError(path, "no site below the header")
    return rows


def _value(path: Path, line: int, name: str, text: str) -> Any:
    expected, rule = _RULES[name]
    if not rule.fullmatch(text):
        raise FormatError(path, f"line {line}: {name} is {text[:80]!r}, expected {expected}")
    if rule is not _NUMBER[1]:
        return text
    if name == "pages" and not int(text) <= MOST_PAGES:
        raise FormatError(path, f"line {line}: pages is {text}, expected at most {MOST_PAGES}")
    return int(text)
