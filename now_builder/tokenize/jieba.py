"""Jieba: dictionary and HMM segmentation of Chinese, exactly as ``jieba.lcut`` does it."""

import multiprocessing
import os
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

from now_builder.formats.captions import Tokenizer
from now_builder.tokenize.base import batches

BATCH = 500
PARALLEL_FROM = 5_000
"""Captions below which starting processes costs more than it saves."""


class JiebaTokenizer:
    """Jieba's default mode with its own dictionary; it learns nothing.

    Args:
        white_space: Keep the space between words as a token.
        processes: Worker processes, 0 for one a core; a small corpus stays in this process.
    """

    name: Tokenizer = "jieba"

    def __init__(self, *, white_space: bool = True, processes: int = 0) -> None:
        self.white_space = white_space
        self.processes = processes or os.cpu_count() or 1
        kept = "white space kept as a token" if white_space else "white space dropped"
        self.source = f"jieba {version('jieba')}, default dictionary, HMM on, {kept}"

    def cut(self, captions: Iterable[str]) -> Iterator[list[str]]:
        """Cut a stream of captions; the same tokens whatever the number of processes."""
        stream = iter(captions)
        head = next(batches(stream, PARALLEL_FROM), [])
        few = len(head) < PARALLEL_FROM
        work = batches(chain(head, stream), BATCH)
        for tokens in map(_cut, work) if few or self.processes == 1 else self._in_parallel(work):
            for caption in tokens:
                yield caption if self.white_space else [item for item in caption if item.strip()]

    def _in_parallel(self, work: Iterator[list[str]]) -> Iterator[list[list[str]]]:
        # Spawned, not forked: this process may hold threads of other libraries by now.
        with multiprocessing.get_context("spawn").Pool(self.processes) as pool:
            waiting: deque[Any] = deque()
            for batch in work:
                waiting.append(pool.apply_async(_cut, (batch,)))
                if len(waiting) > 4 * self.processes:
                    yield waiting.popleft().get()
            while waiting:
                yield waiting.popleft().get()

    def save(self, path: Path) -> None:
        """Do nothing: the library and its version, named in ``source``, are enough."""


def _cut(captions: list[str]) -> list[list[str]]:
    cut = _segmenter().lcut
    return [cut(caption) for caption in captions]


@cache
def _segmenter() -> Any:
    """Load the dictionary, past jieba's cache: that is a marshal file in a shared folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # jieba 0.42 has invalid escapes and asks pkg_resources
        import jieba  # noqa: PLC0415
    segmenter = jieba.Tokenizer()
    segmenter.FREQ, segmenter.total = segmenter.gen_pfdict(segmenter.get_dict_file())
    segmenter.initialized = True
    return segmenter
