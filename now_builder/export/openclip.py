"""Write pictures, and a CSV of their paths and captions per split, for OpenCLIP."""

import csv
from collections.abc import Sequence
from pathlib import Path

from now_builder.export.card import Loading
from now_builder.export.pairs import Part, Source, cut_splits, rows
from now_builder.formats.io import atomic_folder, atomic_write

_ABOUT = """```sh
python -m open_clip_train.main --dataset-type csv --train-data train.csv --val-data dev.csv
```

`train.csv`, `dev.csv` and `test.csv` have the tab-separated columns `filepath` and `title` that
OpenCLIP expects. Paths are absolute: run the export again after you move the folder."""

_NO_TEXT = frozenset(
    {"", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"}
    | {"<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"}
)
"""Captions that pandas reads as missing values; a space at the end prevents this."""


def parts(source: Source) -> list[Part]:
    """Return a part for each folder of pictures."""
    return cut_splits(source, "images/SPLIT-{:05d}")


def write(source: Source, part: Part, path: Path) -> None:
    """Write a folder of pictures."""
    with atomic_folder(path) as temporary:
        for row in rows(source, part.pairs):
            picture = temporary / f"{row.pair.key}.{row.kind}"
            with atomic_write(picture, durable=False) as file:  # the folder is synced as a whole
                file.write_bytes(row.picture)


def finish(source: Source, out: Path, parts: Sequence[Part]) -> Loading:
    """Write the CSV files; rewrite a folder if a picture is missing."""
    for split in source.pairs:
        with atomic_write(out / f"{split}.csv") as path, path.open("w", encoding="utf-8") as file:
            # Quote all: csv would not quote a carriage return, which ends a row for pandas.
            writer = csv.writer(file, "excel-tab", lineterminator="\n", quoting=csv.QUOTE_ALL)
            writer.writerow(["filepath", "title"])
            for part in (part for part in parts if part.name.startswith(f"images/{split}-")):
                folder = (out / part.name).resolve()
                existing = {picture.stem for picture in folder.iterdir()}
                if any(pair.key not in existing for pair in part.pairs):
                    write(source, part, folder)
                paths = {path.stem: str(path) for path in folder.iterdir()}
                for pair in part.pairs:
                    blank = " " if pair.caption in _NO_TEXT else ""
                    writer.writerow([paths[pair.key], pair.caption + blank])
    return Loading({}, _ABOUT)
