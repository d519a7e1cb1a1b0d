"""Parts of an unfinished feature file: one ``.npz`` file a batch, merged at the end."""

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
"""Attributes that determine others; messages name a difference in these first."""
_UNREADABLE = (*NO_ARRAY, RuntimeError, struct.error, zipfile.BadZipFile, zlib.error)
"""Exceptions raised on reading a damaged part."""


def parts_folder(path: Path) -> Path:
    """Return the folder of the parts of a feature file."""
    return path.with_name(f"{path.name}.parts")


def read_begun(path: Path) -> dict[str, Any]:
    """Read the attributes of a finished or unfinished feature file; empty if there is none.

    Raises:
        FormatError: If they cannot be read.
    """
    if path.exists():
        with open_features(path) as features:
            return dict(features.attributes)
    begun = parts_folder(path) / _BEGUN
    return dict(read_json(begun, "gone")) if begun.exists() else {}


def write_begun(path: Path, attributes: Mapping[str, str]) -> None:
    """Store the attributes of a feature file before its first part is written."""
    write_json(parts_folder(path) / _BEGUN, dict(attributes))


def write_part(
    path: Path,
    batch: FeatureBatch,
    attributes: Mapping[str, str],
    half: bool = False,  # noqa: FBT001, FBT002 - as in write_features
) -> None:
    """Write one batch as a part, atomically, named after its first key.

    ``head`` contains keys and attributes. The ``.npz`` format has a checksum of each array. The
    name is not synced: a part that a power cut removes is computed again.
    """
    columns: dict[str, Any] = {
        name: getattr(batch, name).astype("f2" if half and name == "regions" else dtype)
        for name, (_, dtype) in LAYOUT.items()
    }
    head = json.dumps({"keys": batch.keys, "attributes": dict(attributes)})
    name = re.sub(r"[^\w-]", "_", batch.keys[0])
    part = parts_folder(path) / f"{name}.npz"
    with atomic_write(part, durable=False) as temporary, temporary.open("wb") as file:
        np.savez(file, head=np.array(head), **columns)


def read_parts(path: Path, prefix: str = "") -> list[Path]:
    """List the parts in order of their first keys, or those whose first key has a prefix."""
    return sorted(parts_folder(path).glob(f"{prefix or '[!.]'}*.npz"))


def read_part(part: Path) -> tuple[FeatureBatch, dict[str, str]]:
    """Read the batch of a part, and its attributes."""
    keys, attributes, columns = _read_arrays(part, *LAYOUT)
    return FeatureBatch(keys, **columns), attributes


def _read_arrays(part: Path, *names: str) -> tuple[list[str], dict[str, str], dict[str, Any]]:
    try:
        with part.open("rb") as opened, np.load(opened) as file:
            head = json.loads(str(file["head"]))
            return head["keys"], head["attributes"], {name: file[name] for name in names}
    except _UNREADABLE:
        raise FormatError(part, "torn: cut off or changed since it was written") from None


def check_attributes(path: Path, stored: Mapping[str, object], expected: Mapping[str, str]) -> None:
    """Raise a ConfigError if another detector or other settings made a feature file or a part.

    Attributes that only finished files have are not compared.
    """
    for name in [*_CAUSES, *sorted((expected.keys() | stored.keys()) - OF_FILE)]:
        if stored.get(name) != expected.get(name):
            made = f"with {name} {stored[name]!r:.60}" if name in stored else f"without {name}"
            now = f"{expected[name]!r:.60}" if name in expected else "without"
            raise ConfigError(f"{path}: made {made}, now {now}. Give --force to start over")


def merge_parts(
    path: Path,
    attributes: Mapping[str, str],
    half: bool = False,  # noqa: FBT001, FBT002 - as in write_features
) -> int:
    """Merge the parts into the feature file, delete them, and return the number of pages.

    One batch is in memory at a time.

    Raises:
        ConfigError: If the file or a part has other attributes: another command may be running.
        FormatError: If the file or a part is damaged. Nothing is changed in either case.
    """
    keys: set[str] = set()
    if path.exists():
        with open_features(path) as features:
            keys.update(features.keys)
    for part in read_parts(path):
        keys.update(_read_arrays(part)[0])
    write_features(path, _distinct_pages(path, attributes), attributes, half, len(keys))
    shutil.rmtree(parts_folder(path), ignore_errors=True)
    return len(keys)


def _distinct_pages(path: Path, attributes: Mapping[str, str]) -> Iterator[FeatureBatch]:
    """Yield the pages of the file and its parts, each once: the first of equal keys."""
    seen: set[str] = set()
    for batch in _stored_batches(path, attributes):
        rows = [row for row, key in enumerate(batch.keys) if key not in seen]
        seen.update(batch.keys)
        if rows:
            yield batch.take(np.array(rows))


def _stored_batches(path: Path, attributes: Mapping[str, str]) -> Iterator[FeatureBatch]:
    if path.exists():
        with open_features(path) as features:
            check_attributes(path, features.attributes, attributes)
            yield from features.batches()
    for part in read_parts(path):
        batch, stored = read_part(part)
        check_attributes(part, stored, attributes)
        yield batch
