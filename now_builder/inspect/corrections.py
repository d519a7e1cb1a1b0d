"""Corrections: a table of verdicts with those of later judges in place, for a pull request."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from now_builder.errors import FormatError
from now_builder.formats.tables import read_frame, write_csv
from now_builder.formats.verdicts import VerdictRow, verdict_of
from now_builder.inspect.stats import read_audit

_KIND_NAMES, _VERDICT_NAMES = ("note", "kind"), ("matched", "verdict")


def write_corrected(
    judged: Path, audits: Sequence[Path], release: Path | None, out: Path
) -> tuple[int, int]:
    """Write a table as CSV; a pair that a later judge sees otherwise has their verdict and kind.

    A later judge who names no kind leaves that of the same verdict; of several audits the last
    counts. Rows and columns keep their order, so that a diff shows the corrections.

    Returns:
        Number of rows that changed, and of rows that were judged again.

    Raises:
        FormatError: If a table cannot be read, or no row was judged again.
    """
    table = read_frame(judged)
    column = "key" if "key" in table.columns else "url"
    later = {getattr(line, column): line for path in audits for line in read_audit(path, release)}
    rows = table.to_dict("records")
    again = changed = 0
    for number, row in enumerate(rows, 2):
        line = later.get(str(row[column]).strip())
        if line is None or (line.url and str(row.get("url", line.url)).strip() != line.url):
            continue
        again += 1
        if new := _changes(judged, number, row, line):
            changed += 1
            row.update(new)
    if not again:
        raise FormatError(judged, f"none of its {len(rows)} rows was judged again")
    write_csv(out, table.columns, (row.values() for row in rows))
    return changed, again


def _changes(path: Path, number: int, row: dict[str, Any], line: VerdictRow) -> dict[str, Any]:
    """Return the cells of a row that a later verdict changes."""
    verdict = next(name for name in _VERDICT_NAMES if name in row)
    kind = next((name for name in _KIND_NAMES if name in row), "")
    new: dict[str, Any] = {}
    if verdict_of(path, number, row[verdict]) != line.matched:
        new[verdict] = line.matched
    if kind and (new or line.note) and str(row[kind] or "").strip() != line.note:
        new[kind] = line.note
    who = ("judge", "at", "seconds")
    return new and new | {name: getattr(line, name) for name in who if name in row}
