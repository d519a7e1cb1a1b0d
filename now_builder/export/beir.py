"""Write corpus, queries and qrels of dev and test for BEIR, by direction and language.

For MTEB, a module of tasks is added. Pictures and captions are stored once, in a file per split and
language that several configurations use.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from now_builder.export.card import Loading
from now_builder.export.pairs import Part, Source, cut, groups, rows
from now_builder.export.parquet import PICTURE, pictures, schema_of, value
from now_builder.formats.io import atomic_write, write_text
from now_builder.formats.release import Pair

_SPLITS = ("dev", "test")
_WAYS = {"t2i": ("texts", "images"), "i2t": ("images", "texts")}
"""Folders of queries and corpus by direction."""

_ABOUT = """```python
import datasets

corpus = datasets.load_dataset("PATH_OF_THIS_FOLDER", "t2i-corpus", split="test")
```

Configurations are `t2i-corpus`, `t2i-queries`, `t2i-qrels` (captions as queries, screenshots as the
corpus; also as `corpus`, `queries`, `qrels`), `i2t-…` the other way round, and for each language
`t2i-en-…` with pairs of that language only. Splits are dev and test. Each query has one relevant
document, that of its own pair. Identical captions have equal scores, so figures depend on how ties
are broken."""

_ABOUT_TASKS = """

```python
import mteb
from now_tasks import TASKS  # a module in this folder

results = mteb.evaluate(mteb.get_model("mteb/baseline-random-encoder"), TASKS)
```"""


def parts(source: Source) -> list[Part]:
    """Return a part for each file."""
    listed: list[Part] = []
    for split in _SPLITS:
        for lang, pairs in _by_language(source.pairs[split]).items():
            listed += cut(source, pairs, f"images/{split}-{lang}-{{:05d}}-of-{{:05d}}.parquet")
            for folder in ("texts", *_WAYS):
                listed.append(Part(f"{folder}/{split}-{lang}-00000-of-00001.parquet", pairs))
    return listed


def write(source: Source, part: Part, path: Path) -> None:
    """Write a file."""
    folder = part.name.partition("/")[0]
    with atomic_write(path) as temporary:
        if folder == "images":
            _write_images(source, part, temporary)
            return
        ids = {kind: [_id(pair, kind) for pair in part.pairs] for kind in ("texts", "images")}
        columns: dict[str, list[Any]]
        if folder == "texts":
            columns = {"_id": ids[folder], "text": [pair.caption for pair in part.pairs]}
        else:
            query, document = _WAYS[folder]
            columns = {"query-id": ids[query], "corpus-id": ids[document]}
            columns["score"] = [1] * len(part.pairs)
        with temporary.open("wb") as file:
            pq.write_table(pa.table(columns), file)


def _write_images(source: Source, part: Part, path: Path) -> None:
    schema = schema_of({"_id": value("string"), "image": PICTURE})
    with path.open("wb") as file, pq.ParquetWriter(file, schema, compression="NONE") as writer:
        for group in groups(rows(source, part.pairs)):
            ids = [_id(row.pair, "images") for row in group]
            columns = {"_id": ids, "image": pictures(group)}
            writer.write_table(pa.table(columns, schema))


def finish(source: Source, out: Path, parts: Sequence[Part]) -> Loading:
    """Write the tasks for MTEB, and return the configurations."""
    about = _ABOUT
    if source.settings.to == "mteb":
        code = files("now_builder.export") / "now_tasks.py"
        write_text(out / "now_tasks.py", code.read_text(encoding="utf-8"))
        about += _ABOUT_TASKS
    return Loading(_configurations(parts), about)


def _configurations(parts: Sequence[Part]) -> dict[str, dict[str, str]]:
    """Return the files of each direction and subset (all pairs, or one language) by split."""
    splits: dict[str, dict[str, None]] = defaultdict(dict)
    for part in parts:
        folder, _, name = part.name.partition("/")
        if folder == "texts":
            split, lang = name.split("-")[:2]
            for subset in ("", f"-{lang}"):
                splits[subset][split] = None
    files: dict[str, dict[str, str]] = {}
    for subset, of_subset in sorted(splits.items()):
        for way, (queries, corpus) in _WAYS.items():
            for name, folder in (("corpus", corpus), ("queries", queries), ("qrels", way)):
                patterns = {split: f"{folder}/{split}{subset}-*.parquet" for split in of_subset}
                files[f"{way}{subset}-{name}"] = patterns
    return {name: files[f"t2i-{name}"] for name in ("corpus", "queries", "qrels")} | files


def _by_language(pairs: Iterable[Pair]) -> dict[str, list[Pair]]:
    """Group pairs by the primary tag of their language, ``und`` without one."""
    pairs_of: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        tag = re.match(r"[a-z]{2,8}", (pair.lang or "").lower())
        pairs_of[tag[0] if tag else "und"].append(pair)
    return dict(sorted(pairs_of.items()))


def _id(pair: Pair, folder: str) -> str:
    """Return an id that differs for picture and caption, since some tools drop equal ids."""
    return f"{pair.key}.{'image' if folder == 'images' else 'text'}"
