"""Tracks and splits that can be scored, and the layout of the field's data sets."""

from typing import Literal, get_args

from now_builder.errors import ConfigError
from now_builder.formats.captions import TOKENIZERS, Tokenizer
from now_builder.formats.precomp import PrecompName

FieldTrack = Literal["flickr30k", "coco", "cc152k"]
Track = Tokenizer | FieldTrack
TRACKS: tuple[Track, ...] = (*TOKENIZERS, *get_args(FieldTrack))
ScoredSplit = Literal["dev", "test"]
Origin = Literal["rebuilt", "archive", "field", "blind", "closed"]

FOLD = 1000
"""Images per fold in MS-COCO's 1K protocol."""

LAYOUT: dict[FieldTrack, tuple[PrecompName, int]] = {
    "flickr30k": ("f30k_precomp", 5),
    "coco": ("coco_precomp", 5),
    "cc152k": ("cc152k_precomp", 1),
}
"""Folder and number of captions per image, by track."""


def check_scored_split(split: str) -> ScoredSplit:
    """Check the name of a split.

    Raises:
        ConfigError: If it is neither ``dev`` nor ``test``.
    """
    if split in ("dev", "test"):
        return "dev" if split == "dev" else "test"
    raise ConfigError(f"split: found {split!r}, expected dev or test")


def check_track(track: str) -> Track:
    """Check the name of a track.

    Raises:
        ConfigError: If there is no such track.
    """
    for name in TRACKS:
        if track == name:
            return name
    raise ConfigError(f"track: found {track!r}, expected one of {', '.join(TRACKS)}")
