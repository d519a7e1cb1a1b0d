"""Pages that a run finds for words."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from now_builder.encode import encode
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.captions import UNK
from now_builder.formats.release import Captions, check_split, is_ours, read_pairs
from pc2_baseline.data.pairs import frame, read_vocabulary
from pc2_baseline.runs.open_run import open_run
from pc2_baseline.training.run_folder import refuse_round


@dataclass(frozen=True, slots=True)
class Hit:
    """A page that was found.

    Attributes:
        rank: From 1.
        score: Similarity of the page and the words.
        key: Its key.
        url: Its URL.
        caption: Its own caption.
    """

    rank: int
    score: float
    key: str
    url: str
    caption: str


@dataclass(frozen=True, slots=True)
class Found:
    """Output of ``pc2-baseline search``.

    Attributes:
        words: What was searched for.
        tokens: Its tokens; ``<unk>`` for those that the vocabulary lacks.
        split: Where.
        pages: Pages of the split.
        hits: The nearest pages, best first.
    """

    words: str
    tokens: list[str]
    split: str
    pages: int
    hits: list[Hit]


def search(
    run: Path,
    words: str,
    split: str = "test",
    *,
    count: int = 10,
    release: Path | None = None,
    device_name: str | None = None,
) -> Found:
    """Find the pages nearest to words with a run's best epoch.

    Args:
        run: The run folder.
        words: Cut as the release's captions were, see :func:`~now_builder.encode.encode`.
        split: ``train``, ``dev`` or ``test``.
        count: Most pages to return; of equal similarities the lower row goes first.
        release: Where the release lies; default: where it was at training.
        device_name: Default: as set for the run.

    Raises:
        FormatError: If run or release cannot be read, or the release has no ``pairs.parquet`` or
            lacks the tokenizer.
        ConfigError: If none of the words is in the vocabulary.
    """
    name = check_split(split)
    opened = open_run(run, release=release, device=device_name)
    if not is_ours(opened.release):
        raise FormatError(
            opened.release, "no pairs.parquet, expected a release of now-builder package"
        )
    refuse_round(opened.release, name)
    data = opened.record.settings.data
    vocabulary = read_vocabulary(opened.release, data)
    ids = encode(opened.release, data.tokenizer, vocabulary, words)
    if all(found == UNK for found in ids):
        raise ConfigError(f"{words!r}: no token of it is in the {data.tokenizer} vocabulary")
    query = frame(run, Captions([words], [ids]), vocabulary, data.max_tokens)
    with opened.open(name, whole=True) as pairs:
        scores = opened.method.similarity(replace(pairs, captions=query, image_of=np.zeros(1, int)))
    order = np.argsort(-scores[:, 0], kind="stable")[:count]
    by_row = {pair.pair_index: pair for pair in read_pairs(opened.release) if pair.split == name}
    hits = [
        Hit(rank, float(scores[row, 0]), by_row[row].key, by_row[row].url, by_row[row].caption)
        for rank, row in enumerate(map(int, order), 1)
    ]
    tokens = [vocabulary.idx2word[str(found)] for found in ids]
    return Found(words, tokens, name, len(scores), hits)


def in_words(found: Found) -> str:
    """Write what was found for people: a line a page."""
    head = f"{' | '.join(found.tokens)}: {len(found.hits)} of {found.pages} pages of {found.split}"
    return "\n".join([head, *(_line(hit) for hit in found.hits)])


def _line(hit: Hit) -> str:
    return f"{hit.rank:>3} {hit.score:>7.3f}  {hit.key}  {hit.url:.60}  {hit.caption:.100}"
