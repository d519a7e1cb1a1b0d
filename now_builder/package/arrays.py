"""The image side of a split: features streamed into the published layout, hashed on the way."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Integer
from tqdm import tqdm

from now_builder.errors import FormatError
from now_builder.formats.features import (
    DIMENSION,
    REGIONS,
    FeatureBatch,
    Features,
    write_features,
)
from now_builder.formats.io import replacing
from now_builder.formats.release import hash_of
from now_builder.formats.statistics import SplitStatistics

_BATCH = 128


@dataclass(frozen=True, slots=True)
class ArrayFiles:
    """Where a split's features go; ``npy`` is ``None`` where it is not wanted."""

    h5: Path
    npy: Path | None
    half: bool


def write_images(
    features: Features, keys: Sequence[str], files: ArrayFiles, statistics: SplitStatistics
) -> list[str]:
    """Copy the features of some pages, a few at a time, in the order of ``keys``.

    Args:
        features: The open feature file.
        keys: Pages of the split in pair order; all have features.
        files: Where to write, and whether as float16.
        statistics: Statistics of the split, which count the regions.

    Returns:
        Hash of each page's regions as stored.

    Raises:
        FormatError: If a page's features are not finite, or not any more as float16.
    """
    place = {key: row for row, key in enumerate(features.keys)}
    rows = np.array([place[key] for key in keys], dtype=np.int64)
    hashes: list[str] = []
    attributes = {
        name: value
        for name, value in features.attributes.items()
        if name not in {"format", "complete"}
    }
    with ExitStack() as stack:
        matrix = None
        if files.npy is not None:
            temporary = stack.enter_context(replacing(files.npy))
            kind = np.dtype("<f2" if files.half else "<f4")
            shape = (len(keys), REGIONS, DIMENSION)
            with temporary.open("wb") as file:
                # A path would be given the suffix .npy.
                header = {"descr": kind.str, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
                offset = file.tell()
                file.truncate(offset + int(np.prod(shape)) * kind.itemsize)
            matrix = np.memmap(temporary, kind, "r+", offset, shape)
        stream = _stream(features, rows, files, matrix)
        counted = _counted(stream, statistics, hashes)
        write_features(files.h5, counted, attributes, files.half, len(keys))
        if matrix is not None:
            matrix.flush()
    return hashes


def _stream(
    features: Features,
    rows: Integer[np.ndarray, " pairs"],
    files: ArrayFiles,
    matrix: Float[np.ndarray, "pairs 36 768"] | None,
) -> Iterator[FeatureBatch]:
    kind = np.float16 if files.half else np.float32
    for start in tqdm(range(0, len(rows), _BATCH), desc=files.h5.stem, unit="batch", disable=None):
        batch = features.read(rows[start : start + _BATCH])
        with np.errstate(over="ignore"):
            regions = batch.regions.astype(kind)
        bad = ~np.isfinite(regions).all((1, 2))
        if bad.any():
            hint = ", or too large for float16" if files.half else ""
            raise FormatError(
                features.path, f"page {batch.keys[bad.argmax()]}: regions not finite{hint}"
            )
        if matrix is not None:
            matrix[start : start + _BATCH] = regions
        yield FeatureBatch(
            batch.keys, regions, batch.boxes, batch.scores, batch.classes, batch.source,
            batch.n_regions,
        )  # fmt: skip


def _counted(
    batches: Iterator[FeatureBatch], statistics: SplitStatistics, hashes: list[str]
) -> Iterator[FeatureBatch]:
    for batch in batches:
        hashes += [hash_of(page) for page in batch.regions]
        statistics.add_regions(batch.n_regions, batch.source)
        yield batch
