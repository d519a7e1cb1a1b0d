"""A web archive (WACZ): the pages that it lists, and the recorded answer to a request."""

import gzip
import io
import json
import os
import sqlite3
import struct
import threading
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Any

from warcio.archiveiterator import ArchiveIterator
from warcio.bufferedreaders import BufferedReader
from warcio.recordloader import ArcWarcRecord

from now_builder.crawl.caption.charset import whole_characters
from now_builder.errors import FormatError
from now_builder.formats.warc import sort_key
from now_builder.urls import canonical

_INDEXES = (".cdx", ".cdxj", ".cdx.gz", ".cdxj.gz")
_PAGES, _FIRST_PAGES = "pages/", "pages/pages.jsonl"
_LONGEST_LINE, _LONGEST_HEAD = 1 << 24, 1 << 20
_BLOCK = 1 << 16
_OF_CONNECTION = frozenset(
    {"connection", "content-length", "keep-alive", "proxy-authenticate", "proxy-connection",
     "trailer", "transfer-encoding", "upgrade"}
)  # fmt: skip
_DAMAGED = (
    zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, TypeError, KeyError,
    OverflowError, OSError, EOFError, zlib.error, struct.error, sqlite3.Error,
)  # fmt: skip


class NotArchived(Exception):  # noqa: N818 - no error of ours: the archive lacks something
    """An archive has no answer to a request, or a damaged one."""


class TooLarge(NotArchived):
    """An answer has more bytes than are wanted."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A recorded response: transfer encodings undone, and content encodings that warcio knows."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    at: float


def read_pages(path: Path) -> list[str]:
    """Read the URLs of the pages of a WACZ: of ``pages.jsonl`` first, then of further lists.

    Raises:
        FormatError: If it is no WACZ, is damaged, or lists no pages.
    """
    urls: list[str] = []
    with _opened(path) as file:
        names = [name for name in file.namelist() if name.startswith(_PAGES)]
        names = [name for name in names if name.endswith(".jsonl")]
        for name in sorted(names, key=lambda name: (name != _FIRST_PAGES, name)):
            for number, line in _lines(file, name):
                try:
                    page = whole_characters(json.loads(line))
                    urls += [] if "format" in page else [str(page["url"])]
                except (ValueError, TypeError, KeyError, RecursionError) as error:
                    problem = f"{name}, line {number}: no page with a url ({error!r:.100})"
                    raise FormatError(path, problem) from None
    if not urls:
        mend = "give a list of URLs, and this file as --archive"
        raise FormatError(path, f"lists no pages in {_FIRST_PAGES}; {mend}")
    return urls


class Archive:
    """The records of a WACZ by URL, in a temporary index on disk; threads may share it.

    Raises:
        FormatError: If it is no WACZ, is damaged, or has no index or records.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._index = sqlite3.connect("", check_same_thread=False)
        try:
            self._read(path)
        except BaseException:
            self._index.close()
            raise
        self._file = path.open("rb")

    def _read(self, path: Path) -> None:
        with _opened(path) as file:
            self._warcs = dict(_warcs(path, file))
            names = [name for name in file.namelist() if name.startswith("indexes/")]
            names = [name for name in names if name.endswith(_INDEXES)]
            if not self._warcs or not names:
                raise FormatError(path, "found no archive/*.warc.gz or no indexes/*.cdx, no WACZ")
            self._index.execute("CREATE TABLE records (key, url, rank, at, warc, start, size)")
            for name in names:
                rows = _records(path, file, name)
                self._index.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            self._index.execute("CREATE INDEX by_key ON records (key)")

    def close(self) -> None:
        """Close the archive, and delete its index."""
        self._file.close()
        self._index.close()

    def answer(self, url: str, near: float | None, most: int) -> Answer:
        """Return the answer to a URL that was recorded nearest to a time, or last.

        One under the same SURT key (``http`` or ``https``, with ``www`` or without, in another
        order of the query) will do if it leads nowhere else.

        Raises:
            NotArchived: If there is none, or its record is damaged.
            TooLarge: If it has more than ``most`` bytes.
        """
        for at, record in self._found(url, near, most):
            if record.rec_type == "revisit":
                return self._revisited(url, at, record, most)
            if record.rec_type in {"response", "resource"}:
                return _answer(record, _content(record, most), at, record.http_headers)
        raise NotArchived("the archive has no answer")

    def _revisited(self, url: str, at: float, record: ArcWarcRecord, most: int) -> Answer:
        """Return the answer of an earlier record, under the headers of the later one."""
        near = at
        said, digest = record.rec_headers.get_header, "WARC-Payload-Digest"
        with suppress(ValueError, TypeError):
            near = _seconds(said("WARC-Refers-To-Date"))
        for _, first in self._found(said("WARC-Refers-To-Target-URI") or url, near, most):
            same = first.rec_headers.get_header(digest) in {None, said(digest)}
            if first.rec_type in {"response", "resource"} and same:
                headers = record.http_headers or first.http_headers
                return _answer(first, _content(first, most), at, headers)
        raise NotArchived("the archive lacks the record that an identical one refers to")

    def _found(
        self, url: str, near: float | None, most: int
    ) -> Iterator[tuple[float, ArcWarcRecord]]:
        """Yield the records of a URL and their times, the best first."""
        wanted = canonical(url)
        if wanted is None:
            return
        with self._lock:
            rows = self._index.execute(
                "SELECT at, warc, start, size FROM records WHERE key = ? AND (url = ? OR rank < 2) "
                "ORDER BY url != ?, rank, abs(at - ?), rowid",
                (sort_key(wanted), wanted, wanted, 1e12 if near is None else near),
            ).fetchall()
        for at, warc, start, size in rows:
            record = self._record(warc, start, size, most)
            found = canonical(record.rec_headers.get_header("WARC-Target-URI") or "")
            if found is None or sort_key(found) != sort_key(wanted):
                raise NotArchived(f"the index leads to a record of {found!s:.200}")
            yield at, record

    def _record(self, warc: str, start: int, size: int, most: int) -> ArcWarcRecord:
        first, length = self._warcs.get(warc, (0, 0))
        if not 0 <= start < start + size <= length:
            raise NotArchived(f"the archive lacks the record in {warc:.80} at {start}")
        if size > most + _LONGEST_HEAD:
            raise TooLarge(f"its record has {size} bytes")
        packed = os.pread(self._file.fileno(), size, first + start)
        try:
            return next(ArchiveIterator(io.BytesIO(packed), check_digests="raise"))
        except Exception as error:  # noqa: BLE001 - warcio meets damage with any of them
            raise NotArchived(f"its record is damaged ({error!r:.200})") from None


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as file:
            yield file
    except FileNotFoundError:
        raise FormatError(path, "no such archive") from None
    except _DAMAGED as error:
        raise FormatError(path, f"not a readable WACZ ({error})") from None


def _warcs(path: Path, file: zipfile.ZipFile) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the name of each WARC, and where its bytes begin in the archive, and their number."""
    with path.open("rb") as raw:
        for info in file.infolist():
            if not info.filename.startswith("archive/") or info.is_dir():
                continue
            if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
                problem = f"{info.filename} is packed or encrypted, expected it stored as it is"
                raise FormatError(path, problem)
            raw.seek(info.header_offset)
            names = struct.unpack("<26xHH", raw.read(30))
            start = info.header_offset + 30 + sum(names)
            yield PurePosixPath(info.filename).name, (start, info.file_size)


def _lines(file: zipfile.ZipFile, name: str) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a member that are not empty, unpacked one at a time."""
    with file.open(name) as packed:
        lines = gzip.GzipFile(fileobj=packed) if name.endswith(".gz") else packed
        for number in count(1):
            line = lines.readline(_LONGEST_LINE)
            if not line:
                return
            if len(line) == _LONGEST_LINE:
                raise ValueError(f"{name}, line {number}: longer than {_LONGEST_LINE} bytes")
            if line.strip():
                yield number, line


def _records(path: Path, file: zipfile.ZipFile, name: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of an index: only answers to GET and HEAD, without 1xx and 304."""
    for number, line in _lines(file, name):
        try:
            _, stamp, text = line.decode().split(" ", 2)
            row = json.loads(text)
            url = whole_characters(row["url"])
            url = canonical(url) if str(url)[:4].lower() == "http" else None
            code = str(row.get("status", ""))
            status = int(code) if code.isdecimal() and len(code) == 3 else 0
            other = row.get("method", "GET") not in {"GET", "HEAD"}
            if url is None or other or 0 < status < 200 or status == 304:
                continue
            rank = 0 if 200 <= status < 300 else 1 if not status else 2
            warc = PurePosixPath(row["filename"]).name
            place = (int(row["offset"]), int(row["length"]))
            yield (sort_key(url), url, rank, _seconds(f"{stamp[:8]}T{stamp[8:14]}"), warc, *place)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            if line.startswith(b"!"):
                continue  # the head of an index
            problem = f"{name}, line {number}: no line of an index ({error!r:.100})"
            raise FormatError(path, problem) from None


def _seconds(date: str) -> float:
    return datetime.fromisoformat(date.removesuffix("Z")).replace(tzinfo=UTC).timestamp()


def _content(record: ArcWarcRecord, most: int) -> bytes:
    """Return the content of a record, whole and of the digest that it announces."""
    body = bytearray()
    try:
        stream = record.content_stream()
        while chunk := stream.read(_BLOCK):
            body += chunk
            if len(body) > most:
                break
        while len(body) <= most and record.raw_stream.read(_BLOCK):
            pass  # what follows a packed body belongs to the digest
        left = getattr(record.raw_stream, "limit", 0)
    except Exception as error:  # noqa: BLE001 - warcio meets damage with any of them
        raise NotArchived(f"its record is damaged ({error!r:.200})") from None
    if len(body) > most:
        raise TooLarge(f"its body has more than {most} bytes")
    if left:
        raise NotArchived(f"its record is cut off, {left} bytes are missing")
    return bytes(body)


def _answer(record: ArcWarcRecord, body: bytes, at: float, said: Any) -> Answer:
    """Return an answer, its headers without those of the connection and of what is undone."""
    if said is None and record.rec_type == "resource":
        return Answer(200, [("Content-Type", record.content_type or "")], body, at)
    code, coding = "" if said is None else said.get_statuscode(), ""
    if record.http_headers is not None:
        coding = (record.http_headers.get_header("content-encoding") or "").lower()
    undone = coding in BufferedReader.get_supported_decompressors()
    drop = _OF_CONNECTION | ({"content-encoding"} if undone else set())
    if not code.isdecimal() or not 200 <= int(code) < 600 or int(code) == 407:
        raise NotArchived(f"its status is {code!r:.20}")
    headers = [(name, value) for name, value in said.headers if name.lower() not in drop]
    return Answer(int(code), headers, body, at)
