"""Shards as ``webdataset`` and OpenCLIP read them: ``key.webp``, ``key.txt``, ``key.json``."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import webdataset

from now_builder.export.card import Loading
from now_builder.export.pairs import Part, Source, cut, rows
from now_builder.formats.io import replacing, write_json

_ABOUT = """```python
import webdataset

pairs = webdataset.WebDataset("train-00000.tar", shardshuffle=False).decode("pil")
```

Shards `train-00000.tar` and so on, in pair order. A sample is `key.webp` or `key.png`, the
screenshot; `key.txt`, the caption; `key.json`, the pair's row of `pairs.parquet`. OpenCLIP reads
them as `--dataset-type webdataset --train-data '{pattern}'`, and their sizes from `sizes.json`."""


@dataclass(frozen=True, slots=True)
class ShardWriter:
    """Writes a tar a shard, and ``sizes.json``, the pairs of each."""

    source: Source
    beside: Sequence[str] = ("sizes.json",)

    def parts(self) -> list[Part]:
        """Return a part for each shard."""
        return [
            part
            for split, pairs in self.source.pairs.items()
            for part in cut(self.source, pairs, f"{split}-{{:05d}}.tar")
        ]

    def write(self, part: Part, path: Path) -> None:
        """Write a shard."""
        with (
            replacing(path) as temporary,
            temporary.open("wb") as file,
            webdataset.TarWriter(file, encoder=False, mtime=0) as tar,
        ):
            for row in rows(self.source, part.pairs):
                about = json.dumps(asdict(row.pair), ensure_ascii=False)
                texts = {"txt": row.pair.caption.encode(), "json": about.encode()}
                tar.write({"__key__": row.pair.key, row.kind: row.picture, **texts})

    def finish(self, out: Path, parts: Sequence[Part]) -> Loading:
        """Write ``sizes.json``."""
        write_json(out / "sizes.json", {part.name: len(part.pairs) for part in parts})
        last = sum(part.name.startswith("train-") for part in parts) - 1
        pattern = f"train-{{00000..{last:05d}}}.tar"
        files = {split: f"{split}-*.tar" for split in self.source.pairs}
        return Loading({"default": files}, _ABOUT.replace("{pattern}", pattern))
