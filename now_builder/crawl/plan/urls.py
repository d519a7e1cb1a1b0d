"""Read lists of URLs in the forms in which they are found."""

import gzip
import io
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from now_builder.errors import FormatError
from now_builder.formats.io import check_not_binary, describe_content
from now_builder.formats.tables import normalize_names, split_records
from now_builder.urls import strip_invisible

_NOTE = re.compile(r"\t|\s#")
"""End of the URL on a line of a text list; a fragment follows its URL without a space."""

_EXPECTED = "one URL a line, or CSV, TSV or Parquet with a column url"

_LABEL = r"[^\s/?#\\:@,;|\"'<>(){}\[\].]"
_HOST = rf"({_LABEL}+\.)+[^\W\d_]{_LABEL}*\.?|\d+(\.\d+){{3}}|localhost|\[[\da-f.]*:[\da-f:.]*\]"
_LOOKS_LIKE_URL = re.compile(rf"https?:|(//|\\\\)?({_HOST})(:\d+)?([/?#\\]|$)", re.IGNORECASE)
"""A scheme that can be visited, or a host: a name with a dot or an address."""

_MANGLED = re.compile(r"^(https?):/+", re.IGNORECASE)
"""Beginning of a URL that was taken for a path, which has lost a slash."""

_RANKED = re.compile(rf"\d+[,\t](?:{_HOST})\s*", re.IGNORECASE)
_RANK = re.compile(r"\d+[,\t]([^\s,/:]+)\s*")
"""The first line of a list of ranks and domains, and any, as such lists have ``com`` too."""

ListFile = io.BufferedReader | gzip.GzipFile

_FIRST, _NEARLY_ALL = 10, 0.9
_LONGEST_LINE = 1 << 24
_NOT_UTF_8 = re.compile("[\udc80-\udcff]")
_DAMAGED = (ValueError, OverflowError, OSError, EOFError, zlib.error, pa.ArrowException)


def read_urls(path: Path, column: str | None = None) -> list[str]:
    """Read a list of URLs in any of the forms in which such lists are found.

    A line of text is a URL, which a tab or a ``#`` after white space ends; a line that begins with
    ``#`` is a comment, and a first line ``url`` a header. A line that is no URL is listed too, to
    become a row, unless the whole file is something else. CSV, TSV and Parquet have a column
    ``url``, in any case, or that named by ``column``; a list of ranks and domains has no header.
    All but Parquet may be packed by gzip.

    Raises:
        FormatError: If the file is missing, cut off, unreadable, has no such column, lists nothing,
            or none of the first ten lines, or hardly one of all, looks like a URL.
    """
    try:
        unit, listed = _read_list(path, column)
    except FileNotFoundError:
        url = _MANGLED.sub(r"\1://", str(path))
        made = f"; echo '{url}' > urls.txt makes one" if url != str(path) else ""
        raise FormatError(url, f"file not found, expected a file with URLs{made}") from None
    except _DAMAGED as error:
        raise FormatError(path, f"not a readable list of URLs ({error})") from None
    if not listed:
        raise FormatError(path, "found no URL, expected at least one")
    _check_kind(path, unit, listed)
    return [url for _, url in listed]


def _read_list(path: Path, column: str | None) -> tuple[str, list[tuple[int, str]]]:
    """Return what the places in a list are called, and each URL with its place."""
    with _opened(path) as file:
        head = file.peek(1)
        packed = isinstance(file, gzip.GzipFile)
        if path.suffix.lower() == ".parquet" or (head.startswith(b"PAR1") and not packed):
            return "row", _from_parquet(path, column)
        check_not_binary(path, head, _EXPECTED)
        line, found = describe_content(head)
        if found:
            raise FormatError(path, f"line {line}: expected {_EXPECTED}, found {found}")
        ending = path.with_suffix("").suffix if path.suffix.lower() == ".gz" else path.suffix
        kind = ending.lower().removeprefix(".")
        lines = _lines(path, file, newline="" if kind in {"csv", "tsv"} or column else None)
        return "line", list(_from_lines(path, lines, kind, column))


@contextmanager
def _opened(path: Path) -> Iterator[ListFile]:
    """Open a list, and unpack it if its first bytes are those of gzip."""
    with path.open("rb") as file:
        if file.peek(2).startswith(b"\x1f\x8b"):
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield unpacked
        else:
            yield file


def _lines(path: Path, file: ListFile, newline: str | None) -> Iterator[str]:
    """Yield the lines of a text, one at a time whatever its size; each must be UTF-8."""
    with io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline) as text:
        for number in count(1):
            line = text.readline(_LONGEST_LINE)
            if not line:
                return
            if len(line) == _LONGEST_LINE:
                raise FormatError(path, f"line {number}: longer than {_LONGEST_LINE} characters")
            if not line.isascii() and (found := _NOT_UTF_8.search(line)):
                byte = f"byte 0x{ord(found[0]) - 0xDC00:02x} is not UTF-8 text"
                raise FormatError(path, f"line {number}: {byte}, expected {_EXPECTED}")
            yield line


def _from_lines(
    path: Path, lines: Iterator[str], kind: str, column: str | None
) -> Iterator[tuple[int, str]]:
    first = next(lines, "")
    lines = chain([first], lines)
    if column is None and _RANKED.fullmatch(first):
        return _from_ranks(path, lines)
    if kind in {"csv", "tsv"} or column is not None:
        return _from_csv(path, lines, "\t" if kind == "tsv" else None, column)
    return _from_text(path, lines)


def _from_text(path: Path, lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(lines, 1):
        names = re.split(r"[,;]", line.replace('"', "")) if number == 1 else ()
        if normalize_names(names) == ["url"]:
            continue  # the header of a CSV of one column
        if "url" in normalize_names(names):
            raise FormatError(path, "line 1: found the header of a CSV; name the file .csv")
        url = strip_invisible(_NOTE.split(strip_invisible(line), maxsplit=1)[0])
        if url and url[0] != "#":
            yield number, url


def _from_ranks(path: Path, lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(lines, 1):
        found = _RANK.fullmatch(line)
        if found is None and line.strip():
            problem = f"line {number}: found {line.strip()!r:.80}, expected a rank and a domain"
            raise FormatError(path, f"{problem}, as before")
        if found is not None:
            yield number, found[1]


def _from_csv(
    path: Path, lines: Iterable[str], between: str | None, column: str | None
) -> Iterator[tuple[int, str]]:
    records = split_records(path, lines, between, column or "url")
    place = _place_of_url(path, next(records)[1], column)
    for line, cells in records:
        if url := strip_invisible("".join(cells[place : place + 1])):
            yield line, url


def _from_parquet(path: Path, column: str | None) -> list[tuple[int, str]]:
    with path.open("rb") as file, pq.ParquetFile(file, pre_buffer=False) as table:
        names = table.schema_arrow.names
        name = names[_place_of_url(path, names, column)]
        values = table.read([name], use_threads=False)[name].to_pylist()
    texts = [value.decode() if isinstance(value, bytes) else str(value or "") for value in values]
    return [(row, url) for row, text in enumerate(texts, 1) if (url := strip_invisible(text))]


def _place_of_url(path: Path, names: Sequence[str], column: str | None) -> int:
    if column in names:
        return names.index(column)
    plain, wanted = normalize_names(names), strip_invisible(column or "url").lower()
    if plain.count(wanted) == 1:
        return plain.index(wanted)
    mend = ""
    if any(_LOOKS_LIKE_URL.match(name) for name in plain):
        mend = "; the first line is to name the columns"
    elif column is None and names:
        mend = "; --url-column names another"
    problem = f"found columns {list(names)!s:.200}, expected one {wanted} among them{mend}"
    raise FormatError(path, problem)


def _check_kind(path: Path, unit: str, listed: Sequence[tuple[int, str]]) -> None:
    """Refuse a file that is no list of URLs; single lines that are no URLs become rows."""
    strange = [at for at, (_, url) in enumerate(listed) if not _LOOKS_LIKE_URL.match(url)]
    first = len(listed) >= _FIRST and strange[:_FIRST] == list(range(_FIRST))
    if not first and len(strange) < _NEARLY_ALL * len(listed):
        return
    number, url = listed[strange[0]]
    problem = f"{unit} {number}: found {url!r:.80}, expected {_EXPECTED}"
    problem += f"; {len(strange)} of {len(listed)} {unit}s are no URLs"
    raise FormatError(path, problem)
