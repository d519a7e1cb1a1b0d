"""Tables: our Parquet files, and CSV or Parquet files of users.

Only the functions that need pyarrow import it, as it takes 45 MB. They pass it open files, since it
would read the path ``crawl:1`` as an address and ``~`` as the home folder.
"""

import csv
import errno
import io
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import asdict, fields
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from now_builder.errors import FormatError
from now_builder.formats.io import atomic_write, decode_text
from now_builder.urls import canonical, site_of, strip_invisible

_BUFFER, _BATCH, _GROUP = 2**16, 1024, 2**13
"""Buffer size in bytes; number of rows per batch that is read, and per group that is written."""


class UnreadableError(FormatError):
    """A file that is not Parquet or is damaged."""


def schema_of(row: type, version: str | None = None, names: Collection[str] | None = None) -> Any:
    """Return the pyarrow schema of a dataclass, with the format version as metadata.

    Columns are strings unless they are numbers or lists. ``names`` selects some.
    """
    import pyarrow as pa

    types: dict[Any, Any] = {
        int: pa.int32(),
        int | None: pa.int32(),
        float: pa.float64(),
        float | None: pa.float64(),
        list[str]: pa.list_(pa.string()),
    }
    columns = [
        (item.name, types.get(item.type, pa.string()))
        for item in fields(row)
        if names is None or item.name in names
    ]
    return pa.schema(columns, metadata={"format": version} if version else None)


def write_rows(path: Path, rows: Sequence[Any], schema: Any) -> None:
    """Write dataclass instances atomically as a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with (
        atomic_write(path) as temporary,
        temporary.open("wb") as file,
        pq.ParquetWriter(file, schema) as writer,
    ):
        for start in range(0, len(rows) or 1, _GROUP):
            group = [asdict(row) for row in rows[start : start + _GROUP]]
            writer.write_table(pa.Table.from_pylist(group, schema=schema))


def write_csv(path: Path, header: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Write a CSV with a header atomically."""
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def stream_rows(
    path: Path, schema: Any, required: Collection[str], optional: Collection[str] = ()
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table as dictionaries, with one batch in memory.

    ``schema`` has the columns, and the format version as metadata, if the table has one. The
    ``required`` columns must not have empty cells; the ``optional`` ones may be absent.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    expected = (schema.metadata or {}).get(b"format")
    with (
        _readable(path) as opened,
        pq.ParquetFile(opened, buffer_size=_BUFFER, pre_buffer=False) as file,
    ):
        stored = file.schema_arrow
        version = (stored.metadata or {}).get(b"format")
        if expected is not None and version != expected:
            raise FormatError(path, f"format {version!r:.60}, expected {expected.decode()!r}")
        missing = [name for name in schema.names if name not in {*stored.names, *optional}]
        if missing:
            raise FormatError(path, f"missing columns {missing}")
        schema = pa.schema([field for field in schema if field.name in stored.names])
        for batch in file.iter_batches(_BATCH, columns=schema.names, use_threads=False):
            try:
                table = pa.Table.from_batches([batch]).select(schema.names).cast(schema)
            except (pa.ArrowException, ValueError, KeyError) as error:  # KeyError: repeated name
                raise FormatError(path, f"columns of another type ({error!s:.200})") from None
            for name in set(required).intersection(schema.names):
                if empty := table[name].null_count:
                    raise FormatError(path, f"column {name} has {empty} empty cells")
            yield from table.to_pylist()


def read_frame(path: Path) -> Any:
    """Read a user's table, Parquet or CSV by its first bytes, as a pandas frame.

    Cells of a CSV are strings. Columns of Parquet keep their types, and a stored pandas index is a
    column. Null strings are ``""``, as are all cells of a column without values; other nulls are
    ``None``, or NaN in a column of floats. Column names are normalized (:func:`normalize_names`).

    Raises:
        FormatError: If the file is missing or not a table, has two columns of one name, or as
            :func:`split_records` raises it.
    """
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        content = path.read_bytes()
        if content.startswith(b"PAR1"):
            # pre_buffer and use_threads: see _readable.
            with pq.ParquetFile(pa.BufferReader(content), pre_buffer=False) as parquet:
                table = parquet.read(use_threads=False)
            table.validate(full=True)  # strings that are not UTF-8 would fail later
            columns = map(_without_null_strings, table.columns)
            table = pa.table([*columns], names=table.column_names)
            frame = table.to_pandas(integer_object_nulls=True, use_threads=False)
        else:
            header, *rows = [cells for _, cells in read_records(path, content)]
            rows = [row + [""] * (len(header) - len(row)) for row in rows]
            frame = pd.DataFrame(rows, columns=header, dtype=str)
    except FileNotFoundError:
        raise FormatError(path, "no such file; expected CSV or Parquet") from None
    except (ValueError, TypeError, LookupError, pa.ArrowException, OSError) as error:
        problem = " ".join(str(error).split())
        raise FormatError(path, f"neither CSV nor Parquet ({problem:.200})") from None
    frame.columns = normalize_names(frame.columns)
    for name in _NAME_COLUMNS.intersection(frame.columns):
        frame[name] = [
            strip_invisible(cell) if isinstance(cell, str) else cell for cell in frame[name]
        ]
    if not frame.columns.is_unique:
        raise FormatError(path, f"columns {list(frame.columns)}: a name twice")
    return frame


def _without_null_strings(column: Any) -> Any:
    """Replace null strings by empty ones; a column without values becomes empty strings."""
    import pyarrow as pa
    from pyarrow import types

    if column.null_count == len(column):
        return pa.repeat("", len(column))
    dtype = column.type.value_type if types.is_dictionary(column.type) else column.type
    is_text = types.is_string(dtype) or types.is_large_string(dtype) or types.is_string_view(dtype)
    return column.cast(pa.large_string()).fill_null("") if is_text else column


def read_hosts(path: Path) -> list[str]:
    """Read a list of hosts: one host or URL per line with ``#`` comments, or a table.

    A CSV or Parquet table has a column ``site`` or ``url``. A leading ``*.`` is ignored.

    Raises:
        FormatError: If the list cannot be read, lacks a column, or has a text that is not a host.
    """
    if path.suffix.lower() in {".csv", ".parquet"}:
        table = read_frame(path)
        column = next((name for name in ("site", "url") if name in table.columns), None)
        if column is None:
            raise FormatError(path, f"columns {[*table.columns]}, expected site or url")
        lines, start = [str(cell) for cell in table[column]], 2
    else:
        try:
            text = decode_text(path, path.read_bytes(), "one host a line")
        except OSError as error:
            raise FormatError(path, f"not a readable list of hosts ({error})") from None
        lines, start = io.StringIO(text, newline=None).readlines(), 1
    hosts: dict[str, None] = {}
    for number, line in enumerate(lines, start):
        if name := strip_invisible(line.partition("#")[0]).removeprefix("*."):
            host = site_of(canonical(name) or "").rstrip(".")
            if not host:
                problem = f"line {number}: found {name!r:.80}, expected a host or a URL"
                raise FormatError(path, problem)
            hosts[host] = None
    return list(hosts)


def normalize_names(names: Collection[object]) -> list[str]:
    """Return column names in lower case and without surrounding white space.

    A name that would then equal the name of another column is not changed.
    """
    texts = [str(name) for name in names]
    normal = [strip_invisible(text).lower() for text in texts]
    return [text if name in texts else name for text, name in zip(texts, normal, strict=True)]


def read_records(path: Path, content: bytes) -> Iterator[tuple[int, list[str]]]:
    """Decode a CSV and yield its records, see :func:`split_records`."""
    text = decode_text(path, content, "CSV or Parquet")
    yield from split_records(path, io.StringIO(text, newline=""))


def split_records(
    path: Path, lines: Iterable[str], delimiter: str | None = None, column: str = "url"
) -> Iterator[tuple[int, list[str]]]:
    """Yield the records of a CSV, the header first, each with the number of its first line.

    A cell in double quotes may contain delimiters, line ends and doubled quotes. In tab-separated
    files a record is one line, and a quote that is not closed in its cell is a character. Blank
    lines are skipped. A record may have fewer cells than the header. ``column`` has URLs, keys or
    hosts, like the columns of these names.

    The default delimiter is that of a first line ``sep=;``, else the comma, semicolon or tab that
    splits one of these columns from the header.

    Raises:
        FormatError: If the file is empty, a record has more cells than the header, or a quote is
            not closed or is closed in another record.
    """
    lines = iter(lines)
    header, start = next(lines, ""), 1
    if match := _SEPARATOR.fullmatch(header):  # Excel's
        delimiter, header, start = match[1], next(lines, ""), 2
    names = {*_NAME_COLUMNS, strip_invisible(column).lower()}
    delimiter = delimiter or _find_delimiter(header, names)
    width, positions = 0, []
    for line, cells in _records(path, chain([header], lines), delimiter, start):
        if not width:
            width = len(cells)
            header_names = enumerate(normalize_names(cells))
            positions = [position for position, name in header_names if name.lower() in names]
        if len(cells) > width:
            raise FormatError(
                path, f"line {line}: {len(cells)} cells, the header has {width}. Put cells that "
                f"contain {delimiter!r} in double quotes",
            )  # fmt: skip
        # A later line of a cell that looks like a record: two forgotten quotes enclose it.
        rows = [text.split(delimiter) for cell in cells for text in cell.splitlines()[1:]]
        rows = [row for row in rows if len(row) >= min(2, width)]
        names_in_cell = (row[i] for row in rows for i in positions if i < len(row))
        if any(_NAME.match(strip_invisible(name).strip('" ')) for name in names_in_cell):
            raise FormatError(path, f"line {line}: {_CSV_PROBLEMS['unexpected end']}")
        yield line, cells
    if not width:
        raise FormatError(path, "empty: neither CSV nor Parquet")


def _records(
    path: Path, lines: Iterator[str], delimiter: str, start: int
) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of each record, with the number of its first line."""
    if delimiter == "\t":  # the standard has neither quotes nor cells of several lines
        for number, line in enumerate(lines, start):
            if text := line.rstrip("\r\n"):
                yield number, [_unquote(cell) for cell in text.split("\t")]
        return
    csv.field_size_limit(_LONGEST_CELL)
    reader = csv.reader(lines, delimiter=delimiter, strict=True, skipinitialspace=True)
    number = start
    try:
        for cells in reader:
            if cells:
                yield number, cells
            number = start + reader.line_num
    except csv.Error as error:
        problems = (text for words, text in _CSV_PROBLEMS.items() if words in str(error))
        raise FormatError(path, f"line {number}: {next(problems, error)}") from None


def _unquote(cell: str) -> str:
    """Remove the quotes that spreadsheets put around a cell."""
    match = re.fullmatch(r'"((?:[^"]|"")*)"', cell)
    return match[1].replace('""', '"') if match else cell


_SEPARATOR = re.compile(r'"?sep=([,;|\t])"?\s*', re.IGNORECASE)
_LONGEST_CELL = 1 << 24
"""Maximum length of a cell in characters."""
_CSV_PROBLEMS = {
    "unexpected end": "a double quote opens a cell here and is closed nowhere, or in other "
    "records. Close the cell, or double the quote",
    "expected after": "text behind a closing double quote. Close the cell, or double quotes in it",
    "field limit": f"a cell of more than {_LONGEST_CELL} characters. Leave its column out",
}
"""Our messages, by words in those of Python's ``csv``."""
_NAME_COLUMNS = frozenset({"url", "key", "site", "host"})
"""Columns that name a page or a site."""
_NAME = re.compile(r"https?://|\d{5}_\d{4}$|[\w-]+(?:\.[\w-]+)*\.[^\W\d_]{2,}$", re.IGNORECASE)
"""Beginning of a URL, or a key or host."""


def _find_delimiter(header: str, names: AbstractSet[str]) -> str:
    """Return the delimiter that gives the header one of ``names``: others may be in quotes."""
    delimiters = [mark for mark in ",;\t" if mark in header]
    for delimiter in delimiters:
        cells = next(csv.reader([header], delimiter=delimiter, skipinitialspace=True), [])
        if not names.isdisjoint(name.lower() for name in normalize_names(cells)):
            return delimiter
    return next(iter(delimiters), ",")


@contextmanager
def _readable(path: Path) -> Iterator[BinaryIO]:
    """Open a Parquet file; raise an :class:`UnreadableError` if it is damaged or not Parquet.

    Read it without Arrow's threads: if one releases a buffer of a Python file after the interpreter
    has shut down, the process aborts.
    """
    import pyarrow as pa

    try:
        with path.open("rb") as file:
            yield file
    except FileNotFoundError:
        raise FormatError(path, "no such file") from None
    except (pa.ArrowException, ValueError, OSError) as error:  # ValueError: not UTF-8
        if is_of_system(error):
            raise FormatError(path, f"cannot be read ({error!s:.200})") from None
        raise UnreadableError(path, f"not a readable parquet file ({error!s:.200})") from None


def is_of_system(error: Exception | None) -> bool:
    """Return whether the operating system raised an error, so the file itself may be intact."""
    content_errors = {None, errno.EINVAL, errno.ENOENT}  # EINVAL: a wrong offset in the file
    return isinstance(error, OSError) and error.errno not in content_errors
