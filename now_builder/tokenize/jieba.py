"""Jieba: dictionary and HMM segmentation of Chinese, as ``jieba.lcut`` does it."""

import warnings
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any


class JiebaTokenizer:
    """Jieba's default mode with its own dictionary; it learns nothing."""

    name = "jieba"
    vocabulary: list[str] | None = None

    def __init__(self, *, white_space: bool = True) -> None:
        self.white_space = white_space
        kept = "white space kept as a token" if white_space else "white space dropped"
        self.source = f"jieba {version('jieba')}, default dictionary, HMM on, {kept}"

    def cut(self, captions: Iterable[str]) -> Iterator[list[str]]:
        """Cut a stream of captions; the dictionary is loaded once a process."""
        library = _library()
        for caption in captions:
            tokens = library.lcut(caption)
            yield tokens if self.white_space else [item for item in tokens if item.strip()]

    def save(self, path: Path) -> None:
        """Do nothing: the library and its version, named in ``source``, are enough."""


@cache
def _library() -> Any:
    """Load Jieba's dictionary, past its cache: that is a marshal file in a shared folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # jieba 0.42 has invalid escapes, asks pkg_resources
        import jieba  # noqa: PLC0415
    library = jieba.Tokenizer()
    library.FREQ, library.total = library.gen_pfdict(library.get_dict_file())
    library.initialized = True
    return library
