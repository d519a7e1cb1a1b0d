"""The image side of a split: features streamed into the published layout, hashed on the way."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from now_builder.errors import FormatError
from now_builder.formats.features import (
    DIMENSION,
    OF_FILE,
    REGIONS,
    FeatureBatch,
    Features,
    write_features,
)
from now_builder.formats.io import replacing
from now_builder.formats.release import hash_of
from now_builder.formats.statistics import SplitStatistics
from now_builder.program.progress import watched

_BATCH = 128


@dataclass(frozen=True, slots=True)
class ArrayFiles:
    """Files for a split's features; ``npy`` is ``None`` if it is not wanted."""

    h5: Path
    npy: Path | None


def write_images(
    features: Features, keys: Sequence[str], files: ArrayFiles, statistics: SplitStatistics
) -> list[str]:
    """Copy the features of some pages, a few at a time, in the order of ``keys``.

    Returns:
        Hash of each page's regions as stored.

    Raises:
        FormatError: If a page's features are not finite.
    """
    place = {key: row for row, key in enumerate(features.keys)}
    rows = np.array([place[key] for key in keys], dtype=np.int64)
    hashes: list[str] = []
    attributes = {name: value for name, value in features.attributes.items() if name not in OF_FILE}
    with ExitStack() as stack:
        npy: BinaryIO | None = None
        half = features.dataset.dtype.itemsize == 2
        kind = "<f2" if half else "<f4"
        if files.npy is not None:  # not mapped: a full disk would kill the process
            npy = stack.enter_context(stack.enter_context(replacing(files.npy)).open("wb"))
            shape = (len(keys), REGIONS, DIMENSION)
            head = {"descr": kind, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(npy, head)

        def batches() -> Iterator[FeatureBatch]:
            starts = range(0, len(rows), _BATCH)
            for start in watched(starts, files.h5.stem, "batch"):
                batch = features.read(rows[start : start + _BATCH])
                bad = ~np.isfinite(batch.regions).all((1, 2))
                if bad.any():
                    key = batch.keys[bad.argmax()]
                    raise FormatError(features.path, f"page {key}: regions not finite")
                if npy is not None:
                    npy.write(batch.regions.astype(kind, copy=False).tobytes())
                hashes.extend(hash_of(page) for page in batch.regions)
                statistics.add_regions(batch.n_regions, batch.source)
                yield batch

        write_features(files.h5, batches(), attributes, half, len(keys))
    return hashes
