"""Finished batches of an unfinished feature file: ``.npz`` files that are merged at the end."""

import json
import re
import shutil
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from now_builder.errors import ConfigError, FormatError
from now_builder.formats.features import (
    LAYOUT,
    OF_FILE,
    FeatureBatch,
    open_features,
    write_features,
)
from now_builder.formats.io import atomic_write, read_json, write_json
from now_builder.formats.release import NO_ARRAY

_BEGUN = "begun.json"
_CAUSES = ("detector", "weights_sha256", "regions", "embed", "words", "text_source")
"""Attributes that others follow from; of several differences they are named first."""
_TORN = "torn: cut off or changed since it was written"
_UNREADABLE = (*NO_ARRAY, RuntimeError, struct.error, zipfile.BadZipFile, zlib.error)
"""Errors of reading a part that is torn."""


def parts_folder(path: Path) -> Path:
    """Return the folder where finished batches wait until the whole file is written."""
    return path.with_name(f"{path.name}.parts")


def read_begun(path: Path) -> dict[str, Any]:
    """Read the attributes with which a feature file was begun; empty if none was.

    Raises:
        FormatError: If they cannot be read.
    """
    if path.exists():
        with open_features(path) as features:
            return dict(features.attributes)
    begun = parts_folder(path) / _BEGUN
    return dict(read_json(begun, "gone")) if begun.exists() else {}


def write_begun(path: Path, attributes: Mapping[str, str]) -> None:
    """Record the attributes of a feature file before its first part is there."""
    write_json(parts_folder(path) / _BEGUN, dict(attributes))


def write_part(
    path: Path,
    batch: FeatureBatch,
    attributes: Mapping[str, str],
    half: bool = False,  # noqa: FBT001, FBT002 - as in write_features
) -> None:
    """Store one finished batch beside the feature file, atomically, under its first key.

    ``head`` holds keys and attributes; the format has a checksum of each array. A part that a power
    cut removes is done again, so its name is not synced.
    """
    kinds = {name: kind for name, (_, kind) in LAYOUT.items()} | ({"regions": "f2"} if half else {})
    columns: dict[str, Any] = {
        name: getattr(batch, name).astype(kind) for name, kind in kinds.items()
    }
    head = json.dumps({"keys": batch.keys, "attributes": dict(attributes)})
    name = re.sub(r"[^\w-]", "_", batch.keys[0])
    part = parts_folder(path) / f"{name}.npz"
    with atomic_write(part, durable=False) as temporary, temporary.open("wb") as file:
        np.savez(file, head=np.array(head), **columns)


def read_parts(path: Path, prefix: str = "") -> list[Path]:
    """List the finished batches, of all first keys or of those with a prefix, in their order."""
    return sorted(parts_folder(path).glob(f"{prefix or '[!.]'}*.npz"))


def read_part(part: Path) -> tuple[FeatureBatch, dict[str, str]]:
    """Read a finished batch and its attributes."""
    keys, attributes, columns = _read_arrays(part, *LAYOUT)
    return FeatureBatch(keys, **columns), attributes


def _read_arrays(part: Path, *names: str) -> tuple[list[str], dict[str, str], dict[str, Any]]:
    try:
        with part.open("rb") as opened, np.load(opened) as file:
            head = json.loads(str(file["head"]))
            return head["keys"], head["attributes"], {name: file[name] for name in names}
    except _UNREADABLE:
        raise FormatError(part, _TORN) from None


def check_attributes(path: Path, found: Mapping[str, object], expected: Mapping[str, str]) -> None:
    """Refuse a feature file or a part of another detector or of other settings.

    Raises:
        ConfigError: If an attribute differs, other than those of a whole file.
    """
    for name in [*_CAUSES, *sorted((expected.keys() | found.keys()) - OF_FILE)]:
        if found.get(name) != expected.get(name):
            made = f"with {name} {found[name]!r:.60}" if name in found else f"without {name}"
            now = f"{expected[name]!r:.60}" if name in expected else "without"
            raise ConfigError(f"{path}: made {made}, now {now}; --force starts over")


def merge_parts(
    path: Path,
    attributes: Mapping[str, str],
    half: bool = False,  # noqa: FBT001, FBT002 - as in write_features
) -> int:
    """Write the feature file from the old file, if any, and its parts, which are then removed.

    Return the number of pages. One batch is in memory at a time.

    Raises:
        ConfigError: If the file or a part has other attributes, as of another command at work.
        FormatError: If the file or a part is torn. Nothing is changed in either case.
    """
    count = write_features(path, _old_and_new(path, attributes), attributes, half, _count(path))
    shutil.rmtree(parts_folder(path), ignore_errors=True)
    return count


def _count(path: Path) -> int:
    """Count the pages of the file as it was and of its parts, reading their keys alone."""
    keys: set[str] = set()
    if path.exists():
        with open_features(path) as features:
            keys.update(features.keys)
    for part in read_parts(path):
        keys.update(_read_arrays(part)[0])
    return len(keys)


def _old_and_new(path: Path, attributes: Mapping[str, str]) -> Iterator[FeatureBatch]:
    seen: set[str] = set()
    for batch in _stored(path, attributes):
        fresh = [number for number, key in enumerate(batch.keys) if key not in seen]
        seen.update(batch.keys)
        if fresh:
            yield batch.take(np.array(fresh))


def _stored(path: Path, attributes: Mapping[str, str]) -> Iterator[FeatureBatch]:
    if path.exists():
        with open_features(path) as features:
            check_attributes(path, features.attributes, attributes)
            yield from features.batches()
    for part in read_parts(path):
        batch, found = read_part(part)
        check_attributes(part, found, attributes)
        yield batch
