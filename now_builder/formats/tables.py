"""Tables of rows: Parquet written whole and read strictly, and CSV that users bring.

pyarrow is imported by the functions that need it: 45 MB that a training or a GPU can do without. It
is given open files, never a path: it takes ``crawl:1`` for an address, and ``~`` for a home folder.
"""

import csv
import errno
import io
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from now_builder.errors import FormatError
from now_builder.formats.io import decode_text, replacing
from now_builder.urls import canonical, site_of, trimmed

_BUFFER, _BLOCK, _GROUP = 2**16, 1024, 2**13
"""Bytes read at once; rows that are dictionaries at once, read and written."""


class UnreadableError(FormatError):
    """A file that is no Parquet at all, or is damaged."""


def schema_of(kind: type, version: str | None = None) -> Any:
    """Return the pyarrow schema of a dataclass's rows, with the format's name and version.

    All columns but numbers and lists are strings.
    """
    import pyarrow as pa

    types: dict[Any, Any] = {
        int: pa.int32(),
        int | None: pa.int32(),
        float: pa.float64(),
        float | None: pa.float64(),
        list[str]: pa.list_(pa.string()),
    }
    columns = [(f.name, types.get(f.type, pa.string())) for f in fields(kind)]
    return pa.schema(columns, metadata={"format": version} if version else None)


def write_rows(path: Path, rows: Sequence[Any], schema: Any) -> None:
    """Write dataclass instances as a parquet file, atomically."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with (
        replacing(path) as temporary,
        temporary.open("wb") as file,
        pq.ParquetWriter(file, schema) as writer,
    ):
        for at in range(0, len(rows) or 1, _GROUP):
            block = [asdict(row) for row in rows[at : at + _GROUP]]
            writer.write_table(pa.Table.from_pylist(block, schema=schema))


def write_csv(path: Path, header: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Write a CSV with a header, atomically."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def read_rows(
    path: Path, schema: Any, optional: Collection[str], required: Collection[str]
) -> Iterator[dict[str, Any]]:
    """Yield all rows of a versioned table, read and checked whole before the first of them.

    ``optional`` columns may be absent from file and rows; ``required`` ones have no empty cell.
    """
    import pyarrow.parquet as pq

    with _readable(path) as opened, pq.ParquetFile(opened, pre_buffer=False) as file:
        found = (file.schema_arrow.metadata or {}).get(b"format")
        expected = schema.metadata[b"format"]
        if found != expected:
            raise FormatError(path, f"format {found!r:.60}, expected {expected.decode()!r}")
        there = _columns(path, file, schema, optional)
        table = file.read(columns=there, use_threads=False)  # a shard's rows: threads cost more
        for batch in _checked(path, table, schema, required).to_batches(_BLOCK):
            yield from batch.to_pylist()


def stream_rows(
    path: Path, kind: type, optional: Collection[str], block: int
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table, whatever its size, holding a block of them at a time.

    Fields of the dataclass that are of type ``str`` and ``int`` may not be empty.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema, required = schema_of(kind), {f.name for f in fields(kind) if f.type in {str, int}}
    with (
        _readable(path) as opened,
        pq.ParquetFile(opened, buffer_size=_BUFFER, pre_buffer=False) as file,
    ):
        there = _columns(path, file, schema, optional)
        for batch in file.iter_batches(block, columns=there, use_threads=False):
            yield from _checked(path, pa.Table.from_batches([batch]), schema, required).to_pylist()


def _columns(path: Path, file: Any, schema: Any, optional: Collection[str]) -> list[str]:
    """Return the columns of a schema that a file has."""
    there = [name for name in schema.names if name in file.schema_arrow.names]
    missing = [name for name in schema.names if name not in {*there, *optional}]
    if missing:
        raise FormatError(path, f"missing columns {missing}")
    return there


def _checked(path: Path, table: Any, schema: Any, required: Collection[str]) -> Any:
    """Return a table with the types of a schema."""
    import pyarrow as pa

    kinds = [field for field in schema if field.name in table.column_names]
    try:
        table = table.select([field.name for field in kinds]).cast(pa.schema(kinds))
    except (pa.ArrowException, ValueError, KeyError) as error:  # a name twice is a KeyError
        raise FormatError(path, f"columns of another type ({error!s:.200})") from None
    for name in table.column_names:
        if name in required and table[name].null_count:
            raise FormatError(path, f"column {name} has {table[name].null_count} empty cells")
    return table


def read_frame(path: Path) -> Any:
    """Read a table that a user brings, Parquet or CSV by its first bytes, as a pandas frame.

    Cells of a CSV are texts, empty ones too; columns of Parquet have their own types, an index
    that pandas stored is a column. A null text is the empty one, and so is each cell of a column
    without a value; a null number or truth is ``None``, or NaN among fractions. Names of columns
    are as :func:`plain_names` writes them.

    Raises:
        FormatError: If it is missing, is no table, or two columns have one name; or as
            :func:`read_records` says.
    """
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with path.open("rb") as file:
            content = file.read(4)
            if content == b"PAR1":
                with pq.ParquetFile(file, pre_buffer=False) as parquet:
                    table = parquet.read(use_threads=False)
            else:
                content += file.read()
        if content == b"PAR1":
            table.validate(full=True)  # texts that are not UTF-8 would fail where they are used
            for place, name in enumerate(table.column_names):
                table = table.set_column(place, name, _filled(table[place]))
            frame = table.to_pandas(
                integer_object_nulls=True, ignore_metadata=True, use_threads=False
            )
        else:
            header, *rows = [cells for _, cells in read_records(path, content)]
            rows = [row + [""] * (len(header) - len(row)) for row in rows]
            frame = pd.DataFrame(rows, columns=header, dtype=str)
    except FileNotFoundError:
        raise FormatError(path, "no such file; expected CSV or Parquet") from None
    except (ValueError, TypeError, LookupError, pa.ArrowException, OSError) as error:
        problem = " ".join(str(error).split())
        raise FormatError(path, f"neither CSV nor Parquet ({problem:.200})") from None
    frame.columns = plain_names(frame.columns)
    for name in _NAMED.intersection(frame.columns):
        frame[name] = [trimmed(cell) if isinstance(cell, str) else cell for cell in frame[name]]
    if not frame.columns.is_unique:
        raise FormatError(path, f"columns {list(frame.columns)}: a name twice")
    return frame


def _filled(column: Any) -> Any:
    """Return a column without null texts; one that has no value at all has texts, too."""
    import pyarrow as pa
    import pyarrow.types as kinds

    if column.null_count == len(column):
        return pa.repeat("", len(column))
    kind = column.type.value_type if kinds.is_dictionary(column.type) else column.type
    texts = kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind)
    return column.cast(pa.large_string()).fill_null("") if texts else column


def read_hosts(path: Path) -> list[str]:
    """Read a list of hosts: a host or a URL a line, ``#`` before comments, or a table of them.

    A CSV or Parquet file has them in a column ``site`` or ``url``. ``*.`` before a host is left
    out.

    Raises:
        FormatError: If it cannot be read, lacks a column, or names what is no host.
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
            raise FormatError(path, f"no such list of hosts ({error})") from None
        lines, start = io.StringIO(text, newline=None).readlines(), 1
    hosts: dict[str, None] = {}
    for number, line in enumerate(lines, start):
        if name := trimmed(line.partition("#")[0]).removeprefix("*."):
            host = site_of(canonical(name) or "").rstrip(".")
            if not host:
                problem = f"line {number}: found {name!r:.80}, expected a host or a URL"
                raise FormatError(path, problem)
            hosts[host] = None
    return list(hosts)


def plain_names(names: Collection[object]) -> list[str]:
    """Return names of columns without spaces around them and in lower case, as they are looked up.

    One that would thereby take the name of another column stays as it is.
    """
    texts = [str(name) for name in names]
    plain = [trimmed(text).lower() for text in texts]
    return [text if name in texts else name for text, name in zip(texts, plain, strict=True)]


def read_records(path: Path, content: bytes) -> Iterator[tuple[int, list[str]]]:
    """Yield the records of a CSV's bytes as :func:`split_records` does.

    Raises:
        FormatError: If it is no text; or as :func:`split_records` says.
    """
    text = decode_text(path, content, "CSV or Parquet")
    yield from split_records(path, io.StringIO(text, newline=""))


def split_records(
    path: Path, lines: Iterable[str], between: str | None = None, column: str = "url"
) -> Iterator[tuple[int, list[str]]]:
    """Yield the records of a CSV, the header first, each with the number of its first line.

    The cells are parted by ``between``, else as a first line ``sep=;`` says, else by commas,
    semicolons or tabs: the first that the header has, with a column that is looked for. One in
    double quotes may hold commas, line ends and, doubled, quotes. Between tabs a quote that is not
    closed in its record is a letter, as such tables have no quotes by their standard.
    Blank lines are no records; a record may have fewer cells than the header. ``column`` has URLs,
    keys or hosts, as columns of these names have.

    Raises:
        FormatError: If it is empty; naming the line, if a record has more cells than the header, or
            a quote that is closed nowhere, or only in another record.
    """
    lines = iter(lines)
    first = next(lines, "")
    line = 1
    wanted = {*_NAMED, trimmed(column).lower()}
    if said := _SEPARATOR.fullmatch(first):  # Excel's
        between, first, line = said[1], next(lines, ""), 2
    between = between or _mark_between(first, wanted)
    source = _Lines(chain([first], lines), between, wanted)
    records = source.parsed()
    header: list[str] = []
    while True:
        try:
            cells = next(records, None)
        except (csv.Error, _OverrunError) as error:
            if between != "\t":
                raise FormatError(path, f"line {line}: {_mend_of(error)}") from None
            cells, records = source.unquoted(), source.parsed()
        if cells is None:
            break
        if not header:
            header = source.names = cells
        if len(cells) > len(header):
            found = f"{len(cells)} cells, the header has {len(header)}"
            raise FormatError(
                path, f"line {line}: {found}; a cell with {between!r} in it needs double quotes"
            )
        if cells:
            yield line, cells
        line += len(source.taken)
        source.taken.clear()
    if not header:
        raise FormatError(path, "empty: neither CSV nor Parquet")


def _mend_of(error: Exception) -> str:
    if isinstance(error, _OverrunError):
        return "a quoted cell goes on and takes in other records; close its quote"
    if "unexpected end" in str(error):
        return "a double quote opens a cell here and is closed nowhere"
    if "expected after" in str(error):
        return "text behind a closing double quote; close the cell, or double quotes inside it"
    if "field limit" in str(error):
        return f"a cell of more than {_LONGEST_CELL} characters; leave its column out"
    return str(error)


_SEPARATOR = re.compile(r'"?sep=([,;|\t])"?\s*', re.IGNORECASE)
_LONGEST_CELL, _MOST_LINES = 1 << 24, 1000
"""Characters of a cell; lines of one between tabs, where a quote may stand for inches."""
_NAMED = frozenset({"url", "key", "site", "host"})
_NAME = re.compile(r"https?://|\d{5}_\d{4}$|[\w-]+(?:\.[\w-]+)*\.[^\W\d_]{2,}$", re.IGNORECASE)
"""Columns that name a page or a site; the beginning of a URL, a key, a host."""


def _mark_between(header: str, wanted: AbstractSet[str]) -> str:
    """Return what parts the cells of a header: a cell in quotes may hold other marks."""
    marks = [mark for mark in ",;\t" if mark in header]
    for mark in marks:
        names = next(csv.reader([header], delimiter=mark, skipinitialspace=True), [])
        if not wanted.isdisjoint(name.lower() for name in plain_names(names)):
            return mark
    return next(iter(marks), ",")


class _OverrunError(Exception):
    """A quoted cell takes in other records."""


@dataclass(slots=True)
class _Lines:
    """The lines of a CSV, of which a quoted cell takes none that names another page or site.

    Attributes:
        wanted: Names of columns that name a page or a site.
        names: The header, once it is read.
        taken: The lines of the present record.
    """

    lines: Iterator[str]
    between: str
    wanted: AbstractSet[str]
    names: list[str] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)
    waiting: deque[str] = field(default_factory=deque)

    def parsed(self) -> Iterator[list[str]]:
        """Parse the lines that are left."""
        csv.field_size_limit(_LONGEST_CELL)
        return csv.reader(self._read(), delimiter=self.between, strict=True, skipinitialspace=True)

    def unquoted(self) -> list[str]:
        """Return the cells of the record's first line, its quotes as letters; give back others."""
        self.waiting.extendleft(reversed(self.taken[1:]))
        del self.taken[1:]
        return self.taken[0].rstrip("\r\n").split(self.between)

    def _read(self) -> Iterator[str]:
        named = False
        while (
            line := self.waiting.popleft() if self.waiting else next(self.lines, None)
        ) is not None:
            self.taken.append(line)
            if len(self.taken) > 1 and self.names:
                named = self._names_page(self.taken[0]) if len(self.taken) == 2 else named
                here = self._names_page(line)
                if (named and here) or (self.between == "\t" and len(self.taken) > _MOST_LINES):
                    raise _OverrunError
                named = named or here
            yield line

    def _names_page(self, line: str) -> bool:
        """Whether a line, by itself, would be a record that names a page or a site."""
        names, cells = plain_names(self.names), line.split(self.between)
        return len(cells) >= min(2, len(names)) and any(
            name.lower() in self.wanted and _NAME.match(trimmed(cell).strip('" ')) is not None
            for name, cell in zip(names, cells, strict=False)
        )


@contextmanager
def _readable(path: Path) -> Iterator[BinaryIO]:
    """Open a table; what is no Parquet or damaged is an :class:`UnreadableError`.

    Arrow's own threads may not read it: one that gives a buffer of a Python file back when the
    interpreter has ended aborts the process, after all work is done.
    """
    import pyarrow as pa

    try:
        with path.open("rb") as file:
            yield file
    except FileNotFoundError:
        raise FormatError(path, "no such file") from None
    except (pa.ArrowException, ValueError, OSError) as error:  # a text that is not UTF-8
        if is_of_system(error):
            raise FormatError(path, f"cannot be read ({error!s:.200})") from None
        raise UnreadableError(path, f"not a readable parquet file ({error!s:.200})") from None


def is_of_system(error: Exception | None) -> bool:
    """Return whether the operating system raised an error, so the file itself may be intact."""
    of_content = {None, errno.EINVAL, errno.ENOENT}  # EINVAL: of a place that a damaged file names
    return isinstance(error, OSError) and error.errno not in of_content
