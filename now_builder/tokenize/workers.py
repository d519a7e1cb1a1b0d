"""Cut captions into tokens, shard by shard, in worker processes, into files on disk."""

import json
import multiprocessing
import os
import signal
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from now_builder.errors import ConfigError
from now_builder.formats.captions import UNK, to_line
from now_builder.formats.shard import complete_shards
from now_builder.program.progress import Progress
from now_builder.tokenize.base import CaptionTokenizer
from now_builder.tokenize.corpus import Corpus

PARALLEL_FROM = 5_000
"""Number of captions from which worker processes save more time than their start takes."""


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

    def cut_all(self, pages: int, processes: int) -> Counter[str]:
        """Cut all shards and count the tokens of the train pool.

        Memory holds one shard a process, and the counted tokens. 0 ``processes`` means one a core,
        or only this one for a small corpus.

        Raises:
            ConfigError: If a process was killed.
        """
        train: Counter[str] = Counter()
        name = self.tokenizer.name
        with Progress(name, pages, "caption") as progress, ExitStack() as stack:
            try:
                for count, tokens in self.outcomes(pages, processes, stack):
                    train.update(tokens)
                    progress.add(count)
            except BrokenProcessPool:
                raise ConfigError(
                    f"{name}: a worker process was killed (out of memory?); run tokenize again to "
                    "go on, with fewer --processes"
                ) from None
        return train

    def outcomes(
        self, pages: int, processes: int, stack: ExitStack
    ) -> Iterator[tuple[int, Counter[str]]]:
        """Yield the result of :meth:`cut_shard` for each shard; ``stack`` ends the processes."""
        shards = complete_shards(self.corpus.captures)
        processes = processes or (1 if pages < PARALLEL_FROM else os.cpu_count() or 1)
        if processes == 1:
            return map(self.cut_shard, shards)
        # Spawned, not forked: this process may hold threads of other libraries by now.
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(processes, context, _join, (self,))
        return stack.enter_context(pool).map(_cut_shard, shards)

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
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _cut_shard(shard: int) -> tuple[int, Counter[str]]:
    return _joined[0].cut_shard(shard)
