"""Check a release against itself: hashes, counts, shapes, ids, keys, images and fingerprints."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from now_builder.errors import NowError
from now_builder.formats.features import open_features
from now_builder.formats.release import (
    DATA_FOLDER,
    Manifest,
    check_files,
    fingerprint_line,
    hash_of,
    read_manifest,
    read_published_regions,
    read_release_vocabulary,
    stream_pairs,
    stream_rejects,
    stream_split_captions,
)
from now_builder.formats.split import SPLITS, Split
from now_builder.package.licences import check_licences
from now_builder.program.progress import track_progress

_BATCH = 256
_OF_A_ROUND = ("round.json", "blind.json")
"""Files of a blind round, which change when it is closed, so no manifest lists them."""


def verify(release: Path) -> list[str]:
    """Return the problems of a release, a line each; none if it is whole."""
    manifest = read_manifest(release)
    problems = check_files(release)
    if problems:
        return problems
    try:
        pairs = _read_pairs(release)
        rejects = sum(1 for _ in stream_rejects(release))
    except NowError as error:
        return [str(error)]
    if rejects != sum(manifest.rejects.values()):
        problems.append(
            f"rejects.parquet: {rejects} rows, expected {sum(manifest.rejects.values())}"
        )
    if list(manifest.counts) != list(manifest.fingerprints):
        splits = [list(manifest.counts), list(manifest.fingerprints)]
        problems.append(f"manifest.json: counts of {splits[0]}, but fingerprints of {splits[1]}")
    counted = {split: len(found.keys) for split, found in pairs.items()}
    if counted != {split: count for split, count in manifest.counts.items() if count}:
        problems.append(f"pairs.parquet: {counted}, expected {manifest.counts}")
    if len({key for found in pairs.values() for key in found.keys}) != sum(counted.values()):
        problems.append("pairs.parquet: a key is in two rows")
    sites = Counter(site for found in pairs.values() for site in found.sites)
    problems += check_licences(release, manifest, sites)
    for split in (split for split in SPLITS if split in manifest.counts):
        own = pairs.get(split, _SplitRows())
        if not own.numbered:
            problems.append(f"pairs.parquet: pair_index of {split} is not 0, 1, 2 …")
        try:
            problems += _check_captions(release, split, manifest, own.keys)
            problems += _check_images(release, split, own)
        except NowError as error:
            problems.append(str(error))
    return problems


def unlisted_files(release: Path) -> list[str]:
    """Return the files in a release's folder that its manifest does not list; not hidden ones."""
    listed = {*read_manifest(release).files, "manifest.json", *_OF_A_ROUND}
    paths = (path.relative_to(release) for path in sorted(release.rglob("*")) if path.is_file())
    names = (path.as_posix() for path in paths if not any(part[0] == "." for part in path.parts))
    return [name for name in names if name not in listed]


@dataclass(slots=True)
class _SplitRows:
    """The compared columns of a split's rows; ``numbered`` if by 0, 1, 2 and so on."""

    keys: list[str] = field(default_factory=list)
    hashes: list[str] = field(default_factory=list)
    sites: list[str] = field(default_factory=list)
    numbered: bool = True


def _read_pairs(release: Path) -> dict[str, _SplitRows]:
    found = defaultdict[str, _SplitRows](_SplitRows)
    for pair in stream_pairs(release):
        own = found[pair.split]
        own.numbered &= pair.pair_index == len(own.keys)
        own.keys.append(pair.key)
        own.hashes.append(pair.regions_sha256)
        own.sites.append(pair.site)
    return dict(found)


def _check_captions(
    release: Path, split: Split, manifest: Manifest, keys: Sequence[str]
) -> list[str]:
    problems = []
    for tokenizer in dict.fromkeys([*manifest.tracks, *manifest.fingerprints.get(split, {})]):
        name = f"{split}_caps_{tokenizer}.txt"
        size = read_release_vocabulary(release, tokenizer).idx
        digest = hashlib.sha256()
        strange, empty, high, count = False, 0, 0, 0
        for count, (key, ids) in enumerate(stream_split_captions(release, split, tokenizer), 1):
            digest.update(fingerprint_line(key, ids))
            strange |= count > len(keys) or key != keys[count - 1]
            empty = empty or (0 if ids else count)
            high = high or (count if max(ids, default=-1) >= size else 0)
        if strange or count != len(keys):
            problems.append(f"{split}_ids.txt: keys are not those of pairs.parquet")
        if digest.hexdigest() != manifest.fingerprints.get(split, {}).get(tokenizer):
            problems.append(f"{name}: fingerprint differs from the manifest's")
        if empty:
            problems.append(f"{name}: line {empty} is empty")
        if high:
            problems.append(f"{name}: line {high} has an id outside the vocabulary of {size}")
    return problems


def _check_images(release: Path, split: Split, pairs: _SplitRows) -> list[str]:
    problems = []
    npy = release / DATA_FOLDER / f"{split}_ims.npy"
    matrix = read_published_regions(npy) if npy.exists() else None
    with open_features(release / DATA_FOLDER / f"{split}.h5") as features:
        if features.keys != pairs.keys:
            return [f"{split}.h5: keys are not those of pairs.parquet"]
        if matrix is not None and matrix.shape != features.dataset.shape:
            return [f"{npy.name}: shape {matrix.shape}, expected {features.dataset.shape}"]
        starts = range(0, len(pairs.keys), _BATCH)
        for start in track_progress(starts, f"regions of {split}", "batch"):
            regions = features.dataset[start : start + _BATCH]
            own = slice(start, start + _BATCH)
            for key, sha256, page in zip(pairs.keys[own], pairs.hashes[own], regions, strict=True):
                if hash_of(page) != sha256:
                    problems.append(f"{split}.h5: regions of {key} differ from their hash")
                elif not np.isfinite(page).all():
                    problems.append(f"{split}.h5: regions of {key} are not finite")
            if matrix is not None and not np.array_equal(matrix[start : start + _BATCH], regions):
                problems.append(f"{npy.name}: rows from {start} differ from {split}.h5")
    return problems
