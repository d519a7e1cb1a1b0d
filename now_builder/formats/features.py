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
"""Attribute that identifies the screenshots of the regions: :func:`captures_hash`."""
OF_FILE = frozenset({"format", "complete", CAPTURES})
"""Attributes that do not describe the detector."""

SOURCES = ("detector", "relaxed", "grid", "dom", "external")
"""Meaning of the values of ``/source``."""


def source_name(number: int) -> str:
    """Return the name of a value of ``/source``."""
    return SOURCES[number] if 0 <= number < len(SOURCES) else f"source {number}"


@dataclass(frozen=True, slots=True)
class FeatureBatch:
    """The regions of some pages, best region first.

    Attributes:
        keys: One per page.
        regions: Visual embeddings; never zero rows.
        boxes: Image px: left, top, right, bottom.
        scores: In [0, 1], falling within the detector's own rows.
        classes: Index into the detector's class list, −1 where it has none.
        source: Index into :data:`SOURCES`.
        n_regions: How many rows come from the detector proper; its other rows fill a page up.
    """

    keys: list[str]
    regions: Float[np.ndarray, "pages 36 768"]
    boxes: Float[np.ndarray, "pages 36 4"]
    scores: Float[np.ndarray, "pages 36"]
    classes: Integer[np.ndarray, "pages 36"]
    source: Integer[np.ndarray, "pages 36"]
    n_regions: Integer[np.ndarray, " pages"]

    def take(self, rows: slice | Integer[np.ndarray, " rows"]) -> "FeatureBatch":
        """Select pages by their place in the batch."""
        keys = self.keys[rows] if isinstance(rows, slice) else [self.keys[row] for row in rows]
        return FeatureBatch(keys, **{name: getattr(self, name)[rows] for name in LAYOUT})


_BLOCK = 128
"""Rows written at once."""

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
    """Write a whole feature file atomically and return its number of pages.

    The attribute ``complete`` is set last. Keys must not repeat. ``pages`` is the number of pages;
    if it is not given, all batches are held in memory. Each dataset lies in one piece, so that
    readers map it into memory.

    Raises:
        ValueError: If there are more or fewer than ``pages``.
        OSError: If the disk is full or cannot be written.
    """
    if pages is None:
        batches = list(batches)
        pages = sum(len(batch.keys) for batch in batches)
    with (
        atomic_write(path) as temporary,
        _Disk(temporary, "w+") as disk,
        h5py.File(disk, "w", alignment_threshold=_ALIGNED, alignment_interval=4096) as file,
    ):
        file.attrs["format"] = FORMAT
        for name, value in attributes.items():
            file.attrs[name] = value
        for name, (shape, kind) in LAYOUT.items():
            stored = "f2" if half and name == "regions" else kind
            file.create_dataset(name, (pages, *shape), stored)
        keys = file.create_dataset("keys", (pages,), h5py.string_dtype())
        count = total = 0
        for block in _blocks(batches):
            total = count + len(block.keys)
            if total > pages:
                break
            for name in LAYOUT:  # NumPy converts many times faster than HDF5 does
                values = getattr(block, name).astype(file[name].dtype, copy=False)
                file[name][count:total] = values
            keys[count:total] = np.array(block.keys, dtype=object)
            count = total
            disk.check()
        if total != pages:
            raise ValueError(f"{total} pages or more, expected {pages}")
        file.attrs["complete"] = True
    return pages


class _Disk(io.FileIO):
    """A file whose errors HDF5 does not see: it crashes when it closes one that it could not write.

    Bytes written after an error are dropped, and read as zeros; the end raises the error.
    """

    _error: OSError | None = None
    _size = 0

    def __exit__(self, *_: object) -> None:
        """Close the file, and raise its error in place of what HDF5 made of it."""
        self.close()
        self.check()

    def check(self) -> None:
        """Raise the error that was kept, if there is one."""
        if self._error is not None:
            raise self._error

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a place, from the end as if all had been written."""
        if whence == io.SEEK_END:
            return super().seek(self._size + offset)
        return super().seek(offset, whence)

    def readinto(self, buffer: Any) -> int:
        """Read exactly as many bytes as fit into the buffer."""
        wanted = memoryview(buffer).cast("B")
        read = super().readinto(wanted) or 0
        wanted[read:] = bytes(len(wanted) - read)
        return len(wanted)

    def write(self, data: Any) -> int:
        """Write all bytes, or keep the error."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        self._size = max(self._size, self.tell() + size)
        try:
            while rest and self._error is None:
                rest = rest[super().write(rest) :]
        except OSError as error:
            self._error = error
        return size

    def truncate(self, size: int | None = None) -> int:
        """Set the size of the file, or keep the error."""
        self._size = self.tell() if size is None else size
        try:
            if self._error is None:
                super().truncate(size)
        except OSError as error:
            self._error = error
        return self._size


_ALIGNED = 2**16
"""Bytes from which a dataset begins on a page of memory."""


def _blocks(batches: Iterable[FeatureBatch]) -> Iterator[FeatureBatch]:
    """Regroup pages: few large writes, and bytes that do not tell how pages were batched."""
    held: list[FeatureBatch] = []
    for batch in batches:
        held.append(batch)
        count = sum(len(one.keys) for one in held)
        if count >= _BLOCK:
            whole, count = _join(held), count - count % _BLOCK
            for start in range(0, count, _BLOCK):
                yield whole.take(slice(start, start + _BLOCK))
            held = [whole.take(slice(count, None))]
    yield from [_join(held)] if held else []


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
        """``/regions``, unread: mapped into memory if it lies in one piece, else an HDF5 dataset.

        Both take slices and rising row numbers, and have ``shape`` and ``dtype``.
        """
        return self._data["regions"]

    def column(self, name: str, rows: slice) -> Shaped[np.ndarray, "pages ..."]:
        """Read one dataset of :data:`LAYOUT` of some pages, and none of the others."""
        return np.array(self._data[name][rows])

    def read(self, rows: slice | Integer[np.ndarray, " rows"]) -> FeatureBatch:
        """Read some rows, in the order asked for."""
        numbers = np.arange(len(self.keys))[rows]
        order, back = np.unique(numbers, return_inverse=True)
        index: Any = order if len(order) else slice(0)
        if len(order) and int(order[-1] - order[0]) < 4 * len(order):
            # One read of a range is far quicker than many of single rows.
            index, back = slice(order[0], order[-1] + 1), numbers - order[0]
        values = {name: np.asarray(data[index])[back] for name, data in self._data.items()}
        return FeatureBatch([self.keys[number] for number in numbers], **values)

    def batches(self, size: int = 256) -> Iterator[FeatureBatch]:
        """Read the whole file, ``size`` pages at a time."""
        for start in range(0, len(self), size):
            yield self.read(slice(start, start + size))


@contextmanager
def open_features(path: Path) -> Iterator[Features]:
    """Open a feature file for reading; nothing outside it is read.

    Raises:
        FormatError: If it is missing, torn, unfinished, of another format or shape, has links,
            external storage, virtual datasets, filters or unusual types, or claims more than it
            stores.
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
        except _TORN as error:
            problem = " ".join(str(error).split())
            raise FormatError(path, f"torn or not a feature file ({problem:.200})") from None
        yield features


_TORN = (
    OSError, RuntimeError, KeyError, ValueError, TypeError, MemoryError, OverflowError,
)  # fmt: skip
"""Errors of h5py on a file that is torn or made to do harm."""


def _attributes(path: Path, file: h5py.File) -> dict[str, Any]:
    """Read the root attributes, each one text or number, and make sure that the file is whole."""
    attributes = dict(file.attrs)
    for name, value in attributes.items():
        if not isinstance(value, str | np.generic) or isinstance(value, np.void):
            raise FormatError(path, f"attribute {name!r:.60}: expected one text or number")
    found = attributes.get("format")
    if found != FORMAT:
        raise FormatError(path, f"attribute format is {found!r:.60}, expected {FORMAT!r}")
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
    """Return a dataset of all pages, unread; mapped into memory if it lies in one piece."""
    data, expected = _stored(path, file, name), (pages, *LAYOUT[name][0])
    if data.shape != expected:
        raise FormatError(path, f"/{name}: shape {data.shape}, expected {expected}")
    offset = data.id.get_offset()
    if offset is None or not data.size:
        return data
    with os.fdopen(os.dup(file.id.get_vfd_handle()), "rb") as raw:
        return np.memmap(raw, data.dtype, "r", offset, data.shape)


_KINDS = {"f": "floats", "i": "integers", "O": "strings"}


def _stored(path: Path, file: h5py.File, name: str) -> h5py.Dataset:
    """Return a dataset that lies in this file: a hard link to plain values, all of them stored."""
    if not isinstance(file.get(name, getlink=True), h5py.HardLink):
        raise FormatError(path, f"/{name}: missing, or a soft or external link")
    data = file[name]
    if not isinstance(data, h5py.Dataset) or data.external or data.is_virtual or not data.shape:
        raise FormatError(path, f"/{name}: not a dataset stored in this file")
    kind, expected = data.id.get_type(), np.dtype(LAYOUT[name][1] if name in LAYOUT else "O").kind
    if expected == "O":
        same = h5py.check_string_dtype(data.dtype) is not None
    else:  # HDF5 has floats that NumPy lacks
        same = data.dtype.kind == expected and h5py.h5t.py_create(data.dtype) == kind
    if not same:
        raise FormatError(path, f"/{name}: values are {data.dtype}, expected {_KINDS[expected]}")
    if data.id.get_create_plist().get_nfilters():
        raise FormatError(
            path, f"/{name}: packed, expected plain values; h5repack -f NONE unpacks them"
        )
    # A text of any length is stored as its length, address and number in a heap.
    item = 16 if data.dtype == object else kind.get_size()
    sizes = {item * math.prod(data.chunks or ())}
    if data.chunks:  # of a shorter one HDF5 reads what is behind it in memory, as values
        data.id.chunk_iter(lambda chunk: sizes.add(chunk.size))
    claimed, stored = math.prod(data.shape) * item, data.id.get_storage_size()
    if claimed > stored or stored > path.stat().st_size or len(sizes) > 1:
        chunks = f" in chunks of {sorted(sizes)[:3]}" if data.chunks else ""
        raise FormatError(path, f"/{name}: shape {data.shape}, but {stored} bytes{chunks} stored")
    return data


def captures_hash(keys: Iterable[str], screenshots: Mapping[str, str | None]) -> str:
    """Identify the screenshots of some pages, in whatever order, by the sha256 of each by key."""
    lines = sorted(f"{key}\t{screenshots.get(key)}\n" for key in keys)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def check_captures(
    path: Path,
    keys: Iterable[str],
    attributes: Mapping[str, Any],
    screenshots: Mapping[str, str | None],
) -> bool:
    """Make sure that features were made from the screenshots that captures hold now.

    Returns:
        Whether the file tells; those of earlier versions do not.

    Raises:
        FormatError: If they were made from others, as after another crawl into the folder.
    """
    if CAPTURES not in attributes:
        return False
    found, expected = attributes[CAPTURES], captures_hash(keys, screenshots)
    if not isinstance(found, str) or found != expected:
        raise FormatError(
            path,
            f"not made from the screenshots of these captures: {CAPTURES} is {found!r:.20}…, of "
            f"theirs it is {expected:.16}…; detect --force starts over",
        )
    return True
