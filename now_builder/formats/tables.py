"""Tables of rows: Parquet written whole and read strictly, and CSV that users bring.

pyarrow is imported by the functions that need it: 45 MB that a training or a GPU can do without. It
is given open files, never a path: it takes ``crawl:1`` for an address, and ``~`` for a home folder.
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

_BUFFER, _BLOCK, _GROUP = 2**16, 1024, 2**13
"""Bytes read at once; rows that are dictionaries at once, read and written."""


class UnreadableError(FormatError):
    """A file that is no Parquet at all, or is damaged."""


def schema_of(kind: type, version: str | None = None, names: Collection[str] | None = None) -> Any:
    """Return the pyarrow schema of a dataclass's rows, with the format's name and version.

    All columns but numbers and lists are strings. ``names`` selects some.
    """
    import pyarrow as pa

    types: dict[Any, Any] = {
        int: pa.int32(),
        int | None: pa.int32(),
        float: pa.float64(),
        float | None: pa.float64(),
        list[str]: pa.list_(pa.string()),
    }
    wanted = [f for f in fields(kind) if names is None or f.name in names]
    columns = [(f.name, types.get(f.type, pa.string())) for f in wanted]
    return pa.schema(columns, metadata={"format": version} if version else None)


def write_rows(path: Path, rows: Sequence[Any], schema: Any) -> None:
    """Write dataclass instances as a parquet file, atomically."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with (
        atomic_write(path) as temporary,
        temporary.open("wb") as file,
        pq.ParquetWriter(file, schema) as writer,
    ):
        for at in range(0, len(rows) or 1, _GROUP):
            block = [asdict(row) for row in rows[at : at + _GROUP]]
            writer.write_table(pa.Table.from_pylist(block, schema=schema))


def write_csv(path: Path, header: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Write a CSV with a header, atomically."""
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def stream_rows(
    path: Path, schema: Any, required: Collection[str], optional: Collection[str] = ()
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table, whatever its size, holding a block of them at a time.

    The metadata of the schema has the format, if the table has one. ``optional`` columns may be
    absent; ``required`` ones have no empty cell.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    expected = (schema.metadata or {}).get(b"format")
    with (
        _readable(path) as opened,
        pq.ParquetFile(opened, buffer_size=_BUFFER, pre_buffer=False) as file,
    ):
        stored = file.schema_arrow
        found = (stored.metadata or {}).get(b"format")
        if expected is not None and found != expected:
            raise FormatError(path, f"format {found!r:.60}, expected {expected.decode()!r}")
        missing = [name for name in schema.names if name not in {*stored.names, *optional}]
        if missing:
            raise FormatError(path, f"missing columns {missing}")
        kinds = pa.schema([field for field in schema if field.name in stored.names])
        for batch in file.iter_batches(_BLOCK, columns=kinds.names, use_threads=False):
            try:
                table = pa.Table.from_batches([batch]).select(kinds.names).cast(kinds)
            except (pa.ArrowException, ValueError, KeyError) as error:  # a name twice: a KeyError
                raise FormatError(path, f"columns of another type ({error!s:.200})") from None
            for name in set(required).intersection(kinds.names):
                if empty := table[name].null_count:
                    raise FormatError(path, f"column {name} has {empty} empty cells")
            yield from table.to_pylist()


def read_frame(path: Path) -> Any:
    """Read a table that a user brings, Parquet or CSV by its first bytes, as a pandas frame.

    Cells of a CSV are texts, empty ones too; columns of Parquet have their own types, an index
    that pandas stored is a column. A null text is the empty one, and so is each cell of a column
    without a value; a null number or truth is ``None``, or NaN among fractions. Names of columns
    are as :func:`normalize_names` writes them.

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
    frame.columns = normalize_names(frame.columns)
    for name in _NAMED.intersection(frame.columns):
        frame[name] = [
            strip_invisible(cell) if isinstance(cell, str) else cell for cell in frame[name]
        ]
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
        if name := strip_invisible(line.partition("#")[0]).removeprefix("*."):
            host = site_of(canonical(name) or "").rstrip(".")
            if not host:
                problem = f"line {number}: found {name!r:.80}, expected a host or a URL"
                raise FormatError(path, problem)
            hosts[host] = None
    return list(hosts)


def normalize_names(names: Collection[object]) -> list[str]:
    """Return names of columns without spaces around them and in lower case, as they are looked up.

    One that would thereby take the name of another column stays as it is.
    """
    texts = [str(name) for name in names]
    plain = [strip_invisible(text).lower() for text in texts]
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
    double quotes may hold commas, line ends and, doubled, quotes; between tabs a record is a line,
    and a quote that is not closed in its cell a letter. Blank lines are no records; a record may
    have fewer cells than the header. ``column`` has URLs, keys or hosts, as columns of these names
    have.

    Raises:
        FormatError: If it is empty; naming the line, if a record has more cells than the header, or
            a quote that is closed nowhere, or only in another record.
    """
    lines = iter(lines)
    first, start = next(lines, ""), 1
    if said := _SEPARATOR.fullmatch(first):  # Excel's
        between, first, start = said[1], next(lines, ""), 2
    wanted = {*_NAMED, strip_invisible(column).lower()}
    between = between or _mark_between(first, wanted)
    width = wide = 0
    places: list[int] = []
    for line, cells in _records(path, chain([first], lines), between, start):
        if not width:
            width, wide = len(cells), min(2, len(cells))
            places = [i for i, name in enumerate(normalize_names(cells)) if name.lower() in wanted]
        if len(cells) > width:
            found = f"{len(cells)} cells, the header has {width}"
            raise FormatError(
                path, f"line {line}: {found}; a cell with {between!r} in it needs double quotes"
            )
        inner = (text.split(between) for cell in cells for text in cell.splitlines()[1:])
        if any(
            len(parts) >= wide and _NAME.match(strip_invisible(parts[place]).strip('" '))
            for parts in inner
            for place in places
            if place < len(parts)
        ):
            raise FormatError(path, f"line {line}: {_MEND['unexpected end']}")
        yield line, cells
    if not width:
        raise FormatError(path, "empty: neither CSV nor Parquet")


def _records(
    path: Path, lines: Iterator[str], between: str, start: int
) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of each record, with the number of its first line."""
    if between == "\t":  # by its standard a record is a line, and quotes are letters
        for number, line in enumerate(lines, start):
            if text := line.rstrip("\r\n"):
                yield number, [_unquoted(cell) for cell in text.split("\t")]
        return
    csv.field_size_limit(_LONGEST_CELL)
    reader = csv.reader(lines, delimiter=between, strict=True, skipinitialspace=True)
    number = start
    try:
        for cells in reader:
            if cells:
                yield number, cells
            number = start + reader.line_num
    except csv.Error as error:
        mend = next((text for words, text in _MEND.items() if words in str(error)), str(error))
        raise FormatError(path, f"line {number}: {mend}") from None


def _unquoted(cell: str) -> str:
    """Return a cell without the quotes that spreadsheets put around it."""
    whole = re.fullmatch(r'"((?:[^"]|"")*)"', cell)
    return whole[1].replace('""', '"') if whole else cell


_SEPARATOR = re.compile(r'"?sep=([,;|\t])"?\s*', re.IGNORECASE)
_LONGEST_CELL = 1 << 24
"""Characters of a cell."""
_MEND = {
    "unexpected end": "a double quote opens a cell here and is closed nowhere, or in other records",
    "expected after": "text behind a closing double quote; close the cell, or double quotes in it",
    "field limit": f"a cell of more than {_LONGEST_CELL} characters; leave its column out",
}
"""Messages by words of Python's."""
_NAMED = frozenset({"url", "key", "site", "host"})
"""Columns that name a page or a site."""
_NAME = re.compile(r"https?://|\d{5}_\d{4}$|[\w-]+(?:\.[\w-]+)*\.[^\W\d_]{2,}$", re.IGNORECASE)
"""The beginning of a URL, a key, a host: in a later line of a cell, of another record."""


def _mark_between(header: str, wanted: AbstractSet[str]) -> str:
    """Return what parts the cells of a header: a cell in quotes may hold other marks."""
    marks = [mark for mark in ",;\t" if mark in header]
    for mark in marks:
        names = next(csv.reader([header], delimiter=mark, skipinitialspace=True), [])
        if not wanted.isdisjoint(name.lower() for name in normalize_names(names)):
            return mark
    return next(iter(marks), ",")


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
