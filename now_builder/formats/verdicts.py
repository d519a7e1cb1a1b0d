"""Verdicts of one judge on pairs: one CSV line each, synced before the next pair is shown."""

import csv
import fcntl
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, TypeVar

from pydantic import Field, TypeAdapter

from now_builder.errors import ConfigError, FormatError
from now_builder.formats.io import locking, sync_folder
from now_builder.formats.tables import read_frame
from now_builder.urls import strip_invisible

Verdict = Literal["match", "mismatch", "unsure"]
VERDICTS: tuple[Verdict, ...] = ("match", "mismatch", "unsure")
Item = TypeVar("Item", str, int)

KINDS = (
    "slogan", "other page", "placeholder", "keywords", "wrong language", "empty promise", "other",
)  # fmt: skip
"""Kinds of mismatch that the audit page offers; a judge may enter another."""

_WORDS: dict[str, Verdict] = {
    **dict.fromkeys(["true", "1", "1.0", "yes", "y", "match", "matched"], "match"),
    **dict.fromkeys(["false", "0", "0.0", "no", "n", "mismatch", "mismatched"], "mismatch"),
    **dict.fromkeys(["unsure", "unknown", "skip"], "unsure"),
    **dict.fromkeys(["", "na", "nan", "none", "null", "<na>"], "unsure"),
}

_NOTE = 500
"""Maximum length of a note in characters."""


@dataclass(frozen=True, slots=True)
class VerdictRow:
    """A row of a verdict file; the fields are its columns, in this order.

    Attributes:
        lang: Language of the page; empty if undecided.
        matched: The verdict; ``package --matched`` reads this column.
        at: Time of the verdict, UTC, ISO 8601.
        seconds: Seconds from the pair's display to the verdict.
        note: Note of the judge, on one line.
        weight: Inverse probability of drawing the pair; ``None``, and no column, if all
            probabilities were equal.
    """

    key: Annotated[str, Field(min_length=1)]
    url: str
    split: str
    lang: str
    matched: Verdict
    judge: str
    at: str
    seconds: float
    note: str = ""
    weight: float | None = None


_WEIGHTED = tuple(field.name for field in fields(VerdictRow))
COLUMNS = _WEIGHTED[:-1]
_HEADER, _WEIGHTED_HEADER = (f"{','.join(names)}\n".encode() for names in (COLUMNS, _WEIGHTED))
_ROW = TypeAdapter(VerdictRow)


def verdict_of(path: Path, number: int, value: object) -> Verdict:
    """Return the verdict in a cell of the column ``matched``, of a truth file or of a judge."""
    word = "" if value is None else strip_invisible(str(value)).lower()
    if word not in _WORDS:
        expected = "true, false, match, mismatch, unsure"
        raise FormatError(path, f"row {number}: matched is {word[:40]!r}, expected {expected}")
    return _WORDS[word]


def read_named_rows(
    path: Path, items: Mapping[str, Mapping[str, Iterable[Item]]], source: str
) -> Iterator[tuple[Item, Verdict, Mapping[str, object]]]:
    """Yield the verdicts of a table: the item that a row names, its verdict, its cells by column.

    A row names an item by ``key``, ``url`` or both. Rows without an item are skipped, and so are
    rows whose key and URL belong to different pages: another crawl assigns the same keys.

    Args:
        path: A table, see :func:`read_frame`; the columns ``matched`` and ``note`` may have the
            names ``verdict`` and ``kind``.
        items: Items by column and cell.
        source: Origin of the items, for messages.

    Raises:
        FormatError: If the table cannot be read, lacks a column, has an unknown verdict, or names
            no item.
    """
    frame = read_frame(path)
    renamed = {"verdict": "matched", "kind": "note"}
    table: Any = frame.rename(
        columns={old: new for old, new in renamed.items() if new not in frame}
    )
    columns = [name for name in items if name in table.columns]
    if not columns or "matched" not in table.columns:
        raise FormatError(
            path, f"columns {[*table.columns]}, expected {' or '.join(items)}, and matched"
        )
    is_empty = True
    for number, row in enumerate(table.to_dict("records"), 2):
        verdict = verdict_of(path, number, row["matched"])
        texts = {name: "" if row[name] is None else str(row[name]).strip() for name in columns}
        matches = [set(items[name].get(text, ())) for name, text in texts.items() if text]
        for item in sorted(set.intersection(*matches)) if matches else ():
            is_empty = False
            yield item, verdict, row
    if is_empty:
        names = " and ".join(columns)
        raise FormatError(path, f"none of its {len(table)} lines names a {names} of {source}")


class VerdictFile:
    """A verdict file open for one judge. Made by :func:`open_verdicts`.

    :meth:`append` syncs the line before it returns, and :meth:`undo` truncates the file by the last
    line. Nothing else is ever changed: a kill costs at most the line that is being written.
    """

    def __init__(self, file: BinaryIO, judged: list[VerdictRow]) -> None:
        self._file = file
        self.judged = judged

    def append(self, verdict: VerdictRow) -> None:
        """Append a verdict."""
        self._file.seek(0, os.SEEK_END)
        self._file.write(to_row(verdict).encode())
        _sync(self._file)
        self.judged.append(verdict)

    def undo(self) -> VerdictRow | None:
        """Remove and return the last verdict; ``None`` if there is none."""
        if not self.judged:
            return None
        line = to_row(self.judged[-1]).encode()
        start = self._file.seek(0, os.SEEK_END) - len(line)
        self._file.seek(start)
        if self._file.read() != line:
            raise FormatError(self._file.name, "its last line was edited. Remove it by hand")
        self._file.truncate(start)
        _sync(self._file)
        return self.judged.pop()


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def open_verdicts(path: Path, *, weighted: bool = False) -> Iterator[VerdictFile]:
    """Open or create a verdict file, with weights or without; an incomplete last line is removed.

    Raises:
        FormatError: If the file has other columns.
        ConfigError: If another process is writing it.
    """
    header = _WEIGHTED_HEADER if weighted else _HEADER
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():
        raise FormatError(path, "not a file, expected the CSV to write")
    with path.open("a+b") as file:
        try:
            with locking(path):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"{path}: another audit is writing it. End that one first") from None
        file.seek(0)
        content = file.read()
        is_new = header.startswith(content)
        lines = header if is_new else content[: content.rfind(b"\n") + 1]
        judged = parse_verdicts(path, lines)
        if weighted != lines.startswith(_WEIGHTED_HEADER.strip()):
            problem = "its pairs were drawn in another way. Give another file (-o)"
            raise FormatError(path, problem)
        file.truncate(0 if is_new else len(lines))
        if is_new:
            file.write(header)
            _sync(file)
            sync_folder(path.resolve().parent)
        yield VerdictFile(file, judged)


def parse_verdicts(path: Path, content: bytes) -> list[VerdictRow]:
    """Parse the bytes of complete lines, the header first; ``path`` is for messages."""
    if not content.replace(b"\r\n", b"\n").startswith((_HEADER, _WEIGHTED_HEADER)):
        raise FormatError(path, f"line 1: found {content[:80]!r}, expected {','.join(COLUMNS)}")
    rows = csv.DictReader(io.StringIO(content.decode(errors="replace"), newline=""), strict=True)
    try:
        return [_ROW.validate_python(row) for row in rows]
    except (ValueError, csv.Error) as error:
        raise FormatError(path, f"line {rows.line_num}: {error!s:.500}") from None


def to_row(verdict: VerdictRow) -> str:
    """Return a verdict as one line of CSV with its line end."""
    file = io.StringIO(newline="")
    # Without line ends in its cells, the last row is the last line, and undo can remove it.
    names = COLUMNS if verdict.weight is None else _WEIGHTED
    values = [" ".join(str(getattr(verdict, name)).splitlines()) for name in names]
    csv.writer(file, lineterminator="\n").writerow(values)
    return file.getvalue()


def to_one_line(text: str) -> str:
    """Turn typed text into one line of at most 500 printable characters."""
    printable = "".join(sign if sign.isprintable() else " " for sign in text)
    return " ".join(printable.split())[:_NOTE]
