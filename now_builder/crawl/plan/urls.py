"""Read lists of URLs: text, CSV, TSV, Parquet, and ranks with domains."""

import gzip
import io
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from now_builder.errors import FormatError
from now_builder.formats.io import check_not_binary, describe_content
from now_builder.formats.tables import normalize_names, split_records
from now_builder.urls import strip_invisible

_NOTE = re.compile(r"\t|\s#")
"""End of the URL on a line of text; a fragment follows its URL without a space."""

_EXPECTED = "one URL per line, or CSV, TSV or Parquet with a column url"

_LABEL = r"[^\s/?#\\:@,;|\"'<>(){}\[\].]"
_HOST = rf"({_LABEL}+\.)+[^\W\d_]{_LABEL}*\.?|\d+(\.\d+){{3}}|localhost|\[[\da-f.]*:[\da-f:.]*\]"
_LOOKS_LIKE_URL = re.compile(rf"https?:|(//|\\\\)?({_HOST})(:\d+)?([/?#\\]|$)", re.IGNORECASE)
"""http or https, or a host: a name with a dot or an address."""

_MANGLED = re.compile(r"^(https?):/+", re.IGNORECASE)
"""Beginning of a URL that was parsed as a path, which removes a slash."""

_RANKED = re.compile(rf"\d+[,\t](?:{_HOST})\s*", re.IGNORECASE)
_RANK = re.compile(r"\d+[,\t]([^\s,/:]+)\s*")
"""First line of a list of ranks and domains, and any line: such lists contain ``com`` too."""

ListFile = io.BufferedReader | gzip.GzipFile

_FIRST, _NEARLY_ALL = 10, 0.9
_LONGEST_LINE = 1 << 24
_NOT_UTF_8 = re.compile("[\udc80-\udcff]")
_DAMAGED = (ValueError, OverflowError, OSError, EOFError, zlib.error, pa.ArrowException)


def read_urls(path: Path, column: str | None = None) -> list[str]:
    """Read a list of URLs from text, CSV, TSV, Parquet, or ranks with domains.

    In text, each line is a URL, which ends at a tab or at a ``#`` after white space; a line that
    starts with ``#`` is a comment, and a first line ``url`` a header. CSV, TSV and Parquet have a
    column ``url``, in any case of letters, or ``column``; ranks with domains have no header. All
    but Parquet may be compressed by gzip. An invalid URL is listed too, as it gets a row.

    Raises:
        FormatError: If the file is missing, truncated or unreadable, lacks the column or lists
            nothing; or if none of the first ten lines, or few of all lines, look like a URL.
    """
    try:
        unit, listed = _read_list(path, column)
    except FileNotFoundError:
        url = _MANGLED.sub(r"\1://", str(path))
        fix = f". Write one: echo '{url}' > urls.txt" if url != str(path) else ""
        raise FormatError(url, f"file not found, expected a file with URLs{fix}") from None
    except _DAMAGED as error:
        raise FormatError(path, f"not a readable list of URLs ({error})") from None
    if not listed:
        raise FormatError(path, "contains no URL, expected at least one")
    _check_urls(path, unit, listed)
    return [url for _, url in listed]


def _read_list(path: Path, column: str | None) -> tuple[str, list[tuple[int, str]]]:
    """Return the unit of positions in a list (row or line), and each URL with its position."""
    with path.open("rb") as raw:
        packed = raw.peek(2).startswith(b"\x1f\x8b")
        file: ListFile = gzip.GzipFile(fileobj=raw) if packed else raw
        head = file.peek(1)
        if path.suffix.lower() == ".parquet" or (head.startswith(b"PAR1") and not packed):
            return "row", _from_parquet(path, column)
        check_not_binary(path, head, _EXPECTED)
        line, content = describe_content(head)
        if content:
            raise FormatError(path, f"line {line}: expected {_EXPECTED}, found {content}")
        name = path.with_suffix("") if path.suffix.lower() == ".gz" else path
        suffix = name.suffix.lower()
        is_table = suffix in {".csv", ".tsv"} or column is not None
        lines = _lines(path, file, newline="" if is_table else None)
        first = next(lines, "")
        lines = chain([first], lines)
        if column is None and _RANKED.fullmatch(first):
            urls = _from_ranks(path, lines)
        elif is_table:
            urls = _from_csv(path, lines, "\t" if suffix == ".tsv" else None, column)
        else:
            urls = _from_text(path, lines)
        return "line", list(urls)


def _lines(path: Path, file: ListFile, newline: str | None) -> Iterator[str]:
    """Yield the lines of a file of any size; each must be UTF-8."""
    with io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline) as text:
        for number in count(1):
            line = text.readline(_LONGEST_LINE)
            if not line:
                return
            if len(line) == _LONGEST_LINE:
                raise FormatError(path, f"line {number}: longer than {_LONGEST_LINE} characters")
            if not line.isascii() and (match := _NOT_UTF_8.search(line)):
                byte = f"byte 0x{ord(match[0]) - 0xDC00:02x} is not UTF-8 text"
                raise FormatError(path, f"line {number}: {byte}, expected {_EXPECTED}")
            yield line


def _from_text(path: Path, lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(lines, 1):
        names = re.split(r"[,;]", line.replace('"', "")) if number == 1 else ()
        if normalize_names(names) == ["url"]:
            continue  # the header of a CSV with one column
        if "url" in normalize_names(names):
            raise FormatError(path, "line 1: found the header of a CSV. Rename the file to .csv")
        url = strip_invisible(_NOTE.split(strip_invisible(line), maxsplit=1)[0])
        if url and url[0] != "#":
            yield number, url


def _from_ranks(path: Path, lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(lines, 1):
        if match := _RANK.fullmatch(line):
            yield number, match[1]
        elif line.strip():
            problem = f"line {number}: found {line.strip()!r:.80}, expected a rank and a domain"
            raise FormatError(path, problem)


def _from_csv(
    path: Path, lines: Iterable[str], delimiter: str | None, column: str | None
) -> Iterator[tuple[int, str]]:
    records = split_records(path, lines, delimiter, column or "url")
    index = _index_of_url(path, next(records)[1], column)
    for line, cells in records:
        if url := strip_invisible("".join(cells[index : index + 1])):
            yield line, url


def _from_parquet(path: Path, column: str | None) -> list[tuple[int, str]]:
    with path.open("rb") as file, pq.ParquetFile(file, pre_buffer=False) as table:
        names = table.schema_arrow.names
        name = names[_index_of_url(path, names, column)]
        values = table.read([name], use_threads=False)[name].to_pylist()
    texts = [value.decode() if isinstance(value, bytes) else str(value or "") for value in values]
    return [(row, url) for row, text in enumerate(texts, 1) if (url := strip_invisible(text))]


def _index_of_url(path: Path, names: Sequence[str], column: str | None) -> int:
    if column in names:
        return names.index(column)
    columns, name = normalize_names(names), strip_invisible(column or "url").lower()
    if columns.count(name) == 1:
        return columns.index(name)
    fix = ""
    if any(_LOOKS_LIKE_URL.match(text) for text in columns):
        fix = ". Name the columns in the first line"
    elif column is None and names:
        fix = ". Name another column with --url-column"
    problem = f"found columns {list(names)!s:.200}, expected one {name} among them{fix}"
    raise FormatError(path, problem)


def _check_urls(path: Path, unit: str, listed: Sequence[tuple[int, str]]) -> None:
    """Raise a FormatError if a file is not a list of URLs; a few invalid URLs are accepted."""
    invalid = [at for at, (_, url) in enumerate(listed) if not _LOOKS_LIKE_URL.match(url)]
    starts_valid = len(listed) < _FIRST or invalid[:_FIRST] != list(range(_FIRST))
    if starts_valid and len(invalid) < _NEARLY_ALL * len(listed):
        return
    number, url = listed[invalid[0]]
    problem = f"{unit} {number}: found {url!r:.80}, expected {_EXPECTED}"
    raise FormatError(path, f"{problem}; {len(invalid)} of {len(listed)} {unit}s are not URLs")
