"""Read the pairs of a release with their screenshots, and divide them into files and groups."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from now_builder.errors import ConfigError, FormatError
from now_builder.export.settings import ExportSettings
from now_builder.formats.features import DIMENSION, REGIONS
from now_builder.formats.release import (
    Pair,
    data_folder,
    read_manifest,
    read_pairs,
    read_split_captions,
)
from now_builder.formats.screenshots import Screenshot, find_screenshots
from now_builder.formats.shard import image_kind
from now_builder.formats.split import SPLITS

_GROUP, _GROUP_BYTES = 100, 256 * 10**6
"""Maximum rows, and bytes of their pictures, in a row group, which readers read as a whole."""
_ROW_BYTES = 4096
FILE_BYTES = 500 * 10**6
"""Approximate size of a file."""


@dataclass(frozen=True, slots=True)
class Source:
    """The inputs of an export.

    Attributes:
        pairs: Pairs by split.
        screenshots: Screenshots by key; empty without captures.
        tokens: Token ids of each pair by split and tokenizer; empty unless requested.
    """

    release: Path
    pairs: dict[str, list[Pair]]
    screenshots: dict[str, Screenshot]
    tokens: dict[tuple[str, str], list[list[int]]]
    settings: ExportSettings


@dataclass(frozen=True, slots=True)
class Part:
    """A file or folder to write, by its path in the export, and the pairs in it."""

    name: str
    pairs: Sequence[Pair]


@dataclass(frozen=True, slots=True)
class Row:
    """A pair with the bytes of its screenshot, empty without captures."""

    pair: Pair
    picture: bytes

    @property
    def kind(self) -> str:
        """Extension of the picture's file, ``png`` or ``webp``."""
        return image_kind(self.picture)


def read_source(release: Path, settings: ExportSettings) -> Source:
    """Read the pairs of a release and find their screenshots.

    Raises:
        ConfigError: If the format needs captures or does not support tokens and regions.
        FormatError: If release or captures are damaged, or the captures are of another release.
    """
    if settings.captures is None and settings.to != "parquet":
        remedy = "Give the captures folder of the release as --captures"
        raise ConfigError(f"--to {settings.to} needs screenshots. {remedy}")
    if (settings.tokens or settings.regions) and settings.to != "parquet":
        raise ConfigError(f"--tokens and --regions need --to parquet, found --to {settings.to}")
    every = read_pairs(release)
    pairs: dict[str, list[Pair]] = {
        split: [pair for pair in every if pair.split == split] for split in SPLITS
    }
    for name, of_split in pairs.items():
        indices = [pair.pair_index for pair in of_split]
        if not indices or indices != [*range(len(indices))]:
            problem = f"pair_index of {name} is {indices!s:.40}, expected 0, 1, 2, …"
            raise FormatError(release / "pairs.parquet", problem)
    screenshots = {} if settings.captures is None else find_screenshots(settings.captures, every)
    tokens: dict[tuple[str, str], list[list[int]]] = {}
    for name in read_manifest(release).tracks if settings.tokens else ():
        for split in SPLITS:
            captions = read_split_captions(release, split, name)
            if captions.keys != [pair.key for pair in pairs[split]]:
                path = data_folder(release) / f"{split}_ids.txt"
                raise FormatError(path, "keys are not those of pairs.parquet")
            tokens[split, name] = captions.captions
    return Source(release, pairs, screenshots, tokens, settings)


def cut_splits(source: Source, name: str) -> list[Part]:
    """Divide the pairs of each split into parts; ``SPLIT`` in ``name`` becomes the split's name."""
    return [
        part
        for split, pairs in source.pairs.items()
        for part in cut(source, pairs, name.replace("SPLIT", split))
    ]


def cut(source: Source, pairs: Sequence[Pair], name: str) -> Iterator[Part]:
    """Divide pairs, in order, into the fewest parts of nearly equal size up to ``FILE_BYTES``.

    ``name`` is formatted with the number of the part and of all parts.
    """
    other = _ROW_BYTES + (REGIONS * DIMENSION * 4 if source.settings.regions else 0)
    sizes = [
        other + (source.screenshots[pair.key].place.size if source.screenshots else 0)
        for pair in pairs
    ]
    ends = np.cumsum(sizes)
    count = max(1, -(-int(ends[-1]) // FILE_BYTES))
    bounds = np.searchsorted(ends, [int(ends[-1]) * part / count for part in range(1, count)])
    starts = sorted({0, *(int(bound) for bound in bounds), len(sizes)})
    for number, (start, stop) in enumerate(pairwise(starts)):
        yield Part(name.format(number, len(starts) - 1), pairs[start:stop])


def rows(source: Source, pairs: Iterable[Pair]) -> Iterator[Row]:
    """Read pairs with their screenshots, one at a time."""
    for pair in pairs:
        yield Row(pair, source.screenshots[pair.key].read() if source.screenshots else b"")


def groups(read: Iterable[Row]) -> Iterator[list[Row]]:
    """Collect rows into the row groups of a Parquet file, limited in rows and bytes."""
    group: list[Row] = []
    size = 0
    for row in read:
        if group and (len(group) == _GROUP or size + len(row.picture) > _GROUP_BYTES):
            yield group
            group, size = [], 0
        group.append(row)
        size += len(row.picture)
    if group:
        yield group
