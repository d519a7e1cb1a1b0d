"""Tracks and splits that can be scored, and the files of a blind round."""

from pathlib import Path
from typing import Literal, TypeVar, get_args

from pydantic import Field

from now_builder.config import Strict, build
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.benchmarks import FieldTrack
from now_builder.formats.captions import TOKENIZERS, Tokenizer
from now_builder.formats.io import read_json, sha256_of

Track = Tokenizer | FieldTrack
TRACKS: tuple[Track, ...] = (*TOKENIZERS, *get_args(FieldTrack))
ScoredSplit = Literal["dev", "test"]
SCORED_SPLITS: tuple[ScoredSplit, ...] = ("dev", "test")
Origin = Literal["rebuilt", "archive", "field", "blind", "closed"]

ROUND_FILE, TRUTH_FILE = "round.json", "blind.json"
_Name = TypeVar("_Name", bound=str)


def check_scored_split(split: str) -> ScoredSplit:
    """Return a split that can be scored, or raise a :class:`ConfigError`."""
    return _one_of(split, "split", SCORED_SPLITS)


def check_track(track: str) -> Track:
    """Return a track, or raise a :class:`ConfigError`."""
    return _one_of(track, "track", TRACKS)


def _one_of(value: str, field: str, names: tuple[_Name, ...]) -> _Name:
    for name in names:
        if value == name:
            return name
    raise ConfigError(f"{field}: found {value!r}, expected one of {', '.join(names)}")


class BlindRound(Strict):
    """``round.json``: public description of a blind round, in each of its folders.

    Attributes:
        split: split whose images and captions were permuted.
        commitment: sha256 of ``blind.json``, published before the round is closed; it proves that
            the pairing was not changed afterwards.
        scored: number of files that each person may have scored while the round is open.
        closed: whether this folder contains ``blind.json`` for everyone.
    """

    format: Literal["now-blind-round/1"] = "now-blind-round/1"
    round: str = Field(min_length=1, max_length=80)
    split: ScoredSplit
    pairs: int = Field(ge=1)
    commitment: str = Field(pattern=r"^[0-9a-f]{64}$")
    scored: int = Field(default=5, ge=1)
    closed: bool = False


class BlindTruth(Strict):
    """``blind.json``: the pairing of a blind round, which only its judge has.

    Attributes:
        secret: key of the random draw and of both orders.
        keys: key of each row in the original release.
        owner: row of each caption's image.
    """

    format: Literal["now-blind/1"] = "now-blind/1"
    round: str = Field(min_length=1, max_length=80)
    split: ScoredSplit
    secret: str
    keys: tuple[str, ...]
    owner: tuple[int, ...]


def round_of(release: Path, split: str) -> BlindRound | None:
    """Return the blind round of a split, or None for an ordinary split."""
    blind = read_round(release)
    return blind if blind is not None and blind.split == split else None


def read_round(release: Path) -> BlindRound | None:
    """Read ``round.json``; return None if there is none.

    Raises:
        FormatError: If only ``blind.json`` exists.
        ConfigError: If ``round.json`` is invalid.
    """
    path = release / ROUND_FILE
    if path.exists():
        return build(BlindRound, read_json(path, "file not found"), str(path))
    if (release / TRUTH_FILE).exists():
        raise FormatError(path, f"file not found next to {TRUTH_FILE}; `blind make` writes both")
    return None


def read_truth(release: Path, blind: BlindRound) -> BlindTruth | None:
    """Read the pairing of a blind round; return None in the participants' folder.

    Raises:
        FormatError: If the sha256 of the file differs from the commitment.
        ConfigError: If the file is invalid.
    """
    path = release / TRUTH_FILE
    if not path.exists():
        return None
    sha256 = sha256_of(path)
    if sha256 != blind.commitment:
        problem = f"not the pairing that {ROUND_FILE} commits to: found sha256 {sha256[:16]}…"
        raise FormatError(path, f"{problem}, expected {blind.commitment[:16]}…")
    return build(BlindTruth, read_json(path, "file not found"), str(path))
