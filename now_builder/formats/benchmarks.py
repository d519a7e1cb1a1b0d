"""Facts of the published benchmarks: names, sizes, captions per image, folds, noise."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal, get_args

from now_builder.config import Strict

NowName = Literal["now100k_precomp", "h5100k_precomp"]
"""The two names of NoW's folder; both mean the same."""
NOW_NAMES: tuple[NowName, ...] = get_args(NowName)
NOW_TRAIN, NOW_DEV, NOW_TEST = 98_000, 1_000, 1_000
"""Pairs of NoW's splits."""

PrecompName = Literal["f30k_precomp", "coco_precomp", "cc152k_precomp"]
PRECOMP: tuple[PrecompName, ...] = get_args(PrecompName)
FieldTrack = Literal["flickr30k", "coco", "cc152k"]
BoardName = Literal["jieba", "bpe", "bert", "flickr30k", "coco-1k", "coco-5k", "cc152k"]
BOARDS: tuple[BoardName, ...] = get_args(BoardName)

TOKENIZER_TITLES: Mapping[str, str] = {"jieba": "Jieba", "bpe": "BPE", "bert": "BERT"}

FOLD = 1000
"""Images of a fold in MS-COCO's 1K protocol."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A data set of the field in its ``*_precomp`` layout.

    Attributes:
        each: Captions per image.
        test_stem: Beginning of the names of the test split's files.
        web: Whether its training pairs are noisy by nature; otherwise noise is injected.
    """

    title: str
    folder: PrecompName
    each: int
    test_stem: str = "test"
    captions_suffix: str = ".txt"
    web: bool = False


BENCHMARKS: Mapping[FieldTrack, Benchmark] = {
    "flickr30k": Benchmark("Flickr30K", "f30k_precomp", 5),
    "coco": Benchmark("MS-COCO", "coco_precomp", 5, test_stem="testall"),
    "cc152k": Benchmark("CC152K", "cc152k_precomp", 1, captions_suffix=".tsv", web=True),
}


class BoardFacts(Strict):
    """Subject of one board of the leaderboard, from ``boards.toml``.

    Attributes:
        about: One sentence on its data.
        test_size: Images and captions of the published test split.
        protocol: How the figures are averaged; empty if they are not.
        folds: Number of folds in the average.
    """

    title: str
    about: str
    test_size: tuple[int, int]
    protocol: str = ""
    folds: int = 1


_FACTS = tomllib.loads((files("now_builder.formats") / "boards.toml").read_text(encoding="utf-8"))
BOARD_FACTS: Mapping[BoardName, BoardFacts] = {name: BoardFacts(**_FACTS[name]) for name in BOARDS}
