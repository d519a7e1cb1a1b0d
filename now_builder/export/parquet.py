"""Write a release as Parquet for ``datasets.load_dataset``, with pictures."""

import json
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from now_builder.errors import FormatError
from now_builder.export.card import PLACEHOLDER, Loading, describe_parquet, read_croissant
from now_builder.export.pairs import Part, Row, Source, cut_splits, groups, rows
from now_builder.formats.features import DIMENSION, REGIONS, Features, open_features
from now_builder.formats.io import atomic_write, write_json
from now_builder.formats.release import DATA_FOLDER

Column: TypeAlias = tuple[pa.DataType, dict[str, Any]]
"""Type of a column, and its feature in ``datasets``."""

PICTURE: Column = pa.struct([("bytes", pa.binary()), ("path", pa.string())]), {"_type": "Image"}
_TEXTS = ("url", "site", "lang", "caption", "caption_source")


def parts(source: Source) -> list[Part]:
    """Return a part for each file."""
    read_croissant(source.release / "croissant.json")  # before any file is written
    return cut_splits(source, "data/SPLIT-{:05d}-of-{:05d}.parquet")


def write(source: Source, part: Part, path: Path) -> None:
    """Write a file of pairs."""
    split = part.pairs[0].split
    with ExitStack() as stack:
        h5 = source.release / DATA_FOLDER / f"{split}.h5"
        features = stack.enter_context(open_features(h5))
        if features.keys != [pair.key for pair in source.pairs[split]]:
            raise FormatError(h5, "keys are not those of pairs.parquet")
        schema = _schema(source, half=features.dataset.dtype.itemsize == 2)
        plain = [name for name in schema.names if name not in {"image", "boxes", "regions"}]
        temporary = stack.enter_context(atomic_write(path))
        writer = stack.enter_context(
            pq.ParquetWriter(
                stack.enter_context(temporary.open("wb")),
                schema,
                # Pictures are compressed already, and statistics of long values are useless.
                compression={_leaf(schema, name): "zstd" for name in plain},
                use_dictionary=["site", "lang", "caption_source"],
                write_statistics=["key", "pair_index", "site", "lang"],
            )
        )
        for group in groups(rows(source, part.pairs)):
            writer.write_table(_table(source, group, features, schema))


def finish(source: Source, out: Path, parts: Sequence[Part]) -> Loading:
    """Write ``croissant.json``."""
    with (out / parts[0].name).open("rb") as file:
        names = pq.read_schema(file).names
    tree = read_croissant(source.release / "croissant.json")
    write_json(out / "croissant.json", describe_parquet(tree, names))
    pictures = "the screenshots themselves" if "image" in names else "no screenshots"
    columns = "\n".join(f"| `{name}` | {_ABOUT.get(name, _OTHER)} |" for name in names)
    section = (
        f'```python\nimport datasets\n\ndata = datasets.load_dataset("{PLACEHOLDER}")  '
        "# or the path of this folder\n```\n\n"
        f"This is the release as Parquet, with {pictures}; row order is pair order.\n\n"
        f"| column | meaning |\n| --- | --- |\n{columns}"
    )
    files = {split: f"data/{split}-*.parquet" for split in source.pairs}
    return Loading({"default": files}, section)


def _schema(source: Source, *, half: bool) -> pa.Schema:
    columns: dict[str, Column] = {"image": PICTURE} if source.screenshots else {}
    columns |= {"key": value("string"), "pair_index": value("int32")}
    columns |= {name: value("string") for name in _TEXTS}
    columns |= {"flags": _list("string"), "boxes": _array(4, "float32")}
    columns |= {"scores": _list("float32", REGIONS), "classes": _list("int16", REGIONS)}
    columns |= {f"tokens_{name}": _list("int32") for _, name in source.tokens}
    if source.settings.regions:
        columns["regions"] = _array(DIMENSION, "float16" if half else "float32")
    return schema_of(columns)


def _table(source: Source, group: Sequence[Row], features: Features, schema: pa.Schema) -> pa.Table:
    pairs = [row.pair for row in group]
    span = slice(pairs[0].pair_index, pairs[-1].pair_index + 1)
    columns: dict[str, Any] = {
        "image": pictures(group),
        "key": [pair.key for pair in pairs],
        "pair_index": [pair.pair_index for pair in pairs],
        "flags": [pair.flags.split(",") if pair.flags else [] for pair in pairs],
        **{name: [getattr(pair, name) for pair in pairs] for name in _TEXTS},
    }
    stored = {"boxes", "scores", "classes", "regions"}.intersection(schema.names)
    columns |= {name: features.column(name, span) for name in stored}
    for (split, name), ids in source.tokens.items():
        if split == pairs[0].split:
            columns[f"tokens_{name}"] = ids[span]
    arrays = [_cells(columns[field.name], field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def pictures(group: Iterable[Row]) -> list[dict[str, Any]]:
    """Return the cells of a picture column."""
    return [
        {"bytes": row.picture, "path": f"{row.pair.key}.{row.kind}"} for row in group if row.picture
    ]


def schema_of(columns: dict[str, Column]) -> pa.Schema:
    """Return the schema of a file, with the features of ``datasets`` as metadata."""
    features = {name: feature for name, (_, feature) in columns.items()}
    metadata = {b"huggingface": json.dumps({"info": {"features": features}})}
    return pa.schema([(name, kind) for name, (kind, _) in columns.items()], metadata=metadata)


def value(kind: str) -> Column:
    """Return a column of single values."""
    alias = {"float16": "halffloat"}.get(kind, kind)
    return pa.type_for_alias(alias), {"dtype": kind, "_type": "Value"}


def _list(kind: str, length: int = -1) -> Column:
    # Every version of datasets understands "Sequence"; new ones read it as List.
    inner, feature = value(kind)
    return pa.list_(inner, length), {"feature": feature, "length": length, "_type": "Sequence"}


def _array(width: int, kind: str) -> Column:
    """Return a column of numbers per region, in lists of fixed length that load as one array."""
    row, feature = _list(kind, width)
    whole = {"feature": feature, "length": REGIONS, "_type": "Sequence"}
    return pa.list_(row, REGIONS), whole


def _leaf(schema: pa.Schema, name: str) -> str:
    """Return Parquet's name of a column; a list's values are two levels below."""
    kind, lists = schema.field(name).type, (pa.ListType, pa.FixedSizeListType)
    return f"{name}.list.element" if isinstance(kind, lists) else name


def _cells(values: Any, kind: pa.DataType) -> pa.Array:
    """Return a column, without converting the numbers of arrays."""
    if not isinstance(values, np.ndarray):
        return pa.array(values, kind)
    cells = pa.array(values.ravel(), _innermost(kind))
    for length in reversed(values.shape[1:]):
        cells = pa.FixedSizeListArray.from_arrays(cells, length)
    return cells.cast(kind)


def _innermost(kind: pa.DataType) -> pa.DataType:
    return _innermost(kind.value_type) if pa.types.is_fixed_size_list(kind) else kind


_OTHER = "content ids by another tokenizer; vocabulary in the release"
_ABOUT = {
    "image": "screenshot, 720 × 1280 px",
    "key": "id of the page, which never changes",
    "pair_index": "row in the split, as in every file of the release",
    "url": "URL, as listed",
    "site": "host name",
    "lang": "language, detected from caption and page; und if undecided",
    "caption": "meta description",
    "caption_source": "place of the caption in the page",
    "flags": "flags such as email or blank, set by rules that can err",
    "boxes": "36 regions, best first: left, top, right, bottom, in px of the screenshot",
    "scores": "scores of the regions, in [0, 1]",
    "classes": "classes of the regions: index into the detector's `classes` below, −1 for none",
    "tokens_jieba": "content ids of the caption; vocabulary in the release",
    "tokens_bpe": "the same by BPE",
    "tokens_bert": "the same by BERT's WordPiece",
    "regions": "features of the regions, 36 × 768 numbers",
}
