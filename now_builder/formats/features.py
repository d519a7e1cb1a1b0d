"""Region features: one HDF5 file with 36 regions for each page."""

import hashlib
import io
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from jaxtyping import Float, Integer, Shaped

from now_builder.errors import FormatError
from now_builder.formats.io import atomic_write

FORMAT = "now-features/1"
REGIONS, DIMENSION = 36, 768

CAPTURES = "captures_sha256"
"""Attribute that identifies the screenshots, see :func:`captures_hash`."""
OF_FILE = frozenset({"format", "complete", CAPTURES})
"""Attributes of the file itself; all others describe the detector."""

SOURCES = ("detector", "relaxed", "grid", "dom", "external")
"""Names of the values of ``/source``."""


def source_name(number: int) -> str:
    """Return the name of a value of ``/source``."""
    return SOURCES[number] if 0 <= number < len(SOURCES) else f"source {number}"


@dataclass(frozen=True, slots=True)
class FeatureBatch:
    """The regions of some pages, best region first.

    Attributes:
        keys: Keys of the pages.
        regions: Visual embeddings; no row is zero.
        boxes: Image px: left, top, right, bottom.
        scores: In [0, 1]; descending within the rows that the detector found.
        classes: Index into the detector's class list; −1 for none.
        source: Index into :data:`SOURCES`.
        n_regions: Number of rows that the detector found; the others fill the page up to 36.
    """

    keys: list[str]
    regions: Float[np.ndarray, "pages 36 768"]
    boxes: Float[np.ndarray, "pages 36 4"]
    scores: Float[np.ndarray, "pages 36"]
    classes: Integer[np.ndarray, "pages 36"]
    source: Integer[np.ndarray, "pages 36"]
    n_regions: Integer[np.ndarray, " pages"]

    def take(self, rows: slice | Integer[np.ndarray, " rows"]) -> "FeatureBatch":
        """Select pages by row."""
        keys = self.keys[rows] if isinstance(rows, slice) else [self.keys[row] for row in rows]
        return FeatureBatch(keys, **{name: getattr(self, name)[rows] for name in LAYOUT})


_BLOCK = 128
"""Number of pages per write."""

LAYOUT: dict[str, tuple[tuple[int, ...], str]] = {
    "regions": ((REGIONS, DIMENSION), "f4"),
    "boxes": ((REGIONS, 4), "f4"),
    "scores": ((REGIONS,), "f4"),
    "classes": ((REGIONS,), "i2"),
    "source": ((REGIONS,), "i1"),
    "n_regions": ((), "i2"),
}


def write_features(
    path: Path,
    batches: Iterable[FeatureBatch],
    attributes: Mapping[str, str],
    half: bool = False,  # noqa: FBT001, FBT002 - the file's one switch
    pages: int | None = None,
) -> int:
    """Write a feature file atomically and return its number of pages.

    Keys must be distinct. Without ``pages``, the number of pages, all batches are held in memory to
    count them. Each dataset is contiguous, so that readers can map it into memory. The attribute
    ``complete`` is set last.

    Raises:
        ValueError: If there are more or fewer than ``pages``.
        OSError: If the disk is full or cannot be written.
    """
    if pages is None:
        batches = list(batches)
        pages = sum(len(batch.keys) for batch in batches)
    with (
        atomic_write(path) as temporary,
        _DiskFile(temporary, "w+") as disk,
        # Datasets of 64 KiB or more begin on a memory page.
        h5py.File(disk, "w", alignment_threshold=2**16, alignment_interval=4096) as file,
    ):
        file.attrs["format"] = FORMAT
        for name, value in attributes.items():
            file.attrs[name] = value
        for name, (shape, dtype) in LAYOUT.items():
            stored = "f2" if half and name == "regions" else dtype
            file.create_dataset(name, (pages, *shape), stored)
        keys = file.create_dataset("keys", (pages,), h5py.string_dtype())
        count = total = 0
        for block in _blocks(batches):
            total = count + len(block.keys)
            if total > pages:
                break
            for name in LAYOUT:  # NumPy converts many times faster than HDF5
                values = getattr(block, name).astype(file[name].dtype, copy=False)
                file[name][count:total] = values
            keys[count:total] = np.array(block.keys, dtype=object)
            count = total
            disk.check()
        if total != pages:
            raise ValueError(f"{total} pages or more, expected {pages}")
        file.attrs["complete"] = True
    return pages


class _DiskFile(io.FileIO):
    """A file that hides write errors from HDF5, which crashes on closing a file after one.

    After an error, writes are dropped and missing bytes are read as zeros. :meth:`check` and the
    end of the context raise the error.
    """

    _error: OSError | None = None
    _size = 0

    def __exit__(self, *_: object) -> None:
        """Close the file and raise its error, instead of an error of HDF5."""
        self.close()
        self.check()

    def check(self) -> None:
        """Raise the stored error, if any."""
        if self._error is not None:
            raise self._error

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position; the end is the one that the file would have without errors."""
        if whence == io.SEEK_END:
            return super().seek(self._size + offset)
        return super().seek(offset, whence)

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer."""
        view = memoryview(buffer).cast("B")
        count = super().readinto(view) or 0
        view[count:] = bytes(len(view) - count)
        return len(view)

    def write(self, data: Any) -> int:
        """Write all bytes or store the error."""
        view = memoryview(data).cast("B")
        size = len(view)
        self._size = max(self._size, self.tell() + size)
        try:
            while view and self._error is None:
                view = view[super().write(view) :]
        except OSError as error:
            self._error = error
        return size

    def truncate(self, size: int | None = None) -> int:
        """Set the size of the file or store the error."""
        self._size = self.tell() if size is None else size
        try:
            if self._error is None:
                super().truncate(size)
        except OSError as error:
            self._error = error
        return self._size


def _blocks(batches: Iterable[FeatureBatch]) -> Iterator[FeatureBatch]:
    """Regroup batches into blocks of 128 pages, so that batch sizes do not change the file."""
    rest: list[FeatureBatch] = []
    for batch in batches:
        rest.append(batch)
        count = sum(len(part.keys) for part in rest)
        if count >= _BLOCK:
            joined, count = _join(rest), count - count % _BLOCK
            for start in range(0, count, _BLOCK):
                yield joined.take(slice(start, start + _BLOCK))
            rest = [joined.take(slice(count, None))]
    yield from [_join(rest)] if rest else []


def _join(batches: list[FeatureBatch]) -> FeatureBatch:
    return FeatureBatch(
        [key for batch in batches for key in batch.keys],
        **{name: np.concatenate([getattr(b, name) for b in batches]) for name in LAYOUT},
    )


class Features:
    """A feature file open for reading. Made by :func:`open_features`."""

    def __init__(self, path: Path, file: h5py.File) -> None:
        self.path = path
        self.attributes = _attributes(path, file)
        self.keys = _keys(path, file)
        self._data = {name: _dataset(path, file, name, len(self.keys)) for name in LAYOUT}

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def dataset(self) -> Any:
        """``/regions``, unread: a memory map if it is contiguous, else an HDF5 dataset.

        Both have ``shape`` and ``dtype``, and accept slices and ascending row numbers.
        """
        return self._data["regions"]

    def column(self, name: str, rows: slice) -> Shaped[np.ndarray, "pages ..."]:
        """Read some rows of one dataset of :data:`LAYOUT`."""
        return np.array(self._data[name][rows])

    def read(self, rows: slice | Integer[np.ndarray, " rows"]) -> FeatureBatch:
        """Read pages in the order of ``rows``."""
        numbers = np.arange(len(self.keys))[rows]
        order, inverse = np.unique(numbers, return_inverse=True)
        index: Any = order if len(order) else slice(0)
        if len(order) and int(order[-1] - order[0]) < 4 * len(order):
            # Reading one range is much faster than reading single rows.
            index, inverse = slice(order[0], order[-1] + 1), numbers - order[0]
        values = {name: np.asarray(data[index])[inverse] for name, data in self._data.items()}
        return FeatureBatch([self.keys[number] for number in numbers], **values)

    def batches(self, size: int = 256) -> Iterator[FeatureBatch]:
        """Yield all pages, ``size`` at a time."""
        for start in range(0, len(self), size):
            yield self.read(slice(start, start + size))


@contextmanager
def open_features(path: Path) -> Iterator[Features]:
    """Open a feature file for reading; links and other files are never followed.

    Raises:
        FormatError: If the file is missing, damaged, unfinished or of another format or shape; has
            links, external storage, virtual datasets, filters or unusual types; or if a dataset
            has fewer bytes than its shape requires.
    """
    if not path.is_file():
        problem = "a folder or device, expected a file" if path.exists() else "no such file"
        raise FormatError(path, problem)
    try:
        file = h5py.File(path, "r", locking=False)  # network file systems may have no locks
    except OSError as error:
        raise FormatError(path, f"not a readable HDF5 file ({error})") from None
    with file:
        try:
            features = Features(path, file)
        except _H5PY_ERRORS as error:
            problem = " ".join(str(error).split())
            raise FormatError(path, f"torn or not a feature file ({problem:.200})") from None
        yield features


_H5PY_ERRORS = (
    OSError, RuntimeError, KeyError, ValueError, TypeError, MemoryError, OverflowError,
)  # fmt: skip
"""Exceptions raised by h5py on a damaged or hostile file."""


def _attributes(path: Path, file: h5py.File) -> dict[str, Any]:
    """Read the root attributes, each one text or number, and check format and completeness."""
    attributes = dict(file.attrs)
    for name, value in attributes.items():
        if not isinstance(value, str | np.generic) or isinstance(value, np.void):
            raise FormatError(path, f"attribute {name!r:.60}: expected one text or number")
    version = attributes.get("format")
    if version != FORMAT:
        raise FormatError(path, f"attribute format is {version!r:.60}, expected {FORMAT!r}")
    if not attributes.get("complete"):
        raise FormatError(path, "attribute complete is not set: the file is unfinished")
    return attributes


def _keys(path: Path, file: h5py.File) -> list[str]:
    keys: list[str] = _stored(path, file, "keys").asstr()[:].tolist()
    if len(set(keys)) != len(keys):
        raise FormatError(path, "/keys: a key is in it twice")
    strange = next((key for key in keys if not key or not key.isprintable()), None)
    if strange is not None:
        raise FormatError(path, f"/keys: {strange!r:.60}, expected printable text")
    return keys


def _dataset(path: Path, file: h5py.File, name: str, pages: int) -> Any:
    """Return a dataset, unread: a memory map if it is contiguous."""
    data, expected = _stored(path, file, name), (pages, *LAYOUT[name][0])
    if data.shape != expected:
        raise FormatError(path, f"/{name}: shape {data.shape}, expected {expected}")
    offset = data.id.get_offset()
    if offset is None or not data.size:
        return data
    with os.fdopen(os.dup(file.id.get_vfd_handle()), "rb") as raw:
        return np.memmap(raw, data.dtype, "r", offset, data.shape)


def _stored(path: Path, file: h5py.File, name: str) -> h5py.Dataset:
    """Return a dataset of plain values, all of them stored in this file."""
    if not isinstance(file.get(name, getlink=True), h5py.HardLink):
        raise FormatError(path, f"/{name}: missing, or a soft or external link")
    data = file[name]
    if not isinstance(data, h5py.Dataset) or data.external or data.is_virtual or not data.shape:
        raise FormatError(path, f"/{name}: not a dataset stored in this file")
    stored_type = data.id.get_type()
    if name == "keys":
        expected, matches = "strings", h5py.check_string_dtype(data.dtype) is not None
    else:  # HDF5 has floats that NumPy lacks
        expected = "floats" if LAYOUT[name][1][0] == "f" else "integers"
        matches = data.dtype.kind == expected[0] and h5py.h5t.py_create(data.dtype) == stored_type
    if not matches:
        raise FormatError(path, f"/{name}: values are {data.dtype}, expected {expected}")
    if data.id.get_create_plist().get_nfilters():
        raise FormatError(path, f"/{name}: packed. Unpack it with h5repack -f NONE")
    # A string of variable length is stored as length, address and number in a heap.
    item = 16 if data.dtype == object else stored_type.get_size()
    sizes = {item * math.prod(data.chunks or ())}
    if data.chunks:  # HDF5 would read values behind the end of a chunk that is too short
        data.id.chunk_iter(lambda chunk: sizes.add(chunk.size))
    size = data.id.get_storage_size()
    required = math.prod(data.shape) * item
    if required > size or size > path.stat().st_size or len(sizes) > 1:
        chunks = f" in chunks of {sorted(sizes)[:3]}" if data.chunks else ""
        raise FormatError(path, f"/{name}: shape {data.shape}, but {size} bytes{chunks} stored")
    return data


def captures_hash(keys: Iterable[str], screenshots: Mapping[str, str | None]) -> str:
    """Hash the SHA-256 of the screenshots of some pages; the order of ``keys`` does not matter."""
    lines = sorted(f"{key}\t{screenshots.get(key)}\n" for key in keys)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def check_captures(
    path: Path,
    keys: Iterable[str],
    attributes: Mapping[str, Any],
    screenshots: Mapping[str, str | None],
) -> bool:
    """Check that features were made from the current screenshots of the captures.

    Returns:
        Whether the file could be checked; files of earlier versions have no hash.

    Raises:
        FormatError: If they were made from others, for example before another crawl.
    """
    if CAPTURES not in attributes:
        return False
    stored, expected = attributes[CAPTURES], captures_hash(keys, screenshots)
    if not isinstance(stored, str) or stored != expected:
        raise FormatError(
            path,
            f"not made from the screenshots of these captures: {CAPTURES} is {stored!r:.20}…, "
            f"expected {expected:.16}…. Give detect --force to start over",
        )
    return True
