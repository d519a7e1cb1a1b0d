"""Tracks and splits that can be scored, and the files of a blind round: public and secret."""

from pathlib import Path
from typing import Literal, get_args

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


def check_scored_split(split: str) -> ScoredSplit:
    """Return a split that can be scored, or raise a :class:`ConfigError`."""
    if split in ("dev", "test"):
        return "dev" if split == "dev" else "test"
    raise ConfigError(f"split: found {split!r}, expected dev or test")


def check_track(track: str) -> Track:
    """Return a track of that name, or raise a :class:`ConfigError`."""
    for name in TRACKS:
        if track == name:
            return name
    raise ConfigError(f"track: found {track!r}, expected one of {', '.join(TRACKS)}")


class BlindRound(Strict):
    """``round.json``: public description of a blind round, in each of its folders.

    Attributes:
        split: split whose images and captions were permuted.
        commitment: sha256 of ``blind.json``, which only the judge has until the round is
            closed; it proves that the pairing was not changed afterwards.
        scored: number of files that a person may have scored while the round is open.
        closed: whether ``blind.json`` has been published in this folder.
    """

    format: Literal["now-blind-round/1"] = "now-blind-round/1"
    round: str = Field(min_length=1, max_length=80)
    split: ScoredSplit
    pairs: int = Field(ge=1)
    commitment: str = Field(pattern=r"^[0-9a-f]{64}$")
    scored: int = Field(default=5, ge=1)
    closed: bool = False


class BlindTruth(Strict):
    """``blind.json``: the pairing of a blind round, known only to its judge.

    Attributes:
        secret: key of the draw and of both orders.
        keys: key of each row in the release that the round was drawn from.
        owner: row of each caption's image.
    """

    format: Literal["now-blind/1"] = "now-blind/1"
    round: str = Field(min_length=1, max_length=80)
    split: ScoredSplit
    secret: str
    keys: tuple[str, ...]
    owner: tuple[int, ...]


def round_of(release: Path, split: str) -> BlindRound | None:
    """Return the blind round of a split, read by :func:`read_round`; None for an ordinary split."""
    found = read_round(release)
    return found if found is not None and found.split == split else None


def read_round(release: Path) -> BlindRound | None:
    """Read ``round.json``; None if there is none.

    Raises:
        FormatError: If there is a ``blind.json`` without it.
        ConfigError: If it is invalid.
    """
    path = release / ROUND_FILE
    if path.exists():
        return build(BlindRound, _tree(path), str(path))
    if (release / TRUTH_FILE).exists():
        raise FormatError(path, f"no such file beside {TRUTH_FILE}; `blind make` writes both")
    return None


def read_truth(release: Path, blind: BlindRound) -> BlindTruth | None:
    """Read the pairing of a blind round; None in the participants' folder.

    Raises:
        FormatError: If its sha256 is not the commitment.
        ConfigError: If the file is invalid.
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
