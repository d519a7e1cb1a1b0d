"""Jieba: Chinese word segmentation with a dictionary and an HMM, as in ``jieba.lcut``."""

import warnings
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

_LONGEST = 4096
"""Maximum number of characters per call, more than any description has: time is quadratic."""


def cut_words(text: str) -> list[str]:
    """Cut a text as ``jieba.lcut`` does; very long texts are cut in pieces."""
    pieces = (text[start : start + _LONGEST] for start in range(0, len(text), _LONGEST))
    return [token for piece in pieces for token in jieba_library().lcut(piece)]


@cache
def jieba_library() -> Any:
    """Load Jieba's dictionary without its cache, a marshal file in a shared folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # jieba 0.42 has invalid escapes and uses pkg_resources
        import jieba
    library = jieba.Tokenizer()
    library.FREQ, library.total = library.gen_pfdict(library.get_dict_file())
    library.initialized = True
    return library


class JiebaTokenizer:
    """Jieba in its default mode with its own dictionary (:func:`cut_words`)."""

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
            yield tokens if self.white_space else [token for token in tokens if token.strip()]

    def save(self, path: Path) -> None:
        """Do nothing: the library suffices; ``source`` names its version."""
