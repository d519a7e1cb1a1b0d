"""Stream the captions of a crawl, and cut them into tokens shard by shard, on disk."""

import json
import os
import signal
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Protocol, runtime_checkable

from now_builder.errors import ConfigError
from now_builder.formats.captions import UNK, to_line
from now_builder.formats.shard import complete_shards, read_texts
from now_builder.formats.split import Split, SplitPlan
from now_builder.program.progress import Progress

PARALLEL_FROM = 5_000
"""Minimum number of captions for worker processes; with fewer, their start takes too long."""


@runtime_checkable
class CaptionTokenizer(Protocol):
    """A tokenizer that is ready to use and can be pickled for a worker process.

    Attributes:
        source: Origin of the tokens, stored with the vocabulary.
        vocabulary: All tokens in order; ``None``: those that occur in the train pool.
    """

    name: str
    source: str
    vocabulary: list[str] | None

    def cut(self, captions: Iterable[str]) -> Iterator[list[str]]:
        """Cut a stream of captions into tokens, without start and end tokens."""
        ...

    def save(self, path: Path) -> None:
        """Write a file for cutting new text, unless the library suffices."""
        ...


@dataclass(frozen=True, slots=True)
class Corpus:
    """The captions of a crawl, streamed shard by shard in each iteration."""

    captures: Path
    split: SplitPlan

    def of_shard(self, shard: int) -> Iterator[tuple[str, str, Split]]:
        """Yield key, caption and pool of each page that was captured and has a caption."""
        for key, site, caption in read_texts(self.captures, shard):
            yield key, caption, self.split.pool_of(site, key)

    def __iter__(self) -> Iterator[tuple[str, str, Split]]:
        """Yield key, caption and pool of the pages of all shards."""
        for shard in complete_shards(self.captures):
            yield from self.of_shard(shard)


@dataclass(frozen=True, slots=True)
class TrainCaptions:
    """The captions of the train pool; can be iterated repeatedly.

    Attributes:
        total: Number of captions in the train pool.
        at_most: Maximum number of captions to yield, which limits the memory of learning.
    """

    corpus: Corpus
    total: int
    at_most: int

    def __iter__(self) -> Iterator[str]:
        """Yield the captions of the train pool, or ``at_most`` of them, evenly spread."""
        count = min(self.at_most, self.total)
        train = (caption for _, caption, pool in self.corpus if pool == "train")
        for number, caption in enumerate(train):
            if (number + 1) * count // self.total > number * count // self.total:
                yield caption


@dataclass(frozen=True, slots=True)
class ShardCutter:
    """Cut the captions of a corpus shard by shard, in this process or in workers.

    Attributes:
        parts: Folder for one file per shard: the shard's distinct tokens as JSON, then a line per
            caption with its key and the positions of its tokens in that list.
    """

    corpus: Corpus
    tokenizer: CaptionTokenizer
    parts: Path

    def cut_all(self, pages: int) -> Counter[str]:
        """Cut all shards and count the tokens of the train pool.

        A large corpus is cut by one process per core, each with one shard in memory.

        Raises:
            ConfigError: If a process was killed.
        """
        train: Counter[str] = Counter()
        shards, name = complete_shards(self.corpus.captures), self.tokenizer.name
        with Progress(name, pages, "caption") as progress, ExitStack() as stack:
            outcomes: Iterator[tuple[int, Counter[str]]] = map(self.cut_shard, shards)
            if pages >= PARALLEL_FROM:
                # Spawned, not forked: libraries may have started threads in this process.
                cores, context = len(os.sched_getaffinity(0)), get_context("spawn")
                pool = ProcessPoolExecutor(cores, context, _initialize_worker, (self,))
                outcomes = stack.enter_context(pool).map(_cut_shard, shards)
            try:
                for count, tokens in outcomes:
                    train.update(tokens)
                    progress.add(count)
            except BrokenProcessPool:
                raise ConfigError(
                    f"{name}: a worker process was killed (out of memory?). Resume with fewer "
                    "cores: taskset -c 0,1 now-builder tokenize …"
                ) from None
        return train

    def cut_shard(self, shard: int) -> tuple[int, Counter[str]]:
        """Write a shard's file; return its number of captions and its train tokens."""
        captions = list(self.corpus.of_shard(shard))
        positions: defaultdict[str, int] = defaultdict()
        positions.default_factory = positions.__len__
        train: Counter[str] = Counter()
        lines = []
        cut = self.tokenizer.cut(caption for _, caption, _ in captions)
        for (key, _, pool), tokens in zip(captions, cut, strict=True):
            if pool == "train":
                train.update(tokens)
            lines.append(f"{key}\t{to_line([positions[token] for token in tokens])}\n")
        text = "".join([json.dumps([*positions]), "\n", *lines])
        (self.parts / f"{shard:09d}").write_text(text, encoding="utf-8")
        return len(captions), train


def read_ids(parts: Path, word2idx: Mapping[str, int]) -> Iterator[tuple[str, list[str]]]:
    """Yield key and ids (as text) of each caption, from the files of all shards in order."""
    for part in sorted(parts.iterdir()):
        with part.open(encoding="utf-8") as lines:
            tokens = json.loads(next(lines))
            ids = {
                str(number): str(word2idx.get(token, UNK)) for number, token in enumerate(tokens)
            }
            ids[""] = ""
            for line in lines:
                key, _, positions = line.rstrip("\n").partition("\t")
                yield key, [ids[position] for position in positions.split(",")]


_cutter: list[ShardCutter] = []
"""The cutter of this worker process."""


def _initialize_worker(cutter: ShardCutter) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one process per core needs no threads
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops it
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    _cutter[:] = [cutter]


def _exit_with_parent() -> None:
    """Exit when the parent process ends, even if it was killed."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _cut_shard(shard: int) -> tuple[int, Counter[str]]:
    return _cutter[0].cut_shard(shard)
