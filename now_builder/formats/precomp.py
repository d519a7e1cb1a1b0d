"""The ``*_precomp`` layout of Flickr30K, MS-COCO and CC152K: file names and caption texts."""

import csv
from collections.abc import Iterator
from pathlib import Path

from now_builder.errors import FormatError
from now_builder.formats.benchmarks import BENCHMARKS, Benchmark
from now_builder.formats.io import read_lines
from now_builder.formats.split import Split


def precomp_folder(release: Path, name: str) -> Path:
    """Return the folder of a data set: ``RELEASE/{name}`` or RELEASE itself."""
    pattern = f"*_caps{benchmark_of(name).captions_suffix}"
    for folder in (release / name, release):
        if any(folder.glob(pattern)):
            return folder
    raise FormatError(release, f"no {pattern} in it or in {name}/, expected the layout of {name}")


def file_stem(name: str, split: Split) -> str:
    """Return the beginning of a split's file names; ``testall`` for MS-COCO's test split."""
    return benchmark_of(name).test_stem if split == "test" else split


def captions_path(release: Path, split: Split, name: str) -> Path:
    """Return the path of a split's captions."""
    suffix = benchmark_of(name).captions_suffix
    return precomp_folder(release, name) / f"{file_stem(name, split)}_caps{suffix}"


def benchmark_of(name: str) -> Benchmark:
    """Return the data set with the folder ``name``."""
    return {str(benchmark.folder): benchmark for benchmark in BENCHMARKS.values()}[name]


def read_texts(path: Path) -> list[str]:
    """Read caption texts, one per line, or from the second column of a ``.tsv``.

    A table is read with Python's ``csv``, as others do: a cell that begins with a double quote ends
    at the next one.

    Raises:
        FormatError: If a caption is empty or a line has no tab; the message names the line.
    """
    texts = []
    rows = _table(path) if path.suffix == ".tsv" else enumerate(read_lines(path), 1)
    for number, text in rows:
        if not text.strip():
            raise FormatError(path, f"line {number}: an empty caption")
        texts.append(text.strip())
    if not texts:
        raise FormatError(path, "no captions, expected at least one")
    return texts


def _table(path: Path) -> Iterator[tuple[int, str]]:
    reader = csv.reader(read_lines(path), delimiter="\t")
    try:
        for row in reader:
            if len(row) < 2:
                line = "\t".join(row)[:60]
                problem = f"line {reader.line_num}: {line!r}, expected image<TAB>caption"
                raise FormatError(path, problem)
            yield reader.line_num, row[1]
    except csv.Error as error:
        raise FormatError(path, f"line {reader.line_num}: {error}") from None
