"""Facts of the benchmarks as they were published: names, sizes, captions an image, folds, noise."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

NowName = Literal["now100k_precomp", "h5100k_precomp"]
"""The two folders under which NoW was published; both mean the same."""
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
        each: Captions of an image.
        test_stem: What the names of the test split's files begin with.
        web: Whether its training pairs are noisy as they were found; otherwise noise is injected.
    """

    title: str
    folder: PrecompName
    test_images: int
    each: int
    test_stem: str = "test"
    captions_suffix: str = ".txt"
    web: bool = False

    @property
    def test_size(self) -> tuple[int, int]:
        """Images and captions of the test split."""
        return self.test_images, self.each * self.test_images


BENCHMARKS: Mapping[FieldTrack, Benchmark] = {
    "flickr30k": Benchmark("Flickr30K", "f30k_precomp", 1000, 5),
    "coco": Benchmark("MS-COCO", "coco_precomp", 5000, 5, test_stem="testall"),
    "cc152k": Benchmark("CC152K", "cc152k_precomp", 1000, 1, captions_suffix=".tsv", web=True),
}


@dataclass(frozen=True, slots=True)
class BoardFacts:
    """Subject of one board of the leaderboard.

    Attributes:
        about: One sentence on its data.
        test_size: Images and captions of the published test split.
        protocol: How its figures are averaged, if they are.
        folds: Number of folds that they are averaged over.
    """

    title: str
    about: str
    test_size: tuple[int, int]
    protocol: str = ""
    folds: int = 1


def _now(tokenizer: str, cut: str) -> BoardFacts:
    about = f"Screenshots of web pages and their meta descriptions, tokenised by {cut}."
    return BoardFacts(f"NoW {TOKENIZER_TITLES[tokenizer]}", about, (NOW_TEST, NOW_TEST))


_FLICKR30K, _COCO, _CC152K = (BENCHMARKS[track] for track in get_args(FieldTrack))
_FIVE_EACH = "Photographs with five captions each; "

BOARD_FACTS: Mapping[BoardName, BoardFacts] = {
    "jieba": _now("jieba", "Jieba"),
    "bpe": _now("bpe", "BPE"),
    "bert": _now("bert", "BERT\N{RIGHT SINGLE QUOTATION MARK}s WordPiece"),
    "flickr30k": BoardFacts(
        _FLICKR30K.title,
        f"{_FIVE_EACH}training pairs are mismatched on purpose.",
        _FLICKR30K.test_size,
    ),
    "coco-1k": BoardFacts(
        f"{_COCO.title} 1K",
        f"{_FIVE_EACH}the mean over five folds of 1,000 images.",
        _COCO.test_size,
        protocol="five folds",
        folds=_COCO.test_images // FOLD,
    ),
    "coco-5k": BoardFacts(
        f"{_COCO.title} 5K", f"{_FIVE_EACH}all 5,000 test images at once.", _COCO.test_size
    ),
    "cc152k": BoardFacts(
        _CC152K.title,
        "Pictures of the web with their alt texts, mismatched as they were found.",
        _CC152K.test_size,
    ),
}
