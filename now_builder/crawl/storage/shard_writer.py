"""Write an open shard to a journal that survives a kill at any moment, then its final files.

The folder ``00012.open`` contains ``members.bin`` with the members of each page, and
``journal.jsonl``, whose line makes the page final. Both are synced after each page. Data after the
last complete line belongs to pages in flight and is overwritten.
"""

import json
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from now_builder.crawl.caption.charset import replace_surrogates
from now_builder.crawl.storage.folder import shard_of
from now_builder.errors import CrawlError, FormatError
from now_builder.formats.io import sync_folder
from now_builder.formats.shard import (
    Capture,
    CaptureRow,
    image_kind,
    members_path,
    read_members,
    read_rows,
    rows_path,
    to_members,
    write_packed,
)

_JOURNAL, _MEMBERS = "journal.jsonl", "members.bin"
_OPEN, _NEW, _DROP = ".open", ".open.new", ".open.drop"


@contextmanager
def write_errors_explained(path: Path) -> Iterator[None]:
    """Raise a CrawlError for an error of the file system, such as a full disk."""
    try:
        yield
    except OSError as error:
        raise CrawlError(
            f"{path}: cannot be written ({error}). Finished pages are kept; solve the problem and "
            "run the same command again to resume"
        ) from None


class OpenShard:
    """The stored pages of one unfinished shard, in ``folder`` or the default folder."""

    def __init__(self, captures: Path, number: int, folder: Path | None = None) -> None:
        self.captures = captures
        self.number = number
        self.rows: dict[str, CaptureRow] = {}
        self._places: dict[str, tuple[int, list[int]]] = {}
        self._folder = folder or open_path(captures, number)
        self._end = 0
        self._lock = threading.Lock()
        self._recover()

    @classmethod
    def reopen(cls, captures: Path, number: int) -> "OpenShard":
        """Reopen a finished shard without its failed pages."""
        new = captures / f"{number:05d}{_NEW}"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        shard = cls(captures, number, new)
        members = read_members(members_path(captures, number))
        for row in read_rows(captures, number):
            if row.status == "ok":
                shard.add(row, next(members))
            elif row.status == "refused":
                shard.add(row, None)
        new.rename(open_path(captures, number))
        sync_folder(captures)
        return cls(captures, number)

    def add(self, row: CaptureRow, capture: Capture | None) -> None:
        """Make a page final: write its members, then its journal line.

        Raises:
            CrawlError: If the disk is full or cannot be written.
        """
        # As stored in the tar, so that nothing is compressed twice.
        parts = [] if capture is None else [content for _, content in to_members(capture)]
        with self._lock:
            with write_errors_explained(self._folder):
                self._folder.mkdir(exist_ok=True)
                if parts:
                    _append(self._folder / _MEMBERS, self._end, b"".join(parts))
                sizes = [len(part) for part in parts]
                line = {"row": asdict(row), "at": self._end, "sizes": sizes}
                text = json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n"
                _append(self._folder / _JOURNAL, None, text.encode("utf-8", "surrogatepass"))
            self._index(*_parse(line))

    def finish(self, rows: Sequence[CaptureRow]) -> None:
        """Write the shard's tar and parquet and remove the folder."""
        with write_errors_explained(rows_path(self.captures, self.number)):
            write_packed(self.captures, self.number, rows, self._packed(rows))
        if self._folder.exists():
            drop = self.captures / f"{self.number:05d}{_DROP}"
            self._folder.rename(drop)  # at once, so that a partial folder never looks complete
            shutil.rmtree(drop)

    def _packed(self, rows: Sequence[CaptureRow]) -> Iterator[list[tuple[str, bytes]]]:
        """Yield the names and contents of the members of each captured page."""
        keys = [row.key for row in rows if row.status == "ok"]
        if not keys:
            return
        with (self._folder / _MEMBERS).open("rb") as file:
            for key in keys:
                start, sizes = self._places[key]
                file.seek(start)
                parts = [file.read(size) for size in sizes]
                if [len(part) for part in parts] != sizes:
                    raise FormatError(self._folder / _MEMBERS, f"page {key}: truncated members")
                endings = (image_kind(parts[0]), "html.gz", "elements.json")
                names = [f"{key}.{ending}" for ending in endings]
                yield list(zip(names, parts, strict=True))

    def _recover(self) -> None:
        """Read the journal; remove a partial last line of a killed run."""
        kept = 0
        for kept, entry in _read_journal(self._folder):  # noqa: B007 - used after the loop
            self._index(*entry)
        journal = self._folder / _JOURNAL
        if journal.exists() and kept < journal.stat().st_size:
            os.truncate(journal, kept)

    def _index(self, row: CaptureRow, start: int, sizes: list[int]) -> None:
        self.rows[row.key] = row
        self._places[row.key] = (start, sizes)
        self._end = max(self._end, start + sum(sizes))


def rows_so_far(captures: Path, number: int) -> list[CaptureRow]:
    """Read the rows of an open shard, also while it is being crawled."""
    return [row for _, (row, _, _) in _read_journal(open_path(captures, number))]


def _read_journal(folder: Path) -> Iterator[tuple[int, tuple[CaptureRow, int, list[int]]]]:
    """Yield the complete entries of an open shard's journal, each with the offset of its end."""
    try:
        content = (folder / _JOURNAL).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return
    end = 0
    for line in content.splitlines(keepends=True):
        end += len(line)
        if not line.endswith(b"\n"):
            return
        try:
            entry = _parse(json.loads(line.decode("utf-8", "surrogatepass")))
        except (ValueError, KeyError, TypeError):
            return
        yield end, entry


def _parse(line: dict[str, Any]) -> tuple[CaptureRow, int, list[int]]:
    """Return a page's row, and the start and sizes of its members."""
    row = CaptureRow(**replace_surrogates(line["row"]))
    return row, int(line["at"]), [int(size) for size in line["sizes"]]


def open_path(captures: Path, number: int) -> Path:
    """Return the folder of an open shard."""
    return captures / f"{number:05d}{_OPEN}"


def open_shards(captures: Path) -> list[int]:
    """List the numbers of the open shards."""
    paths = captures.glob(f"*{_OPEN}")
    return sorted(shard for path in paths if (shard := shard_of(path.name)) is not None)


def _append(path: Path, start: int | None, content: bytes) -> None:
    with path.open("ab") as file:
        if start is not None and file.tell() != start:
            file.truncate(start)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
