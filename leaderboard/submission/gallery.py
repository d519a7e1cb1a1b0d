"""Galleries: the images and captions of a split, and their pairing."""

import hashlib
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Integer

from leaderboard.core.rounds import TRUTH_FILE, Origin, ScoredSplit, Track, read_truth, round_of
from now_builder.errors import FormatError
from now_builder.formats.benchmarks import BENCHMARKS, Benchmark
from now_builder.formats.precomp import captions_path, read_texts
from now_builder.formats.release import (
    is_ours,
    read_image_identities,
    read_manifest,
    read_split_captions,
    read_split_pairs,
)
from now_builder.formats.split import registrable_domain


@dataclass(frozen=True, slots=True)
class Gallery:
    """Images, captions and pairing of a split.

    Attributes:
        owner: row of each caption's image.
        image_labels: numbers of the images; identical images have the same number.
        caption_labels: numbers of the captions; identical captions have the same number.
        fingerprint: sha256 of keys and captions in order.
        origin: as in ``leaderboard.scoring.result.Release``.
        pages: site, caption and lang of each page of a rebuilt release, and owner (registrable
            domain) if it is split by domain; None for other origins.
    """

    image_keys: list[str]
    caption_keys: list[str]
    owner: Integer[np.ndarray, " captions"]
    image_labels: Integer[np.ndarray, " images"]
    caption_labels: Integer[np.ndarray, " captions"]
    fingerprint: str
    origin: Origin
    pages: pd.DataFrame | None = None
    release: Path = Path()

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of images and captions."""
        return len(self.image_keys), len(self.caption_keys)


def read_gallery(
    release: Path, split: ScoredSplit, track: Track, *, unpaired: bool = False
) -> Gallery:
    """Read one split of a release, the authors' archive, a blind round or the field's layout.

    With ``unpaired``, the participants' folder of a blind round can be read too; then ``owner`` is
    meaningless.

    Raises:
        FormatError: If a file is missing, counts disagree, or the folder lacks the pairing.
    """
    for name, benchmark in BENCHMARKS.items():
        if track == name:
            return _read_field(release, split, benchmark)
    blind = round_of(release, split)
    truth = read_truth(release, blind) if blind is not None else None
    if blind is not None and truth is None and not unpaired:
        raise FormatError(
            release,
            f"the {split} split of blind round {blind.round!r}, whose pairing only its judge has;"
            " pack or predict a submission and send it there, or score on dev",
        )
    captions = read_split_captions(release, split, track)
    images = read_image_identities(release, split)
    if len(images) != len(captions.keys):
        raise FormatError(
            release,
            f"{len(captions.keys)} captions and {len(images)} images in {split}, expected as many",
        )
    owner = np.arange(len(captions.keys))
    origin: Origin = "rebuilt" if is_ours(release) else "archive"
    if blind is not None:
        origin = "closed" if blind.closed else "blind"
    if truth is not None:
        if sorted(truth.owner) != owner.tolist():
            problem = f"owner: expected each of the rows 0 to {len(owner) - 1} once"
            raise FormatError(release / TRUTH_FILE, problem)
        owner = np.array(truth.owner, dtype=np.int64)
    return Gallery(
        captions.keys,
        captions.keys,
        owner,
        _number(images),
        _number(map(tuple, captions.captions)),
        captions.fingerprint,
        origin,
        _read_pages(release, split, captions.keys) if origin == "rebuilt" else None,
        release,
    )


def _read_pages(release: Path, split: ScoredSplit, keys: list[str]) -> pd.DataFrame | None:
    if not keys or not (release / "pairs.parquet").exists():
        return None
    pairs = read_split_pairs(release, split)
    if [pair.key for pair in pairs] != keys:
        problem = f"other keys than the captions of {split}, or in another order"
        raise FormatError(release / "pairs.parquet", problem)
    pages = pd.DataFrame(pairs)
    if read_manifest(release).split.by == "domain":
        pages["owner"] = pages["site"].map(registrable_domain)
    return pages


def _read_field(release: Path, split: ScoredSplit, benchmark: Benchmark) -> Gallery:
    path, each = captions_path(release, split, benchmark.folder), benchmark.each
    texts = read_texts(path)
    if len(texts) % each:
        raise FormatError(path, f"{len(texts)} captions, expected {each} for every image")
    images = len(texts) // each
    lines = "".join(f"{row}\t{text}\n" for row, text in enumerate(texts))
    return Gallery(
        [str(row) for row in range(images)],
        [str(row) for row in range(len(texts))],
        np.arange(len(texts)) // each,
        np.arange(images),
        _number(texts),
        hashlib.sha256(lines.encode()).hexdigest(),
        "field",
        release=release,
    )


def count_repeated(labels: Integer[np.ndarray, " _"]) -> int:
    """Count the items that share their label with another item."""
    return int(np.sum(np.bincount(labels)[labels] > 1))


def _number(values: Iterable[Hashable]) -> Integer[np.ndarray, " _"]:
    """Number values so that equal values get equal numbers."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], dtype=np.int64)
