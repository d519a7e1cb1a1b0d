"""Check a release against itself: hashes, counts, shapes, ids, keys, images and fingerprints."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from now_builder.errors import NowError
from now_builder.formats.captions import TOKENIZERS
from now_builder.formats.features import open_features
from now_builder.formats.release import (
    DATA_FOLDER,
    Manifest,
    Pair,
    check_files,
    hash_of,
    read_manifest,
    read_pairs,
    read_published_regions,
    read_rejects,
    read_release_vocabulary,
    read_split_captions,
)
from now_builder.formats.split import SPLITS, Split

_BATCH = 256


def verify(release: Path) -> list[str]:
    """Check a release; give one line per problem, none if it is whole.

    Raises:
        FormatError: If there is no manifest, so that nothing can be checked.
    """
    manifest = read_manifest(release)
    problems = check_files(release)
    if problems:
        return problems
    try:
        pairs = read_pairs(release)
        rejects = len(read_rejects(release))
    except NowError as error:
        return [str(error)]
    if rejects != sum(manifest.rejects.values()):
        problems.append(
            f"rejects.parquet: {rejects} rows, expected {sum(manifest.rejects.values())}"
        )
    if list(manifest.counts) != list(manifest.fingerprints):
        splits = [list(manifest.counts), list(manifest.fingerprints)]
        problems.append(f"manifest.json: counts of {splits[0]}, but fingerprints of {splits[1]}")
    counted = {split: sum(pair.split == split for pair in pairs) for split in manifest.counts}
    if counted != manifest.counts or len(pairs) != sum(counted.values()):
        problems.append(f"pairs.parquet: {counted}, expected {manifest.counts}")
    if len({pair.key for pair in pairs}) != len(pairs):
        problems.append("pairs.parquet: a key is in two rows")
    for split in (split for split in SPLITS if split in manifest.counts):
        try:
            own = [pair for pair in pairs if pair.split == split]
            problems += _check_captions(release, split, manifest, own)
            problems += _check_images(release, split, own)
        except NowError as error:
            problems.append(str(error))
    return problems


def _check_captions(
    release: Path, split: Split, manifest: Manifest, pairs: Sequence[Pair]
) -> list[str]:
    problems = []
    if [pair.pair_index for pair in pairs] != list(range(len(pairs))):
        problems.append(f"pairs.parquet: pair_index of {split} is not 0, 1, 2 …")
    for tokenizer in dict.fromkeys([*TOKENIZERS, *manifest.fingerprints.get(split, {})]):
        name = f"{split}_caps_{tokenizer}.txt"
        captions = read_split_captions(release, split, tokenizer)
        if captions.keys != [pair.key for pair in pairs]:
            problems.append(f"{split}_ids.txt: keys are not those of pairs.parquet")
        if captions.fingerprint != manifest.fingerprints.get(split, {}).get(tokenizer):
            problems.append(f"{name}: fingerprint differs from the manifest's")
        size = read_release_vocabulary(release, tokenizer).idx
        largest = [max(ids, default=-1) for ids in captions.captions]
        if -1 in largest:
            problems.append(f"{name}: line {largest.index(-1) + 1} is empty")
        high = next((line for line, found in enumerate(largest, 1) if found >= size), None)
        if high is not None:
            problems.append(f"{name}: line {high} has an id outside the vocabulary of {size}")
    return problems


def _check_images(release: Path, split: Split, pairs: Sequence[Pair]) -> list[str]:
    problems = []
    npy = release / DATA_FOLDER / f"{split}_ims.npy"
    matrix = read_published_regions(npy) if npy.exists() else None
    with open_features(release / DATA_FOLDER / f"{split}.h5") as features:
        if features.keys != [pair.key for pair in pairs]:
            return [f"{split}.h5: keys are not those of pairs.parquet"]
        if matrix is not None and matrix.shape != features.dataset.shape:
            return [f"{npy.name}: shape {matrix.shape}, expected {features.dataset.shape}"]
        for start in range(0, len(pairs), _BATCH):
            regions = features.dataset[start : start + _BATCH]
            rows = pairs[start : start + _BATCH]
            for pair, page in zip(rows, regions, strict=True):
                if hash_of(page) != pair.regions_sha256:
                    problems.append(f"{split}.h5: regions of {pair.key} differ from their hash")
                elif not np.isfinite(page).all():
                    problems.append(f"{split}.h5: regions of {pair.key} are not finite")
            if matrix is not None and not np.array_equal(matrix[start : start + _BATCH], regions):
                problems.append(f"{npy.name}: rows from {start} differ from {split}.h5")
    return problems
