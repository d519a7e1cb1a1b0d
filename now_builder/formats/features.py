"""Region features: one HDF5 file with 36 regions for each page, and its crash-safe parts."""

import io
import json
import math
import re
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from jaxtyping import Float, Integer, Shaped

from now_builder.errors import FormatError
from now_builder.formats.atomic import replacing

FORMAT = "now-features/1"
REGIONS, DIMENSION = 36, 768

SOURCES = ("detector", "relaxed", "grid", "dom", "external")
"""Meaning of the values of ``/source``."""


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
        n_regions: How many rows come from the detector proper.
    """

    keys: list[str]
    regions: Float[np.ndarray, "pages 36 768"]
    boxes: Float[np.ndarray, "pages 36 4"]
    scores: Float[np.ndarray, "pages 36"]
    classes: Integer[np.ndarray, "pages 36"]
    source: Integer[np.ndarray, "pages 36"]
    n_regions: Integer[np.ndarray, " pages"]

    def take(self, rows: Integer[np.ndarray, " rows"]) -> "FeatureBatch":
        """Select pages by their place in the batch."""
        return FeatureBatch(
            [self.keys[row] for row in rows],
            **{name: getattr(self, name)[rows] for name in _LAYOUT},
        )


_CHECKSUM = 4
_BLOCK = 128
"""Rows written at once."""

_LAYOUT: dict[str, tuple[tuple[int, ...], str]] = {
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
) -> int:
    """Write a whole feature file atomically; the attribute ``complete`` is set last.

    Args:
        path: The HDF5 file.
        batches: Streamed; keys must not repeat.
        attributes: Root attributes: ``detector``, ``weights_sha256`` …
        half: Store regions as float16.

    Returns:
        The number of pages.
    """
    with replacing(path) as temporary:
        with h5py.File(temporary, "w") as file:
            file.attrs["format"] = FORMAT
            for name, value in attributes.items():
                file.attrs[name] = value
            _create(file, half=half)
            count = 0
            for block in _blocks(batches):
                count = _append(file, block, count)
            file.attrs["complete"] = True
        return count


def _create(file: h5py.File, *, half: bool) -> None:
    for name, (shape, kind) in _LAYOUT.items():
        rows = max(1, min(8, 2**20 // (4 * int(np.prod(shape, initial=1)))))
        chunk = rows if name == "regions" else 128
        file.create_dataset(
            name,
            shape=(0, *shape),
            maxshape=(None, *shape),
            chunks=(chunk, *shape),
            dtype="f2" if half and name == "regions" else kind,
        )
    file.create_dataset("keys", (0,), maxshape=(None,), chunks=(128,), dtype=h5py.string_dtype())


def _blocks(batches: Iterable[FeatureBatch]) -> Iterator[FeatureBatch]:
    """Regroup pages: few large writes, and bytes that do not tell how pages were batched."""
    held: list[FeatureBatch] = []
    for batch in batches:
        held.append(batch)
        count = sum(len(one.keys) for one in held)
        if count >= _BLOCK:
            whole, count = _join(held), count - count % _BLOCK
            for start in range(0, count, _BLOCK):
                yield _rows(whole, slice(start, start + _BLOCK))
            held = [_rows(whole, slice(count, None))]
    yield from [_join(held)] if held else []


def _join(batches: list[FeatureBatch]) -> FeatureBatch:
    return FeatureBatch(
        [key for batch in batches for key in batch.keys],
        **{name: np.concatenate([getattr(b, name) for b in batches]) for name in _LAYOUT},
    )


def _rows(batch: FeatureBatch, rows: slice) -> FeatureBatch:
    return FeatureBatch(batch.keys[rows], **{name: getattr(batch, name)[rows] for name in _LAYOUT})


def _append(file: h5py.File, batch: FeatureBatch, count: int) -> int:
    total = count + len(batch.keys)
    columns = {name: getattr(batch, name) for name in _LAYOUT}
    for name, values in {**columns, "keys": np.array(batch.keys, dtype=object)}.items():
        data = file[name]
        data.resize(total, axis=0)
        # numpy converts many times faster than HDF5 does
        data[count:total] = values if name == "keys" else values.astype(data.dtype, copy=False)
    return total


class Features:
    """A feature file open for reading. Made by :func:`open_features`.

    Attributes:
        keys: In file order.
        attributes: The root attributes.
    """

    def __init__(self, path: Path, file: h5py.File) -> None:
        self.path = path
        self._file = file
        self.attributes: dict[str, Any] = dict(file.attrs)
        self.keys = _keys(path, file)
        self._data = {name: _dataset(path, file, name) for name in _LAYOUT}
        for name, (shape, kind) in _LAYOUT.items():
            if self._data[name].dtype.kind != np.dtype(kind).kind:
                raise FormatError(
                    path, f"/{name}: values are {self._data[name].dtype}, expected {kind}"
                )
            found = self._data[name].shape
            if found != (len(self.keys), *shape):
                raise FormatError(
                    path, f"/{name}: shape {found}, expected {(len(self.keys), *shape)}"
                )

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def dataset(self) -> h5py.Dataset:
        """``/regions``, unread."""
        return self._data["regions"]

    def column(self, name: str, rows: slice) -> Shaped[np.ndarray, "pages ..."]:
        """Read one dataset of some pages and none of their embeddings.

        Args:
            name: ``boxes``, ``scores``, ``classes``, ``source``, ``n_regions`` or ``regions``.
            rows: Which pages.

        Raises:
            FormatError: If they cannot be read.
        """
        try:
            values: Shaped[np.ndarray, "pages ..."] = self._data[name][rows]
        except (OSError, RuntimeError) as error:
            raise FormatError(self.path, f"torn: /{name} cannot be read ({error})") from None
        return values

    def read(self, rows: slice | Integer[np.ndarray, " rows"]) -> FeatureBatch:
        """Read some rows, in the order asked for.

        Args:
            rows: A slice, or row numbers in any order.
        """
        numbers = np.arange(len(self.keys))[rows]
        order = np.unique(numbers)
        back = np.searchsorted(order, numbers)
        if _dense(order):  # one read of a range is far quicker than many of single rows
            index: Any = slice(order[0], order[-1] + 1)
            back = numbers - order[0]
        else:
            index = order
        try:
            values = {
                name: data[index][back] if len(order) else data[:0]
                for name, data in self._data.items()
            }
        except (OSError, RuntimeError) as error:
            raise FormatError(self.path, f"torn: rows cannot be read ({error})") from None
        return FeatureBatch([self.keys[number] for number in numbers], **values)

    def batches(self, size: int = 256) -> Iterator[FeatureBatch]:
        """Read the whole file, ``size`` pages at a time."""
        for start in range(0, len(self), size):
            yield self.read(slice(start, start + size))


def _dense(order: Integer[np.ndarray, " rows"]) -> bool:
    return len(order) > 0 and int(order[-1] - order[0]) < 4 * len(order)


@contextmanager
def open_features(path: Path) -> Iterator[Features]:
    """Open a feature file for reading, refusing anything that points outside itself.

    Raises:
        FormatError: If it is missing, torn, incomplete, of another format or shape, or holds
            links, external storage, virtual datasets or unusual filters.
    """
    if not path.is_file():
        raise FormatError(path, "no such file")
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise FormatError(path, f"not a readable HDF5 file ({error})") from None
    with file:
        try:
            features = _checked(path, file)
        except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
            problem = " ".join(str(error).split())
            raise FormatError(path, f"torn or not a feature file ({problem:.200})") from None
        yield features


def _checked(path: Path, file: h5py.File) -> Features:
    found = file.attrs.get("format")
    if not isinstance(found, str) or found != FORMAT:
        raise FormatError(path, f"attribute format is {found!r:.60}, expected {FORMAT!r}")
    complete = file.attrs.get("complete", False)
    if not (isinstance(complete, bool | np.bool_) and complete):
        raise FormatError(path, "attribute complete is not set: the file is unfinished")
    return Features(path, file)


_CHUNK = 64 * 2**20
_DEFLATE, _SHUFFLE, _FLETCHER32 = 1, 2, 3
_GAIN = 1100
"""More than deflate can ever gain: what claims more is not stored, it is filled in."""


def _keys(path: Path, file: h5py.File) -> list[str]:
    data = _dataset(path, file, "keys")
    if h5py.check_string_dtype(data.dtype) is None or data.ndim != 1:
        raise FormatError(path, f"/keys: {data.dtype} {data.shape}, expected a list of strings")
    keys = [str(key) for key in data.asstr()[:]]
    if len(set(keys)) != len(keys):
        raise FormatError(path, "/keys: a key is in it twice")
    strange = next((key for key in keys if not key or not key.isprintable()), None)
    if strange is not None:
        raise FormatError(path, f"/keys: {strange!r:.60}, expected printable text")
    return keys


def _dataset(path: Path, file: h5py.File, name: str) -> h5py.Dataset:
    """Take a dataset by a hard link only, stored inside the file, with plain filters."""
    if not isinstance(file.get(name, getlink=True), h5py.HardLink):
        raise FormatError(path, f"/{name}: missing, or a soft or external link")
    data = file[name]
    if not isinstance(data, h5py.Dataset) or data.external or data.is_virtual:
        raise FormatError(path, f"/{name}: not a dataset stored in this file")
    created = data.id.get_create_plist()
    filters = {created.get_filter(number)[0] for number in range(created.get_nfilters())}
    if not filters <= {_DEFLATE, _SHUFFLE, _FLETCHER32}:
        raise FormatError(path, f"/{name}: filters {sorted(filters)}, expected gzip at most")
    item = data.dtype.itemsize
    chunk = math.prod(data.chunks or (1,)) * item
    if chunk > _CHUNK:
        raise FormatError(path, f"/{name}: chunks of {chunk} bytes, expected at most 64 MiB")
    claimed, stored = math.prod(data.shape or (0,)) * item, data.id.get_storage_size()
    if claimed > stored * (_GAIN if _DEFLATE in filters and name != "keys" else 1):
        raise FormatError(path, f"/{name}: shape {data.shape}, but only {stored} bytes are stored")
    return data


def parts_folder(path: Path) -> Path:
    """Where finished batches wait until the whole file is written."""
    return path.with_name(f"{path.name}.parts")


def write_part(
    path: Path,
    batch: FeatureBatch,
    attributes: Mapping[str, str],
    half: bool = False,  # noqa: FBT001, FBT002 - as in write_features
) -> None:
    """Store one finished batch beside the feature file, atomically, under its first key.

    A part is a line of JSON, the arrays as they are in memory, and a checksum of all that. One that
    a power cut takes away is done again, so its name is not synced.
    """
    regions = "<f2" if half else "<f4"
    head = json.dumps({"keys": batch.keys, "attributes": dict(attributes), "regions": regions})
    pieces: list[Any] = [f"{head}{' ' * (-(len(head) + 1) % 64)}\n".encode()]
    for name, (_, kind) in _LAYOUT.items():
        stored = regions if name == "regions" else f"<{kind}"
        pieces.append(np.ascontiguousarray(getattr(batch, name), stored).data)
    checksum = 0
    for piece in pieces:
        checksum = zlib.crc32(piece, checksum)
    name = re.sub(r"[^\w-]", "_", batch.keys[0])
    with (
        replacing(parts_folder(path) / f"{name}.part", durable=False) as temporary,
        temporary.open("wb", buffering=0) as file,
    ):
        for piece in [*pieces, checksum.to_bytes(_CHECKSUM, "little")]:
            _write_all(file, memoryview(piece).cast("B"))


def _write_all(file: io.FileIO, content: memoryview) -> None:
    while content:
        content = content[file.write(content) :]


def read_parts(path: Path, prefix: str = "") -> list[Path]:
    """List the finished batches of an unfinished run, in the order of their keys.

    Args:
        path: The feature file.
        prefix: Of the first keys of those wanted.
    """
    return sorted(parts_folder(path).glob(f"{prefix or '[!.]'}*.part"))


def read_part(part: Path) -> tuple[FeatureBatch, dict[str, str]]:
    """Read a finished batch and its attributes.

    Raises:
        FormatError: If it is torn.
    """
    content = part.read_bytes()
    written, told = memoryview(content)[:-_CHECKSUM], content[-_CHECKSUM:]
    if not written or zlib.crc32(written) != int.from_bytes(told, "little"):
        raise FormatError(part, "torn: not as long as it was, or not what was written")
    place = content.index(b"\n") + 1
    head = json.loads(content[:place])
    columns, count = {}, len(head["keys"])
    for name, (shape, kind) in _LAYOUT.items():
        stored = np.dtype(head["regions"] if name == "regions" else f"<{kind}")
        values = np.frombuffer(content, stored, count * math.prod(shape), place)
        columns[name] = values.reshape(count, *shape)
        place += values.nbytes
    return FeatureBatch(head["keys"], **columns), head["attributes"]


def merge_parts(
    path: Path,
    attributes: Mapping[str, str],
    half: bool = False,  # noqa: FBT001, FBT002 - as in write_features
) -> int:
    """Write the feature file from the file as it was (if any) and its parts, and drop the parts.

    Streams: one batch is in memory at a time.

    Returns:
        The number of pages.

    Raises:
        FormatError: If the file or a part is torn; nothing is changed then.
    """
    count = write_features(path, _old_and_new(path), attributes, half)
    shutil.rmtree(parts_folder(path), ignore_errors=True)
    return count


def _old_and_new(path: Path) -> Iterator[FeatureBatch]:
    seen: set[str] = set()
    for batch in _stored(path):
        fresh = np.array([i for i, key in enumerate(batch.keys) if key not in seen])
        seen.update(batch.keys)
        if len(fresh) == len(batch.keys):
            yield batch
        elif len(fresh):
            yield batch.take(fresh)


def _stored(path: Path) -> Iterator[FeatureBatch]:
    if path.exists():
        with open_features(path) as features:
            yield from features.batches()
    for part in read_parts(path):
        yield read_part(part)[0]
