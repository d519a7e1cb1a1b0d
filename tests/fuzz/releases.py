"""The readers of releases and captures: one small file of each kind, mutated.

The first byte of an input says which file it is; the others are its content.
"""

import io
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from changes import Change, change_json, change_tar
from PIL import Image

from now_builder.errors import ConfigError, FormatError
from now_builder.formats.captions import (
    make_vocabulary,
    read_captions,
    read_vocabulary,
    write_captions,
    write_vocabulary,
)
from now_builder.formats.noise import read_noise
from now_builder.formats.precomp import read_texts as read_field_texts
from now_builder.formats.release import (
    Manifest,
    Pair,
    Reject,
    check_files,
    read_image_identities,
    read_pairs,
    read_rejects,
    read_split_captions,
    write_manifest,
    write_pairs,
    write_rejects,
)
from now_builder.formats.shard import (
    Capture,
    CaptureRow,
    Element,
    Planned,
    locate_screenshots,
    open_screenshot,
    read_captures,
    read_place,
    read_plan,
    read_rows,
    read_texts,
    write_plan,
    write_shard,
)
from now_builder.formats.split import Shares, SplitPlan, read_split, write_split
from now_builder.formats.verdicts import COLUMNS, read_verdicts

ERRORS = (FormatError, ConfigError)
LONGEST = 2**14
_FOLDER = Path(tempfile.mkdtemp(prefix="now-fuzz-"))
_PLAN = SplitPlan(shares=Shares(train=0.5, dev=0.25, test=0.25))


def _write_all(folder: Path) -> None:
    """Write a captures folder, a release and an archive of the authors' form, all very small."""
    picture = io.BytesIO()
    Image.new("RGB", (2, 2)).save(picture, "PNG")
    urls = {"url": "http://a.test/", "url_canonical": "http://a.test/", "site": "a.test"}
    row = CaptureRow("00000_0000", **urls, status="ok", caption="a b", redirects=["x"])
    capture = Capture(
        row.key, picture.getvalue(), b"<p>", [Element((0.0, 0.0, 1.0, 1.0), "p", text="t")]
    )
    write_plan(folder, [Planned(row.key, 0, **urls)])
    write_shard(folder, 0, [row], [capture])
    write_split(folder / "split.toml", _PLAN)
    write_captions(folder / "bert.txt", [(row.key, [4, 5])])
    write_vocabulary(folder / "bert.vocab.json", make_vocabulary(["a", "b"], "bert", "s", "l"))
    pair = Pair(row.key, "test", 0, urls["url"], "a.test", "a b", "name", "en", "0" * 16, "0" * 64)
    write_pairs(folder / "pairs.parquet", [pair])
    write_rejects(folder / "rejects.parquet", [Reject(row.key, "u", "s", "test", "lang", "d")])
    entry = {"bert.txt": {"sha256": "0" * 64, "bytes": 15}}
    write_manifest(
        folder,
        Manifest(
            name="n", created_at="", split=_PLAN, counts={"test": 1}, rejects={},
            fingerprints={"test": {"bert": "0" * 64}}, detector={}, settings={"a": [1]},
            versions={}, files=entry,
        ),
    )  # fmt: skip
    (folder / "verdicts.csv").write_text(f"{','.join(COLUMNS)}\nk,u,test,en,match,j,now,1.5,n\n")
    (folder / "field.tsv").write_text('image\ta caption\nimage\t"another"\n')
    np.save(folder / "noise.npy", np.array([1, 0]))
    archive = folder / "archive"
    archive.mkdir()
    np.save(archive / "test_ims.npy", np.zeros((1, 36, 1), np.float32))
    (archive / "test_caps_bert.txt").write_text("4,5,\n")


def _read_tar(folder: Path) -> None:
    for capture in read_captures(folder, shards=[0]):
        open_screenshot(capture.screenshot, "screenshot")
    for place in locate_screenshots(folder, 0).values():
        read_place(place)


def _read_rows(folder: Path) -> None:
    read_texts(folder, 0)
    read_rows(folder, 0)


def _read_archive(folder: Path) -> None:
    read_split_captions(folder / "archive", "test", "bert")
    read_image_identities(folder / "archive", "test")


_KINDS: dict[str, Callable[[Path], object]] = {
    "pairs.parquet": read_pairs,
    "rejects.parquet": read_rejects,
    "plan.parquet": read_plan,
    "00000.parquet": _read_rows,
    "00000.tar": _read_tar,
    "manifest.json": check_files,
    "bert.vocab.json": lambda folder: read_vocabulary(folder / "bert.vocab.json"),
    "bert.txt": lambda folder: read_captions(folder / "bert.txt"),
    "split.toml": lambda folder: read_split(folder / "split.toml"),
    "noise.npy": lambda folder: read_noise(folder / "noise.npy", 2, 2),
    "archive/test_ims.npy": _read_archive,
    "archive/test_caps_bert.txt": _read_archive,
    "verdicts.csv": lambda folder: read_verdicts(folder / "verdicts.csv"),
    "field.tsv": lambda folder: read_field_texts(folder / "field.tsv"),
}
_NAMES = list(_KINDS)
_write_all(_FOLDER)
_WHOLE = {name: (_FOLDER / name).read_bytes() for name in _NAMES}


def seeds() -> list[bytes]:
    """Return each file unchanged."""
    return [bytes([number]) + _WHOLE[name] for number, name in enumerate(_NAMES)]


def read(content: bytes) -> None:
    """Read the file of this kind; the others of its folder are whole."""
    name = _NAMES[content[0] % len(_NAMES)] if content else _NAMES[0]
    path = _FOLDER / name
    path.write_bytes(content[1:])
    try:
        _KINDS[name](_FOLDER)
    finally:
        path.write_bytes(_WHOLE[name])


def mutate(content: bytes, longest: int, seed: int) -> bytes:
    """Change bytes of the file, or something inside that leaves the file whole."""
    import atheris  # noqa: PLC0415 - replaying does without

    chance = random.Random(seed)
    first, rest = content[:1] or b"\0", content[1:]
    name = _NAMES[first[0] % len(_NAMES)]
    if chance.random() < 0.3:
        return first + atheris.Mutate(rest, longest - 1)

    def inside(member: str) -> Change:
        if member.endswith(".json") and chance.random() < 0.6:
            return lambda old: change_json(chance, old)
        return lambda old: atheris.Mutate(old, len(old) + 64)

    if name.endswith(".parquet"):
        rest = _change_table(chance, rest)
    elif name.endswith(".tar"):
        rest = change_tar(chance, rest, inside)
    else:
        rest = inside(name)(rest)
    return first + rest[: longest - 1]


_ODD = [
    pa.array([None]), pa.array([b"\xff\xfe"]), pa.array([2**40]), pa.array([-1.5]),
    pa.array([float("nan")]), pa.array(["x"]), pa.array([["x", None]]), pa.array([{"a": 1}]),
    pa.array([True]), pa.array(["\ud7ff\u202e\n"]), pa.array([10**18], pa.timestamp("s")),
    pa.array([2**62], pa.timestamp("us")), pa.array(["x"]).dictionary_encode(),
    pa.array(["x"], pa.large_string()), pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32())),
    pa.array([1], pa.decimal128(38)), pa.array([2**50], pa.duration("s")),
    pa.array([10**8], pa.date32()), pa.array(["\x00"]), pa.array([[b"\xff"]]),
]  # fmt: skip


def _change_table(chance: random.Random, content: bytes) -> bytes:
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
