"""Write shards of ``key.webp``, ``key.txt``, ``key.json`` for ``webdataset`` and OpenCLIP."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import webdataset

from now_builder.export.card import Loading
from now_builder.export.pairs import Part, Source, cut_splits, rows
from now_builder.formats.io import atomic_write, write_json

_ABOUT = """```python
import webdataset

pairs = webdataset.WebDataset("train-00000.tar", shardshuffle=False).decode("pil")
```

Shards `train-00000.tar` and so on are in pair order. A sample is `key.webp` or `key.png`, the
screenshot; `key.txt`, the caption; `key.json`, the pair's row of `pairs.parquet`. Options for
OpenCLIP: `--dataset-type webdataset --train-data '{pattern}'`; it reads sizes from `sizes.json`."""


def parts(source: Source) -> list[Part]:
    """Return a part for each shard."""
    return cut_splits(source, "SPLIT-{:05d}.tar")


def write(source: Source, part: Part, path: Path) -> None:
    """Write a shard."""
    with (
        atomic_write(path) as temporary,
        temporary.open("wb") as file,
        webdataset.TarWriter(file, encoder=False, mtime=0) as tar,
    ):
        for row in rows(source, part.pairs):
            about = json.dumps(asdict(row.pair), ensure_ascii=False)
            texts = {"txt": row.pair.caption.encode(), "json": about.encode()}
            tar.write({"__key__": row.pair.key, row.kind: row.picture, **texts})


def finish(source: Source, out: Path, parts: Sequence[Part]) -> Loading:
    """Write ``sizes.json``, the number of pairs in each shard."""
    write_json(out / "sizes.json", {part.name: len(part.pairs) for part in parts})
    last = sum(part.name.startswith("train-") for part in parts) - 1
    pattern = f"train-{{00000..{last:05d}}}.tar"
    files = {split: f"{split}-*.tar" for split in source.pairs}
    return Loading({"default": files}, _ABOUT.replace("{pattern}", pattern))
