"""What a submission is judged against: the images and captions of a split, and which belong."""

import hashlib
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from jaxtyping import Integer
from pydantic import Field

from now_builder.config import Strict, build
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.captions import TOKENIZERS, Tokenizer
from now_builder.formats.io import read_json, sha256_of
from now_builder.formats.precomp import PrecompName, captions_path, read_texts
from now_builder.formats.release import is_ours, read_image_identities, read_split_captions

FieldTrack = Literal["flickr30k", "coco", "cc152k"]
Track = Tokenizer | FieldTrack
TRACKS: tuple[Track, ...] = (*TOKENIZERS, *get_args(FieldTrack))
ScoredSplit = Literal["dev", "test"]
Origin = Literal["rebuilt", "archive", "field", "blind", "closed"]

ROUND_FILE, TRUTH_FILE = "round.json", "blind.json"
FOLD = 1000
"""Images of a fold in MS-COCO's 1K protocol."""

LAYOUT: dict[FieldTrack, tuple[PrecompName, int]] = {
    "flickr30k": ("f30k_precomp", 5),
    "coco": ("coco_precomp", 5),
    "cc152k": ("cc152k_precomp", 1),
}
"""Folder and captions of an image, by track."""


class BlindRound(Strict):
    """``round.json``: what all know of a blind round, in each of its folders.

    Attributes:
        round: Its name.
        split: The split whose images and captions were permuted.
        pairs: Of it.
        commitment: The sha256 of ``blind.json``, which only the judge has until the round is
            closed: what it says cannot be changed any more.
        closed: Whether ``blind.json`` lies in this folder for all to see.
    """

    format: Literal["now-blind-round/1"] = "now-blind-round/1"
    round: str = Field(min_length=1, max_length=80)
    split: ScoredSplit
    pairs: int = Field(ge=1)
    commitment: str = Field(pattern=r"^[0-9a-f]{64}$")
    closed: bool = False


class BlindTruth(Strict):
    """``blind.json``: what only the judge of a blind round has.

    Attributes:
        round: Its name.
        split: The split whose images and captions were permuted.
        secret: What the draw and both orders follow from.
        keys: Key, in the release that it was drawn from, of each row.
        owner: Row of each caption's image.
    """

    format: Literal["now-blind/1"] = "now-blind/1"
    round: str = Field(min_length=1, max_length=80)
    split: ScoredSplit
    secret: str
    keys: tuple[str, ...]
    owner: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gallery:
    """A split as the judge sees it.

    Attributes:
        image_keys: Of the rows.
        caption_keys: Of the columns.
        owner: Row of each caption's image.
        image_labels: Equal for identical images.
        caption_labels: Equal for identical captions.
        fingerprint: Of keys and captions in order.
        origin: ``rebuilt`` by this toolkit, the authors' ``archive``, a layout of the ``field``, or
            a ``blind`` round whose pairing only the judge has, or one that is ``closed``: its
            pairing has been published.
    """

    image_keys: list[str]
    caption_keys: list[str]
    owner: Integer[np.ndarray, " captions"]
    image_labels: Integer[np.ndarray, " images"]
    caption_labels: Integer[np.ndarray, " captions"]
    fingerprint: str
    origin: Origin

    @property
    def shape(self) -> tuple[int, int]:
        """Images, captions."""
        return len(self.image_keys), len(self.caption_keys)


def check_scored_split(split: str) -> ScoredSplit:
    """Take a split's name from outside.

    Raises:
        ConfigError: If it is not dev or test.
    """
    if split in ("dev", "test"):
        return "dev" if split == "dev" else "test"
    raise ConfigError(f"split: found {split!r}, expected dev or test")


def check_track(track: str) -> Track:
    """Take a track's name from outside.

    Raises:
        ConfigError: If there is no such track.
    """
    for name in TRACKS:
        if track == name:
            return name
    raise ConfigError(f"track: found {track!r}, expected one of {', '.join(TRACKS)}")


def read_gallery(
    release: Path, split: ScoredSplit, track: Track, *, unpaired: bool = False
) -> Gallery:
    """Read one split of a release: ours, the authors', a blind round's, or the field's layout.

    Args:
        release: Its folder.
        split: Which.
        track: Tokenizer, or data set.
        unpaired: Take what participants of a blind round get too; the gallery's ``owner`` then
            means nothing.

    Raises:
        FormatError: If a file is missing, counts disagree, or the pairing is not in this folder.
    """
    for name, layout in LAYOUT.items():
        if track == name:
            return _read_field(release, split, *layout)
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
        owner = _owner(release, truth, len(captions.keys))
    return Gallery(
        captions.keys,
        captions.keys,
        owner,
        _labels(images),
        _labels(map(tuple, captions.captions)),
        captions.fingerprint,
        origin,
    )


def round_of(release: Path, split: str) -> BlindRound | None:
    """Give the blind round whose split this is, None where it is an ordinary one.

    Raises:
        FormatError: If ``blind.json`` lies there alone.
        ConfigError: If ``round.json`` is not one of ours.
    """
    found = read_round(release)
    return found if found is not None and found.split == split else None


def read_round(release: Path) -> BlindRound | None:
    """Read ``round.json``, None where there is none.

    Raises:
        FormatError: If ``blind.json`` lies there alone.
        ConfigError: If it is not one of ours.
    """
    path = release / ROUND_FILE
    if path.exists():
        return build(BlindRound, _tree(path), str(path))
    if (release / TRUTH_FILE).exists():
        raise FormatError(path, f"no such file beside {TRUTH_FILE}; `blind make` writes both")
    return None


def read_truth(release: Path, blind: BlindRound) -> BlindTruth | None:
    """Read the pairing of a blind round, None in the folder of its participants.

    Raises:
        FormatError: If it is not what was committed to.
        ConfigError: If the file is not one of ours.
    """
    path = release / TRUTH_FILE
    if not path.exists():
        return None
    if sha256_of(path) != blind.commitment:
        raise FormatError(
            path,
            f"not the pairing that {ROUND_FILE} commits to: found sha256 {sha256_of(path)[:16]}…, "
            f"expected {blind.commitment[:16]}…",
        )
    return build(BlindTruth, _tree(path), str(path))


def _tree(path: Path) -> dict[str, object]:
    tree = read_json(path, "no such file")
    if not isinstance(tree, dict):
        raise FormatError(path, f"found a {type(tree).__name__}, expected an object")
    return tree


def _owner(release: Path, truth: BlindTruth, n_pairs: int) -> Integer[np.ndarray, " captions"]:
    if sorted(truth.owner) != list(range(n_pairs)):
        raise FormatError(
            release / TRUTH_FILE, f"owner: expected each of the rows 0 to {n_pairs - 1} once"
        )
    return np.array(truth.owner, dtype=np.int64)


def _read_field(release: Path, split: ScoredSplit, name: PrecompName, each: int) -> Gallery:
    path = captions_path(release, split, name)
    texts = read_texts(path)
    if len(texts) % each:
        raise FormatError(path, f"{len(texts)} captions, expected {each} for every image")
    images = len(texts) // each
    digest = hashlib.sha256()
    for row, text in enumerate(texts):
        digest.update(f"{row}\t{text}\n".encode())
    return Gallery(
        [str(row) for row in range(images)],
        [str(row) for row in range(len(texts))],
        np.arange(len(texts)) // each,
        np.arange(images),
        _labels(texts),
        digest.hexdigest(),
        "field",
    )


def _labels(values: Iterable[Hashable]) -> Integer[np.ndarray, " _"]:
    """Number equal values alike."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], dtype=np.int64)
