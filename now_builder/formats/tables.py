"""Parquet tables of rows: written whole, read strictly, older versions included."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from now_builder.errors import FormatError
from now_builder.formats.io import replacing

_TYPES: dict[Any, pa.DataType] = {
    int: pa.int32(),
    int | None: pa.int32(),
    float: pa.float64(),
    list[str]: pa.list_(pa.string()),
}


def schema_of(kind: type, version: str | None = None) -> pa.Schema:
    """Return the schema of a dataclass's rows; other types than numbers and lists are strings.

    Args:
        kind: The dataclass.
        version: Name and version of the format, stored as metadata.
    """
    columns = [(f.name, _TYPES.get(f.type, pa.string())) for f in fields(kind)]
    return pa.schema(columns, metadata={"format": version} if version else None)


def write_rows(path: Path, rows: Sequence[Any], schema: pa.Schema) -> None:
    """Write dataclass instances as a parquet file, atomically."""
    with replacing(path) as temporary:
        table = pa.Table.from_pylist([asdict(row) for row in rows], schema=schema)
        pq.write_table(table, temporary)


def upgrade(
    path: Path,
    table: pa.Table,
    schema: pa.Schema,
    later: Mapping[str, Any],
    required: Collection[str],
) -> pa.Table:
    """Bring a table, maybe of an older version, to the current schema.

    Args:
        path: The file, for messages.
        table: Rows as read.
        schema: The current schema.
        later: Values of the columns that older versions lack.
        required: Columns in which no cell may be empty.

    Raises:
        FormatError: If a column is missing or of another type, or a required cell is empty.
    """
    there = set(table.column_names)
    missing = [name for name in schema.names if name not in there and name not in later]
    if missing:
        raise FormatError(path, f"missing columns {missing}")
    for field in schema:
        if field.name not in there:
            cells = pa.array([later[field.name]] * len(table), field.type)
            table = table.append_column(field.name, cells)
    try:
        table = table.select(schema.names).cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise FormatError(path, f"columns of another type ({error})") from None
    for name in schema.names:
        if name in required and table[name].null_count:
            raise FormatError(path, f"column {name} has {table[name].null_count} empty cells")
    return table
