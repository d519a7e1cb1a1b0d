"""Changes of structured files that keep their frame whole, so that what is inside is reached."""

import gzip
import io
import json
import random
import tarfile
import zipfile
import zlib
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq

Change = Callable[[bytes], bytes]

_VALUES = [
    None, True, False, 0, -1, 2**31, 2**64, -(2**63), 10**400, 1.5, 1e308, "", "x", "\n", "\x00",
    "\ud800", "\u202e", "9" * 5000, [], {}, [[]], {"": None}, "a" * 600,
]  # fmt: skip
"""What a reader of JSON may not have thought of."""


def change_json(chance: random.Random, content: bytes) -> bytes:
    """Replace, remove, double or rename one value of a JSON text; what is no JSON stays."""
    try:
        tree = json.loads(content)
    except (ValueError, RecursionError):
        return content
    holders = [holder for holder in _holders(tree) if holder]
    if not holders or chance.random() < 0.03:
        return json.dumps(chance.choice(_VALUES)).encode()
    holder = chance.choice(holders)
    key = chance.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    how = chance.randrange(5)
    if how == 0:
        del holder[key]
    elif how == 1 and isinstance(holder, dict):
        holder[str(chance.choice(_VALUES))] = holder[key]
    elif how == 1:
        holder.append(holder[key])
    elif how == 2:
        holder[key] = [holder[key]]
    else:
        holder[key] = chance.choice(_VALUES)
    return json.dumps(tree, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")


def _holders(tree: object) -> list:
    if not isinstance(tree, dict | list):
        return []
    children = tree.values() if isinstance(tree, dict) else tree
    return [tree, *(holder for child in children for holder in _holders(child))]


def change_zip(chance: random.Random, content: bytes, inside: Callable[[str], Change]) -> bytes:
    """Change a member of a zip and write the zip again, with sums and sizes that are right."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    except Exception:  # noqa: BLE001 - an input that is no longer a zip
        return content
    if not members:
        return content
    at = chance.randrange(len(members))
    name, old = members[at]
    members[at] = (name, inside(name)(old))
    file = io.BytesIO()
    packing = zipfile.ZIP_DEFLATED if chance.random() < 0.2 else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w", packing) as archive:
        for member, new in members:
            archive.writestr(zipfile.ZipInfo(member), new, packing)
    return file.getvalue()


def change_tar(chance: random.Random, content: bytes, inside: Callable[[str], Change]) -> bytes:
    """Change a member of a tar and write the tar again, with sums that are right."""
    file, new = io.BytesIO(content), io.BytesIO()
    try:
        with tarfile.open(fileobj=file) as tar, tarfile.open(fileobj=new, mode="w") as out:
            members = tar.getmembers()
            at = chance.randrange(len(members))
            for place, member in enumerate(members):
                reader = tar.extractfile(member)
                text = reader.read() if reader else b""
                if place == at:
                    text = inside(member.name)(text)
                    if chance.random() < 0.1:
                        member.type = chance.choice([tarfile.DIRTYPE, tarfile.SYMTYPE, b"S", b"x"])
                member.size = len(text)
                out.addfile(member, io.BytesIO(text))
    except Exception:  # noqa: BLE001 - an input that is no longer a tar
        return content
    return new.getvalue()


def change_gzip(chance: random.Random, content: bytes, inside: Change) -> bytes:
    """Change one of the members that a gzip file is made of, as a WARC's records are."""
    members = []
    try:
        while content:
            stream = zlib.decompressobj(wbits=31)
            members.append(stream.decompress(content))
            content = stream.unused_data
    except zlib.error:
        members.append(content)
    if members:
        at = chance.randrange(len(members))
        members[at] = inside(members[at])
    return b"".join(gzip.compress(member, mtime=0) for member in members)


def change_tensors(content: bytes, inside: Change) -> bytes:
    """Change the head of a file of safetensors, which is JSON behind its length."""
    size = int.from_bytes(content[:8], "little")
    head = inside(content[8 : 8 + size])
    return len(head).to_bytes(8, "little") + head + content[8 + size :]


_ODD = [
    pa.array([None]), pa.array([b"\xff\xfe"]), pa.array([2**40]), pa.array([-1.5]),
    pa.array([float("nan")]), pa.array(["x"]), pa.array([["x", None]]), pa.array([{"a": 1}]),
    pa.array([True]), pa.array(["\ud7ff\u202e\n"]), pa.array([10**18], pa.timestamp("s")),
    pa.array([2**62], pa.timestamp("us")), pa.array(["x"]).dictionary_encode(),
    pa.array(["x"], pa.large_string()), pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32())),
    pa.array([1], pa.decimal128(38)), pa.array([2**50], pa.duration("s")),
    pa.array([10**8], pa.date32()), pa.array(["\x00"]), pa.array([[b"\xff"]]),
]  # fmt: skip


def change_table(chance: random.Random, content: bytes) -> bytes:
    """Change the value or type of a column of a table, or drop or duplicate the column."""
    try:
        table = pq.read_table(pa.BufferReader(content))
        at = chance.randrange(table.num_columns)
        name, how = table.column_names[at], chance.randrange(6)
        if how == 0:
            table = table.drop_columns([name])
        elif how == 1:
            table = table.append_column(name, table.column(at))
        elif how == 2:
            table = table.replace_schema_metadata({b"format": b"\xff\n"})
        elif how == 3:
            table = pa.concat_tables([table] * 3)
        else:
            odd = chance.choice(_ODD)
            cells = pa.concat_arrays([odd] * len(table)) if len(table) else odd[:0]
            table = table.set_column(at, name, cells)
        file = io.BytesIO()
        pq.write_table(table, file, compression=chance.choice(["snappy", "gzip", "none", "zstd"]))
    except Exception:  # noqa: BLE001 - an input that is no longer a table
        return content
    return file.getvalue()
