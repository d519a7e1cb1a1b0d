"""A release as Parquet that ``datasets.load_dataset`` reads as it is, pictures included."""

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from now_builder import __version__
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.features import DIMENSION, REGIONS, Features, open_features
from now_builder.formats.io import (
    read_json,
    remove_leftovers,
    replacing,
    sha256_of,
    write_json,
    write_text,
)
from now_builder.formats.release import (
    DATA_FOLDER,
    Pair,
    read_manifest,
    read_pairs,
    read_split_captions,
)
from now_builder.formats.screenshots import Screenshot, find_screenshots
from now_builder.formats.shard import image_kind
from now_builder.formats.split import SPLITS, Split
from now_builder.package.croissant import describe_parquet
from now_builder.package.licences import FILE as LICENCES
from now_builder.package.settings import ParquetSettings
from now_builder.program.progress import watched

_log = logging.getLogger(__name__)

_GROUP = 100
"""Rows of a group, which is read whole; the hub's own measure for pictures."""
_DIGEST = b"now_export"
PLACEHOLDER = "OWNER/NAME"
"""Name of the data set in its card, until it has one on the hub."""

_TEXTS = ("url", "site", "lang", "caption", "caption_source")


@dataclass(frozen=True, slots=True)
class _ParquetFile:
    """A Parquet file to write: pairs from ``pair_index`` ``start`` to before ``stop``."""

    name: str
    split: Split
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class _Exported:
    """The inputs of an export; screenshots by key, none without pictures."""

    release: Path
    pairs: dict[Split, list[Pair]]
    screenshots: dict[str, Screenshot]
    tokens: dict[Split, dict[str, list[list[int]]]]
    settings: ParquetSettings


def export_parquet(
    release: Path,
    out: Path,
    settings: ParquetSettings,
    force: bool = False,  # noqa: FBT001, FBT002 - as in every stage
) -> dict[str, int]:
    """Write ``data/{split}-00000-of-00012.parquet``, ``croissant.json`` and, last, ``README.md``.

    Of a release of licensed pages also ``licences.csv``, which goes with every copy.

    Files that stand are kept, so a run that was killed goes on; the same release, captures and
    settings give the same bytes.

    Returns:
        Pairs by file.

    Raises:
        ConfigError: If pictures are wanted and no captures are given, or ``out`` holds an export of
            another release, or by other settings, and ``force`` is off.
        FormatError: If release or captures are torn, or the captures are not those of the release.
    """
    source = _read(release, settings)
    files = [file for split in SPLITS for file in _cut(source, split)]
    digest = _digest(source, files)
    _make_room(out, files, digest, force=force)
    for file in watched(files, "export", "file"):
        path = out / file.name
        if not path.exists():
            _write(path, file, source, digest)
    _describe(release, out, files, source)
    return {file.name: file.stop - file.start for file in files}


def _read(release: Path, settings: ParquetSettings) -> _Exported:
    if settings.images and settings.captures is None:
        raise ConfigError(
            "--captures is not given: the folder that the release was packaged from, for its "
            "screenshots; --no-images exports without them"
        )
    tracks = read_manifest(release).tracks if settings.tokens else []
    every = read_pairs(release)
    pairs = {split: [pair for pair in every if pair.split == split] for split in SPLITS}
    screenshots: dict[str, Screenshot] = {}
    if settings.images and settings.captures is not None:
        screenshots = find_screenshots(settings.captures, every)
    tokens: dict[Split, dict[str, list[list[int]]]] = {
        split: {name: read_split_captions(release, split, name).captions for name in tracks}
        for split in SPLITS
    }
    return _Exported(release, pairs, screenshots, tokens, settings)


def _cut(source: _Exported, split: Split) -> Iterator[_ParquetFile]:
    """Cut a split into as few files as the size allows, of nearly equal bytes, in pair order."""
    other = 4096 + (REGIONS * DIMENSION * 4 if source.settings.regions else 0)
    sizes = [
        other + (source.screenshots[pair.key].place.size if source.screenshots else 0)
        for pair in source.pairs[split]
    ]
    ends = np.cumsum(sizes)
    count = max(1, -(-int(ends[-1]) // (source.settings.file_mb * 10**6)))
    bounds = np.searchsorted(ends, [int(ends[-1]) * part / count for part in range(1, count)])
    starts = sorted({0, *(int(bound) for bound in bounds), len(sizes)})
    for number, (start, stop) in enumerate(pairwise(starts)):
        name = f"data/{split}-{number:05d}-of-{len(starts) - 1:05d}.parquet"
        yield _ParquetFile(name, split, start, stop)


def _digest(source: _Exported, files: Sequence[_ParquetFile]) -> str:
    """Hash the content and the settings of an export."""
    settings = source.settings.model_dump(exclude={"captures"})
    tree = [
        sha256_of(source.release / "manifest.json"), settings, [asdict(file) for file in files],
        {key: found.sha256 for key, found in source.screenshots.items()}, pa.__version__,
        __version__,
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(tree).encode()).hexdigest()


def _make_room(out: Path, files: Sequence[_ParquetFile], digest: str, *, force: bool) -> None:
    """Drop what a killed run left half-written and, by force, an export of something else."""
    names = {file.name for file in files}
    remove_leftovers(out)
    remove_leftovers(out / "data")
    for path in sorted((out / "data").glob("*-?????-of-?????.parquet")):
        if f"data/{path.name}" not in names or _digest_of(path) != digest.encode() or force:
            if not force:
                raise ConfigError(
                    f"{path}: exported from another release or by other settings; --force "
                    "replaces the export"
                )
            path.unlink()


def _digest_of(path: Path) -> bytes | None:
    try:
        return (pq.read_schema(path).metadata or {}).get(_DIGEST)
    except (pa.ArrowException, ValueError, OSError):
        return None


def _schema(
    settings: ParquetSettings,
    tracks: Iterable[str],
    half: bool,  # noqa: FBT001
    digest: str,
) -> pa.Schema:
    """Return the columns, and what ``datasets`` wants to know about them."""
    fields: list[tuple[str, pa.DataType, dict[str, Any]]] = []
    if settings.images:
        picture = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        fields.append(("image", picture, {"_type": "Image"}))
    fields += [("key", *_value("string")), ("pair_index", *_value("int32"))]
    fields += [(name, *_value("string")) for name in _TEXTS]
    fields.append(("flags", *_list("string")))
    fields.append(("boxes", *_array(4, "float32")))
    fields += [("scores", *_list("float32", REGIONS)), ("classes", *_list("int16", REGIONS))]
    fields += [(f"tokens_{name}", *_list("int32")) for name in tracks]
    if settings.regions:
        fields.append(("regions", *_array(DIMENSION, "float16" if half else "float32")))
    features = {name: feature for name, _, feature in fields}
    metadata = {b"huggingface": json.dumps({"info": {"features": features}}), _DIGEST: digest}
    return pa.schema([(name, kind) for name, kind, _ in fields], metadata=metadata)


def _value(kind: str) -> tuple[pa.DataType, dict[str, Any]]:
    alias = {"float16": "halffloat"}.get(kind, kind)
    return pa.type_for_alias(alias), {"dtype": kind, "_type": "Value"}


def _list(kind: str, length: int = -1) -> tuple[pa.DataType, dict[str, Any]]:
    # "Sequence" is what every release of datasets understands; it reads it as its own List.
    value, feature = _value(kind)
    return pa.list_(value, length), {"feature": feature, "length": length, "_type": "Sequence"}


def _array(width: int, kind: str) -> tuple[pa.DataType, dict[str, Any]]:
    """Numbers by region: lists of fixed length, so that they come as one array."""
    row, feature = _list(kind, width)
    whole = {"feature": feature, "length": REGIONS, "_type": "Sequence"}
    return pa.list_(row, REGIONS), whole


def _write(path: Path, file: _ParquetFile, source: _Exported, digest: str) -> None:
    with ExitStack() as stack:
        h5 = source.release / DATA_FOLDER / f"{file.split}.h5"
        features = stack.enter_context(open_features(h5))
        if features.keys != [pair.key for pair in source.pairs[file.split]]:
            raise FormatError(h5, "keys are not those of pairs.parquet")
        half = features.dataset.dtype.itemsize == 2
        schema = _schema(source.settings, source.tokens[file.split], half, digest)
        temporary = stack.enter_context(replacing(path))
        plain = [name for name in schema.names if name not in {"image", "boxes", "regions"}]
        writer = stack.enter_context(
            pq.ParquetWriter(
                temporary,
                schema,
                # Pictures are packed already, and their bytes order nothing.
                compression={_leaf(schema, name): "zstd" for name in plain},
                use_dictionary=["site", "lang", "caption_source"],
                write_statistics=["key", "pair_index", "site", "lang"],
            )
        )
        for start in range(file.start, file.stop, _GROUP):
            rows = slice(start, min(start + _GROUP, file.stop))
            writer.write_table(_table(source, file.split, features, rows, schema))
        _log.info("%s: %d pairs", path, file.stop - file.start)


def _leaf(schema: pa.Schema, name: str) -> str:
    """Name the column as Parquet does: a list's values lie two levels below."""
    kind = schema.field(name).type
    return (
        f"{name}.list.element"
        if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind)
        else name
    )


def _table(
    source: _Exported, split: Split, features: Features, rows: slice, schema: pa.Schema
) -> pa.Table:
    pairs = source.pairs[split][rows]
    columns: dict[str, Any] = {
        "key": [pair.key for pair in pairs],
        "pair_index": [pair.pair_index for pair in pairs],
        "flags": [pair.flags.split(",") if pair.flags else [] for pair in pairs],
        **{name: [getattr(pair, name) for pair in pairs] for name in _TEXTS},
    }
    wanted = ["boxes", "scores", "classes", *(["regions"] if source.settings.regions else [])]
    columns |= {name: features.column(name, rows) for name in wanted}
    for name, ids in source.tokens.get(split, {}).items():
        columns[f"tokens_{name}"] = ids[rows]
    if source.settings.images:
        columns["image"] = [_picture(source, pair.key) for pair in pairs]
    arrays = [_cells(columns[field.name], field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _cells(values: Any, kind: pa.DataType) -> pa.Array:
    """Return a column; arrays keep their numbers as they are in memory."""
    if not isinstance(values, np.ndarray):
        return pa.array(values, kind)
    cells = pa.array(values.ravel(), _innermost(kind))
    for length in reversed(values.shape[1:]):
        cells = pa.FixedSizeListArray.from_arrays(cells, length)
    return cells.cast(kind)


def _innermost(kind: pa.DataType) -> pa.DataType:
    return _innermost(kind.value_type) if pa.types.is_fixed_size_list(kind) else kind


def _picture(source: _Exported, key: str) -> dict[str, Any]:
    content = source.screenshots[key].read()
    return {"bytes": content, "path": f"{key}.{image_kind(content)}"}


def _describe(release: Path, out: Path, files: Sequence[_ParquetFile], source: _Exported) -> None:
    schema = pq.read_schema(out / files[0].name)
    tree = read_json(release / "croissant.json", "no such file; package the release again")
    described = describe_parquet(tree, schema.names, images=source.settings.images)
    write_json(out / "croissant.json", described)
    (out / LICENCES).unlink(missing_ok=True)
    if LICENCES in read_manifest(release).files:
        write_text(out / LICENCES, (release / LICENCES).read_text(encoding="utf-8"))
    card = (release / "DATASET_CARD.md").read_text(encoding="utf-8")
    write_text(out / "README.md", _card(card, schema, images=source.settings.images))


def _card(card: str, schema: pa.Schema, *, images: bool) -> str:
    """Return the card of the export: the release's, with its files and columns."""
    _, head, body = card.split("---\n", 2)
    lines = ["configs:", "  - config_name: default", "    data_files:"]
    for split in SPLITS:
        lines += [f"      - split: {split}", f"        path: data/{split}-*.parquet"]
    head = head.partition("configs:")[0] + "\n".join(lines) + "\n"
    title, rest = body.lstrip("\n").split("\n\n", 1)
    pictures = "the screenshots themselves" if images else "no screenshots"
    columns = "\n".join(f"| `{name}` | {_ABOUT[name]} |" for name in schema.names)
    loading = (
        "## Load it\n\n```python\nimport datasets\n\n"
        f'data = datasets.load_dataset("{PLACEHOLDER}")  # or the path of this folder\n```\n\n'
        f"This is the release as Parquet, with {pictures}; row order is pair order.\n\n"
        f"| column | meaning |\n| --- | --- |\n{columns}\n\n"
    )
    first, section, others = rest.partition("## ")
    return f"---\n{head}---\n\n{title}\n\n{first}{loading}{section}{others}"


_ABOUT = {
    "image": "screenshot, 720 × 1280 px",
    "key": "id of the page, which never changes",
    "pair_index": "row of the split, as in every file of the release",
    "url": "as listed",
    "site": "host name",
    "lang": "language, detected from caption and page; und if undecided",
    "caption": "meta description",
    "caption_source": "place of the caption in the page",
    "flags": "flags such as email or blank, by rules that can err",
    "boxes": "36 regions, best first: left, top, right, bottom, in px of the screenshot",
    "scores": "of the regions, in [0, 1]",
    "classes": "of the regions: index into the detector's `classes` below, −1 for none",
    "tokens_jieba": "content ids of the caption; vocabulary in the release",
    "tokens_bpe": "the same by BPE",
    "tokens_bert": "the same by BERT's WordPiece",
    "regions": "36 × 768 features",
}
