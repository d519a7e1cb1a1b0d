"""The captions of a crawl, and their tokens: cut shard by shard into files on disk."""

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
"""Number of captions from which worker processes save more time than their start takes."""


@runtime_checkable
class CaptionTokenizer(Protocol):
    """A tokenizer that is ready to use; it can be pickled for a worker process.

    Attributes:
        source: Origin of the tokens, stored with the vocabulary.
        vocabulary: All tokens in order, or ``None`` for those that occur in the train pool.
    """

    name: str
    source: str
    vocabulary: list[str] | None

    def cut(self, captions: Iterable[str]) -> Iterator[list[str]]:
        """Cut a stream of captions into tokens, without start and end tokens."""
        ...

    def save(self, path: Path) -> None:
        """Write a file to cut new text with; nothing if the library alone can."""
        ...


@dataclass(frozen=True, slots=True)
class Corpus:
    """The captions of a crawl, streamed shard by shard in each iteration."""

    captures: Path
    split: SplitPlan

    def of_shard(self, shard: int) -> Iterator[tuple[str, str, Split]]:
        """Yield key, caption and pool of each page that was captured and has a caption."""
        for key, site, text in read_texts(self.captures, shard):
            yield key, text, self.split.pool_of(site, key)

    def __iter__(self) -> Iterator[tuple[str, str, Split]]:
        """Yield key, caption and pool of the pages of all shards."""
        for shard in complete_shards(self.captures):
            yield from self.of_shard(shard)


@dataclass(frozen=True, slots=True)
class TrainCaptions:
    """The captions of the train pool, for as many passes as a learner needs.

    Attributes:
        total: Number of captions in the train pool.
        at_most: Maximum number of captions to yield; a learner's memory grows with them.
    """

    corpus: Corpus
    total: int
    at_most: int

    def __iter__(self) -> Iterator[str]:
        """Yield the captions of the train pool, or ``at_most`` of them, evenly spread."""
        wanted = min(self.at_most, self.total)
        train = (caption for _, caption, pool in self.corpus if pool == "train")
        for number, caption in enumerate(train):
            if (number + 1) * wanted // self.total > number * wanted // self.total:
                yield caption


@dataclass(frozen=True, slots=True)
class ShardCutter:
    """Cut the captions of a corpus shard by shard, here or in worker processes.

    Attributes:
        parts: Folder for one file a shard: the shard's distinct tokens as JSON, then a line for
            each caption with its key and the positions of its tokens in that list.
    """

    corpus: Corpus
    tokenizer: CaptionTokenizer
    parts: Path

    def cut_all(self, pages: int) -> Counter[str]:
        """Cut all shards and count the tokens of the train pool.

        A large corpus is cut by one process a core. Memory holds one shard a process, and the
        counted tokens.

        Raises:
            ConfigError: If a process was killed.
        """
        train: Counter[str] = Counter()
        shards, name = complete_shards(self.corpus.captures), self.tokenizer.name
        with Progress(name, pages, "caption") as progress, ExitStack() as stack:
            outcomes: Iterator[tuple[int, Counter[str]]] = map(self.cut_shard, shards)
            if pages >= PARALLEL_FROM:
                # Spawned, not forked: this process may hold threads of other libraries by now.
                cores, context = len(os.sched_getaffinity(0)), get_context("spawn")
                pool = ProcessPoolExecutor(cores, context, _join, (self,))
                outcomes = stack.enter_context(pool).map(_cut_shard, shards)
            try:
                for count, tokens in outcomes:
                    train.update(tokens)
                    progress.add(count)
            except BrokenProcessPool:
                raise ConfigError(
                    f"{name}: a worker process was killed (out of memory?); run tokenize again to "
                    "go on, on fewer cores: taskset -c 0,1 now-builder tokenize …"
                ) from None
        return train

    def cut_shard(self, shard: int) -> tuple[int, Counter[str]]:
        """Write a shard's file; return its number of captions and its tokens in the train pool."""
        captions = list(self.corpus.of_shard(shard))
        places: defaultdict[str, int] = defaultdict()
        places.default_factory = places.__len__
        train: Counter[str] = Counter()
        lines = []
        cut = self.tokenizer.cut(caption for _, caption, _ in captions)
        for (key, _, pool), tokens in zip(captions, cut, strict=True):
            if pool == "train":
                train.update(tokens)
            lines.append(f"{key}\t{to_line([places[token] for token in tokens])}\n")
        text = "".join([json.dumps([*places]), "\n", *lines])
        (self.parts / f"{shard:09d}").write_text(text, encoding="utf-8")
        return len(captions), train


def renumbered(parts: Path, word2idx: Mapping[str, int]) -> Iterator[tuple[str, list[str]]]:
    """Yield key and ids (as text) of each caption, from the files of all shards in order."""
    for part in sorted(parts.iterdir()):
        with part.open(encoding="utf-8") as lines:
            tokens = json.loads(next(lines))
            ids = {str(place): str(word2idx.get(token, UNK)) for place, token in enumerate(tokens)}
            ids[""] = ""
            for line in lines:
                key, _, places = line.rstrip("\n").partition("\t")
                yield key, [ids[place] for place in places.split(",")]


_joined: list[ShardCutter] = []
"""The cutter of this worker process."""


def _join(cutter: ShardCutter) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # threads as well would be too many
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops it
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    _joined[:] = [cutter]


def _leave_with_parent() -> None:
    """End this process when the command ends, even if that was killed."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _cut_shard(shard: int) -> tuple[int, Counter[str]]:
    return _joined[0].cut_shard(shard)
