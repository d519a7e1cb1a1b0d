"""Pictures, and a CSV a split that names them with their captions, as OpenCLIP reads them."""

import csv
from collections.abc import Sequence
from pathlib import Path

from now_builder.export.card import Loading
from now_builder.export.pairs import Part, Source, cut_splits, rows
from now_builder.formats.io import atomic_folder, atomic_write

_ABOUT = """```sh
python -m open_clip_train.main --dataset-type csv --train-data train.csv --val-data dev.csv
```

`train.csv`, `dev.csv` and `test.csv` have tabs between `filepath` and `title`, which OpenCLIP
expects. Paths are absolute: run the export again where the folder was moved."""

_NO_TEXT = frozenset(
    {"", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"}
    | {"<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"}
)
"""Captions that pandas takes for no text where it reads a CSV; it does not with a space behind."""


def parts(source: Source) -> list[Part]:
    """Return a part for each folder of pictures."""
    return cut_splits(source, "images/SPLIT-{:05d}")


def write(source: Source, part: Part, path: Path) -> None:
    """Write a folder of pictures."""
    with atomic_folder(path) as temporary:
        for row in rows(source, part.pairs):
            picture = temporary / f"{row.pair.key}.{row.kind}"
            with atomic_write(picture, durable=False) as file:  # synced; an error names it
                file.write_bytes(row.picture)


def finish(source: Source, out: Path, parts: Sequence[Part]) -> Loading:
    """Write the CSV files; a folder that lacks a picture is written again."""
    for split in source.pairs:
        own = [part for part in parts if part.name.startswith(f"images/{split}-")]
        with atomic_write(out / f"{split}.csv") as path, path.open("w", encoding="utf-8") as file:
            # csv alone does not quote a carriage return, at which pandas ends a row.
            writer = csv.writer(file, "excel-tab", lineterminator="\n", quoting=csv.QUOTE_ALL)
            writer.writerow(["filepath", "title"])
            for part in own:
                folder = (out / part.name).resolve()
                there = {picture.stem for picture in folder.iterdir()}
                if any(pair.key not in there for pair in part.pairs):
                    write(source, part, folder)
                paths = {path.stem: str(path) for path in folder.iterdir()}
                for pair in part.pairs:
                    blank = " " if pair.caption in _NO_TEXT else ""
                    writer.writerow([paths[pair.key], pair.caption + blank])
    return Loading({}, _ABOUT)
