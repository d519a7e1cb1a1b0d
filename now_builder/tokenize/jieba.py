"""Jieba: segmentation of Chinese by dictionary and HMM, as in ``jieba.lcut``."""

from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path

from now_builder.encode import cut_words


class JiebaTokenizer:
    """Jieba in its default mode with its own dictionary (:func:`cut_words`); learns nothing."""

    name = "jieba"
    vocabulary: list[str] | None = None

    def __init__(self, *, white_space: bool = True) -> None:
        self.white_space = white_space
        kept = "white space kept as a token" if white_space else "white space dropped"
        self.source = f"jieba {version('jieba')}, default dictionary, HMM on, {kept}"

    def cut(self, captions: Iterable[str]) -> Iterator[list[str]]:
        """Cut a stream of captions."""
        for caption in captions:
            tokens = cut_words(caption)
            yield tokens if self.white_space else [item for item in tokens if item.strip()]

    def save(self, path: Path) -> None:
        """Do nothing: library and version, named in ``source``, suffice."""
