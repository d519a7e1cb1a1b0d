"""The captions of a crawl, shard by shard, and those of its train pool."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from now_builder.formats.shard import complete_shards, read_texts
from now_builder.formats.split import Split, SplitPlan
from now_builder.formats.text import mend


@dataclass(frozen=True, slots=True)
class Corpus:
    """The captions of a crawl, streamed shard by shard in each iteration."""

    captures: Path
    split: SplitPlan
    mended: bool = False

    def of_shard(self, shard: int) -> Iterator[tuple[str, str, Split]]:
        """Yield key, caption and pool of each page that was captured and has a caption."""
        for key, site, text in read_texts(self.captures, shard):
            caption = mend(text) if self.mended else text
            if caption:
                yield key, caption, self.split.pool_of(site, key)

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
