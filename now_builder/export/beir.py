"""Corpus, queries and qrels of dev and test as BEIR has them, for both directions, by language.

As MTEB has them, with a module of tasks that ``mteb`` runs from the folder.
Pictures and captions are stored once: a file a split and language, which many configurations name.
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
`t2i-en-…` with pairs of that language alone. Splits are dev and test. Of each query its own pair is
the one right document, also where captions are the same: scores are equal there, and a figure
depends on how ties are broken."""

_ABOUT_TASKS = """

```python
import mteb
from now_tasks import TASKS  # a module in this folder

results = mteb.evaluate(mteb.get_model("mteb/baseline-random-encoder"), TASKS)
```"""


def parts(source: Source) -> list[Part]:
    """Return a part for each file."""
    found: list[Part] = []
    for split in _SPLITS:
        for lang, pairs in _by_language(source.pairs[split]).items():
            found += cut(source, pairs, f"images/{split}-{lang}-{{:05d}}-of-{{:05d}}.parquet")
            for folder in ("texts", *_WAYS):
                found.append(Part(f"{folder}/{split}-{lang}-00000-of-00001.parquet", pairs))
    return found


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
    """Return the configurations; for MTEB write the tasks, too."""
    about = _ABOUT
    if source.settings.to == "mteb":
        code = files("now_builder.export") / "now_tasks.py"
        write_text(out / "now_tasks.py", code.read_text(encoding="utf-8"))
        about += _ABOUT_TASKS
    return Loading(_configurations(parts), about)


def _configurations(parts: Sequence[Part]) -> dict[str, dict[str, str]]:
    """Return files by split of each direction and subset: all pairs, and those of a language."""
    splits: dict[str, dict[str, None]] = defaultdict(dict)
    for part in parts:
        folder, _, name = part.name.partition("/")
        if folder == "texts":
            split, lang = name.split("-")[:2]
            for subset in ("", f"-{lang}"):
                splits[subset][split] = None
    found: dict[str, dict[str, str]] = {}
    for subset, own in sorted(splits.items()):
        for way, (queries, corpus) in _WAYS.items():
            for name, folder in (("corpus", corpus), ("queries", queries), ("qrels", way)):
                patterns = {split: f"{folder}/{split}{subset}-*.parquet" for split in own}
                found[f"{way}{subset}-{name}"] = patterns
    return {name: found[f"t2i-{name}"] for name in ("corpus", "queries", "qrels")} | found


def _by_language(pairs: Iterable[Pair]) -> dict[str, list[Pair]]:
    """Return pairs by the primary tag of their language, ``und`` where there is none."""
    found: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        tag = re.match(r"[a-z]{2,8}", (pair.lang or "").lower())
        found[tag[0] if tag else "und"].append(pair)
    return dict(sorted(found.items()))


def _id(pair: Pair, folder: str) -> str:
    """Return an id: another of a picture than of its caption, for tools that drop equal ones."""
    return f"{pair.key}.{'image' if folder == 'images' else 'text'}"
