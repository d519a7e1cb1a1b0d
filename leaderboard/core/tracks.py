"""Tracks and splits that can be scored."""

from typing import Literal, get_args

from now_builder.errors import ConfigError
from now_builder.formats.benchmarks import FieldTrack
from now_builder.formats.captions import TOKENIZERS, Tokenizer

Track = Tokenizer | FieldTrack
TRACKS: tuple[Track, ...] = (*TOKENIZERS, *get_args(FieldTrack))
ScoredSplit = Literal["dev", "test"]
SCORED_SPLITS: tuple[ScoredSplit, ...] = ("dev", "test")
Origin = Literal["rebuilt", "archive", "field", "blind", "closed"]


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
