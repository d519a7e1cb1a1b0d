"""Pages that a run finds for words, or for a picture."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from jaxtyping import Float

from now_builder.encode import cleaned, encode
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.captions import SPECIALS, UNK
from now_builder.formats.features import open_features
from now_builder.formats.release import (
    Captions,
    Pair,
    check_split,
    data_folder,
    is_ours,
    read_split_pairs,
)
from now_builder.formats.word_vectors import count_units
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.data.pixels import PixelReader
from pc2_baseline.data.readers import Reader, make_reader
from pc2_baseline.data.release_reader import frame
from pc2_baseline.modules.reading import with_texts
from pc2_baseline.runs.hubs import nearness, with_bank
from pc2_baseline.runs.open_run import OpenRun, open_run
from pc2_baseline.training.run_folder import refuse_round

if TYPE_CHECKING:
    from now_builder.extract import RegionExtractor


@dataclass(frozen=True, slots=True)
class Hit:
    """A page with its rank, from 1, and its similarity, or its caption's, to the query."""

    rank: int
    score: float
    key: str
    url: str
    caption: str

    def __str__(self) -> str:
        """Return a line for the terminal."""
        place = f"{self.rank:>3} {self.score:>7.3f}"
        return f"{place}  {self.key}  {self.url:.60}  {self.caption:.100}"


@dataclass(frozen=True, slots=True)
class Found:
    """Output of ``pc2-baseline search``.

    Attributes:
        words: The query, or the name of the file of a picture.
        tokens: Its tokens; ``<unk>`` for those that the vocabulary lacks, unless the method reads
            their letters. None for a picture.
        split: Name of the split.
        pages: Pages of the split.
        hits: The nearest pages, or those with the nearest captions, best first.
    """

    words: str
    tokens: list[str]
    split: str
    pages: int
    hits: list[Hit]

    def __str__(self) -> str:
        """Return a line a page for the terminal."""
        query = " | ".join(self.tokens) or self.words
        head = f"{query}: {len(self.hits)} of {self.pages} pages of {self.split}"
        return "\n".join([head, *map(str, self.hits)])


class Searcher:
    """A run, open to search a split of its release. Made by :func:`open_search`.

    Attributes:
        pages: Pages of the split, by row.
    """

    def __init__(
        self,
        opened: OpenRun,
        pairs: PairSet,
        pages: list[Pair],
        weights: Path | None,
        bank: PairSet | None,
    ) -> None:
        self.pages = pages
        self._opened, self._pairs, self._weights = opened, pairs, weights
        self._bank, self._near = bank, dict[int, np.ndarray]()

    def by_words(self, words: str, count: int) -> Found:
        """Return the pages whose screenshots are nearest to words; ties go to the lower row.

        A method that reads letters reads those of words that the vocabulary lacks, too.

        Raises:
            FormatError: If the release lacks the tokenizer.
            ConfigError: If none of the words is in the vocabulary, and none is read.
        """
        release, data = self._opened.release, self._opened.record.settings.data
        reader = self._reader
        if isinstance(reader, PixelReader):
            if not words.strip():
                raise ConfigError(f"{words!r}: no words, expected some to search by")
            asked = replace(self._pairs, captions=reader.ids([words]), image_of=np.zeros(1, int))
            scores = self._opened.method.similarity(asked)[:, 0] - self._hubs(1)
            return self._found(words, [], scores, count)
        vocabulary = reader.vocabulary
        cut = encode(release, data.tokenizer, vocabulary, words)
        text = cleaned(words, vocabulary)
        reads = self._opened.record.settings.reads
        if all(number == UNK for _, number in cut) and not (reads and count_units(text)):
            raise ConfigError(f"{words!r}: no token of it is in the {data.tokenizer} vocabulary")
        asked = replace(self._pairs, image_of=np.zeros(1, int))
        if reads:
            encoder = self._opened.record.settings.model.text_encoder
            asked = with_texts(asked, [text], encoder)
        else:
            captions = Captions([words], [[id_ for _, id_ in cut]])
            query = frame(self._opened.folder, captions, vocabulary, data.max_tokens)
            asked = replace(asked, captions=query)
        scores = self._opened.method.similarity(asked)[:, 0] - self._hubs(1)
        tokens = [token if reads or id_ != UNK else SPECIALS[UNK] for token, id_ in cut]
        return self._found(words, tokens, scores, count)

    def by_picture(self, content: bytes, name: str, count: int) -> Found:
        """Return the pages whose captions are nearest to a picture, a PNG, JPEG or WebP file.

        Raises:
            FormatError: If it is no such picture.
            ConfigError: If the release's features come from other weights.
        """
        regions = self.describe(content, name)[None]
        pairs = len(self._pairs)
        texts = self._pairs.page_texts
        unread = None if texts is None else np.zeros_like(texts[:1])
        asked = replace(
            self._pairs, regions=regions, page_texts=unread, image_of=np.zeros(pairs, int)
        )
        scores = self._opened.method.similarity(asked)[0] - self._hubs(0)
        return self._found(name, [], scores, count)

    def _hubs(self, axis: Literal[0, 1]) -> Float[np.ndarray, " pages"] | float:
        """Return what is taken from the similarity of each page (1), or of each caption (0).

        It is what :func:`without_hubs` takes, but for the query's own part, which is the same for
        all.
        """
        if self._bank is None:
            return 0.0
        if axis not in self._near:
            sides = with_bank(self._pairs, self._bank)
            self._near[axis] = nearness(self._opened.method.similarity(sides[2 - axis]), axis) / 2
        return self._near[axis]

    @cached_property
    def _reader(self) -> Reader:
        settings = self._opened.record.settings
        return make_reader(self._opened.release, settings.data, settings.model)

    @cached_property
    def describe(self) -> "Callable[[bytes, str], np.ndarray] | RegionExtractor":
        """The detector that described the pages of the split, or what a network of pixels does."""
        if isinstance(self._reader, PixelReader):
            return self._reader.pack
        from now_builder.extract import RegionExtractor

        path = data_folder(self._opened.release) / f"{self._split}.h5"
        if not path.is_file():
            raise FormatError(path, "no such file, without which no picture can be described alike")
        with open_features(path) as features:
            attributes = dict(features.attributes)
        return RegionExtractor(attributes, self._weights, str(self._opened.device))

    @property
    def _split(self) -> str:
        return self.pages[0].split

    def _found(
        self, words: str, tokens: list[str], scores: Float[np.ndarray, " pages"], count: int
    ) -> Found:
        order = [int(row) for row in np.argsort(-scores, kind="stable")[:count]]
        hits = [
            Hit(rank, float(scores[row]), page.key, page.url, page.caption)
            for rank, row in enumerate(order, 1)
            for page in [self.pages[row]]
        ]
        return Found(words, tokens, self._split, len(self.pages), hits)


@contextmanager
def open_search(
    run: Path,
    split: str = "test",
    *,
    release: Path | None = None,
    device_name: str | None = None,
    weights: Path | None = None,
    bank: int | None = None,
) -> Iterator[Searcher]:
    """Open a run's best epoch to search a split; a detector's weights are needed for pictures.

    Hubs are corrected by ``bank`` training pairs, and by ``data.bank`` of the run by default.

    Raises:
        FormatError: If run or release cannot be read, or the release has no ``pairs.parquet``.
    """
    name = check_split(split)
    opened = open_run(run, release=release, device=device_name, bank=bank)
    if not is_ours(opened.release):
        raise FormatError(
            opened.release, "no pairs.parquet, expected a release of now-builder package"
        )
    refuse_round(opened.release, name)
    pages = read_split_pairs(opened.release, name)
    with opened.open(name, whole=True) as pairs:
        yield Searcher(opened, pairs, pages, weights, opened.bank(name))
