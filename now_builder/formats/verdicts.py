"""Verdicts of one person on pairs: a line each, synced before the next pair is asked."""

import csv
import fcntl
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, BinaryIO, Literal, TypeVar

from pydantic import Field, TypeAdapter

from now_builder.errors import ConfigError, FormatError
from now_builder.formats.io import locking, sync_folder
from now_builder.formats.tables import read_frame
from now_builder.urls import strip_invisible

Verdict = Literal["match", "mismatch", "unsure"]
VERDICTS: tuple[Verdict, ...] = ("match", "mismatch", "unsure")
Own = TypeVar("Own", str, int)

KINDS = (
    "slogan", "other page", "placeholder", "keywords", "wrong language", "empty promise", "other",
)  # fmt: skip
"""Kinds of mismatch that the audit's page offers; a judge may write another."""

_WORDS: dict[str, Verdict] = {
    **dict.fromkeys(["true", "1", "1.0", "yes", "y", "match", "matched"], "match"),
    **dict.fromkeys(["false", "0", "0.0", "no", "n", "mismatch", "mismatched"], "mismatch"),
    **dict.fromkeys(["unsure", "unknown", "skip"], "unsure"),
    **dict.fromkeys(["", "na", "nan", "none", "null", "<na>"], "unsure"),
}

_NOTE = 500
"""Characters of a note at most."""


@dataclass(frozen=True, slots=True)
class VerdictRow:
    """A line of a file of verdicts; its fields are the columns, in this order.

    Attributes:
        lang: Language of the page, empty if undecided.
        matched: The verdict; ``package --matched`` reads this column.
        at: Time of the verdict, UTC, ISO 8601.
        seconds: For how long the pair was looked at.
        note: The judge's words, on one line.
        weight: Inverse of the probability with which the pair was drawn; ``None``, and no column,
            if all pairs were as likely.
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
    """Read a cell of a column ``matched``: a truth's, or what a person judged."""
    word = "" if value is None else strip_invisible(str(value)).lower()
    if word not in _WORDS:
        raise FormatError(
            path,
            f"row {number}: matched is {word[:40]!r}, expected true, false, match, mismatch, "
            "unsure",
        )
    return _WORDS[word]


def read_named(
    path: Path, named: Mapping[str, Mapping[str, Iterable[Own]]], where: str
) -> Iterator[tuple[Own, Verdict]]:
    """Yield the verdicts of a table as :func:`read_named_rows` does, without the other columns."""
    return ((own, verdict) for own, verdict, _ in read_named_rows(path, named, where))


def read_named_rows(
    path: Path, named: Mapping[str, Mapping[str, Iterable[Own]]], where: str
) -> Iterator[tuple[Own, Verdict, Mapping[str, object]]]:
    """Yield the verdicts of a table, each with what its line's ``key``, ``url`` or both name.

    Lines about anything else are ignored, and so are those whose key and URL are of two pages:
    another crawl gives its pages the same keys. The third value has the line's cells by column.

    Args:
        path: A table as :func:`read_frame` reads it; ``verdict`` and ``kind`` are other names of
            the columns ``matched`` and ``note``.
        named: What a column's cells may name.
        where: What all that is part of, for a message.

    Raises:
        FormatError: If it cannot be read, lacks a column, has a word that is no verdict, or names
            nothing.
    """
    table = read_frame(path)
    names = {"verdict": "matched", "kind": "note"}
    table = table.rename(columns={old: new for old, new in names.items() if new not in table})
    columns = [name for name in named if name in table.columns]
    if not columns or "matched" not in table.columns:
        found = [str(name) for name in table.columns]
        raise FormatError(path, f"columns {found}, expected {' or '.join(named)}, and matched")
    known = False
    for number, row in enumerate(table.to_dict("records"), 2):
        verdict = verdict_of(path, number, row["matched"])
        texts = {name: "" if row[name] is None else str(row[name]).strip() for name in columns}
        both = [set(named[name].get(text, ())) for name, text in texts.items() if text]
        for one in sorted(set.intersection(*both)) if both else ():
            known = True
            yield one, verdict, row
    if not known:
        what = " and ".join(columns)
        raise FormatError(path, f"none of its {len(table)} lines names a {what} of {where}")


class VerdictFile:
    """A file of verdicts open for one judge. Made by :func:`open_verdicts`.

    A line is appended and synced before :meth:`append` returns; :meth:`undo` cuts the last one
    off. Nothing else is ever changed, so that a kill at any moment costs at most the line that was
    being written.
    """

    def __init__(self, file: BinaryIO, judged: list[VerdictRow]) -> None:
        self._file = file
        self.judged = judged

    def append(self, verdict: VerdictRow) -> None:
        """Store a verdict."""
        self._file.seek(0, os.SEEK_END)
        self._file.write(to_row(verdict).encode())
        _sync(self._file)
        self.judged.append(verdict)

    def undo(self) -> VerdictRow | None:
        """Remove the last verdict and return it, ``None`` if there is none."""
        if not self.judged:
            return None
        line = to_row(self.judged[-1]).encode()
        start = self._file.seek(0, os.SEEK_END) - len(line)
        self._file.seek(start)
        if self._file.read() != line:
            raise FormatError(self._file.name, "its last line was edited; take it out by hand")
        self._file.truncate(start)
        _sync(self._file)
        return self.judged.pop()


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def open_verdicts(path: Path, *, weighted: bool = False) -> Iterator[VerdictFile]:
    """Open or make a file of verdicts, with weights or without; drop a half-written last line.

    Raises:
        FormatError: If it exists and has other columns.
        ConfigError: If another process is writing it.
    """
    header = _WEIGHTED_HEADER if weighted else _HEADER
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():
        raise FormatError(path, "not a file; give the CSV to write")
    with path.open("a+b") as file:
        try:
            with locking(path):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"{path}: another audit is writing it; end that one first") from None
        file.seek(0)
        content = file.read()
        new = header.startswith(content)
        whole = header if new else content[: content.rfind(b"\n") + 1]
        judged = parse_verdicts(path, whole)
        if weighted != whole.startswith(_WEIGHTED_HEADER.strip()):
            problem = "its pairs were drawn in another way. Give another file (-o)"
            raise FormatError(path, problem)
        file.truncate(0 if new else len(whole))
        if new:
            file.write(header)
            _sync(file)
            sync_folder(path.resolve().parent)
        yield VerdictFile(file, judged)


def parse_verdicts(path: Path, content: bytes) -> list[VerdictRow]:
    """Parse the bytes of whole lines, the header first; ``path`` is for messages."""
    if not content.replace(b"\r\n", b"\n").startswith((_HEADER, _WEIGHTED_HEADER)):
        raise FormatError(path, f"line 1: found {content[:80]!r}, expected {','.join(COLUMNS)}")
    rows = csv.DictReader(io.StringIO(content.decode(errors="replace"), newline=""), strict=True)
    try:
        return [_ROW.validate_python(row) for row in rows]
    except (ValueError, csv.Error) as error:
        raise FormatError(path, f"line {rows.line_num}: {error!s:.500}") from None


def to_row(verdict: VerdictRow) -> str:
    """Write a verdict as one line of CSV, its end included."""
    file = io.StringIO(newline="")
    # A line of the file is a line of the text, so that the last one can be found and taken back.
    names = COLUMNS if verdict.weight is None else _WEIGHTED
    values = [" ".join(str(getattr(verdict, name)).splitlines()) for name in names]
    csv.writer(file, lineterminator="\n").writerow(values)
    return file.getvalue()


def to_one_line(text: str) -> str:
    """Bring what a person typed to one line of at most 500 printable characters."""
    printable = "".join(sign if sign.isprintable() else " " for sign in text)
    return " ".join(printable.split())[:_NOTE]
