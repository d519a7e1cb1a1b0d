"""The image side of a split: features streamed into the published layout, hashed on the way."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import Float, Integer
from tqdm import tqdm

from now_builder.errors import FormatError
from now_builder.formats.features import (
    DIMENSION,
    REGIONS,
    SOURCES,
    FeatureBatch,
    Features,
    write_features,
)
from now_builder.formats.io import replacing
from now_builder.formats.release import hash_of

_BATCH = 128


@dataclass(slots=True)
class Images:
    """What was seen of a split's images while they were written.

    Attributes:
        hashes: Of each pair's regions as stored.
        detected: How many regions of a page come from the detector proper, counted by page.
        sources: Regions by origin.
    """

    hashes: list[str] = field(default_factory=list)
    detected: Counter[int] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class ArrayFiles:
    """Where a split's features go; ``npy`` is ``None`` where it is not wanted."""

    h5: Path
    npy: Path | None
    half: bool


def write_images(features: Features, keys: Sequence[str], files: ArrayFiles) -> Images:
    """Copy the features of some pages, a few at a time, in the order of ``keys``.

    Args:
        features: The open feature file.
        keys: Pages of the split in pair order; all have features.
        files: Where to write, and whether as float16.

    Raises:
        FormatError: If a page's features are not finite, or not any more as float16.
    """
    place = {key: row for row, key in enumerate(features.keys)}
    rows = np.array([place[key] for key in keys], dtype=np.int64)
    images = Images()
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
        stream = _stream(features, rows, files, images, matrix)
        write_features(files.h5, stream, attributes, files.half, len(keys))
        if matrix is not None:
            matrix.flush()
    return images


def _stream(
    features: Features,
    rows: Integer[np.ndarray, " pairs"],
    files: ArrayFiles,
    images: Images,
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
        images.hashes += [hash_of(page) for page in regions]
        images.detected.update(batch.n_regions.tolist())
        for number, count in zip(*np.unique(batch.source, return_counts=True), strict=True):
            known = 0 <= number < len(SOURCES)
            images.sources[SOURCES[number] if known else f"source {number}"] += int(count)
        if matrix is not None:
            matrix[start : start + _BATCH] = regions
        yield FeatureBatch(
            batch.keys, regions, batch.boxes, batch.scores, batch.classes, batch.source,
            batch.n_regions,
        )  # fmt: skip
