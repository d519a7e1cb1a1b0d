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
_ROUND_FILES = ("round.json", "blind.json")
"""Files of a blind round. They change when it closes, so they are not in the manifest."""


def verify(release: Path) -> list[str]:
    """Return the problems of a release, one line each; empty if it is intact."""
    manifest = read_manifest(release)
    problems = check_files(release)
    if problems:
        return problems
    try:
        pairs = _read_pairs(release)
        rejects = sum(1 for _ in stream_rejects(release))
    except NowError as error:
        return [str(error)]
    expected = sum(manifest.rejects.values())
    if rejects != expected:
        problems.append(f"rejects.parquet: {rejects} rows, expected {expected}")
    splits, tracks = list(manifest.counts), list(manifest.fingerprints)
    if splits != tracks:
        problems.append(f"manifest.json: counts of {splits}, but fingerprints of {tracks}")
    counts = {split: len(rows.keys) for split, rows in pairs.items()}
    if counts != {split: count for split, count in manifest.counts.items() if count}:
        problems.append(f"pairs.parquet: {counts}, expected {manifest.counts}")
    if len({key for rows in pairs.values() for key in rows.keys}) != sum(counts.values()):
        problems.append("pairs.parquet: a key is in two rows")
    sites = Counter(site for rows in pairs.values() for site in rows.sites)
    problems += check_licences(release, manifest, sites)
    for split in (split for split in SPLITS if split in manifest.counts):
        rows = pairs.get(split, _SplitRows())
        if not rows.is_numbered:
            problems.append(f"pairs.parquet: pair_index of {split} is not 0, 1, 2 …")
        try:
            problems += _check_captions(release, split, manifest, rows.keys)
            problems += _check_images(release, split, rows)
        except NowError as error:
            problems.append(str(error))
    return problems


def unlisted_files(release: Path) -> list[str]:
    """Return the files of a release that its manifest does not list, without hidden files."""
    listed = {*read_manifest(release).files, "manifest.json", *_ROUND_FILES}
    paths = (path.relative_to(release) for path in sorted(release.rglob("*")) if path.is_file())
    names = (path.as_posix() for path in paths if not any(part[0] == "." for part in path.parts))
    return [name for name in names if name not in listed]


@dataclass(slots=True)
class _SplitRows:
    """Columns of a split's rows, and whether their ``pair_index`` is 0, 1, 2 and so on."""

    keys: list[str] = field(default_factory=list)
    hashes: list[str] = field(default_factory=list)
    sites: list[str] = field(default_factory=list)
    is_numbered: bool = True


def _read_pairs(release: Path) -> dict[str, _SplitRows]:
    splits = defaultdict[str, _SplitRows](_SplitRows)
    for pair in stream_pairs(release):
        rows = splits[pair.split]
        rows.is_numbered &= pair.pair_index == len(rows.keys)
        rows.keys.append(pair.key)
        rows.hashes.append(pair.regions_sha256)
        rows.sites.append(pair.site)
    return dict(splits)


def _check_captions(
    release: Path, split: Split, manifest: Manifest, keys: Sequence[str]
) -> list[str]:
    problems = []
    for tokenizer in dict.fromkeys([*manifest.tracks, *manifest.fingerprints.get(split, {})]):
        name = f"{split}_caps_{tokenizer}.txt"
        size = read_release_vocabulary(release, tokenizer).idx
        digest = hashlib.sha256()
        differs, empty, high, count = False, 0, 0, 0
        for count, (key, ids) in enumerate(stream_split_captions(release, split, tokenizer), 1):
            digest.update(fingerprint_line(key, ids))
            differs |= count > len(keys) or key != keys[count - 1]
            empty = empty or (0 if ids else count)
            high = high or (count if max(ids, default=-1) >= size else 0)
        if differs or count != len(keys):
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
            keys, hashes = pairs.keys[start : start + _BATCH], pairs.hashes[start : start + _BATCH]
            for key, sha256, page in zip(keys, hashes, regions, strict=True):
                if hash_of(page) != sha256:
                    problems.append(f"{split}.h5: regions of {key} differ from their hash")
                elif not np.isfinite(page).all():
                    problems.append(f"{split}.h5: regions of {key} are not finite")
            if matrix is not None and not np.array_equal(matrix[start : start + _BATCH], regions):
                problems.append(f"{npy.name}: rows from {start} differ from {split}.h5")
    return problems
