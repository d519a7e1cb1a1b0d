"""The interface of a caption tokenizer, and what several of them need."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from now_builder.formats.captions import SPECIALS, UNK

if TYPE_CHECKING:
    import tokenizers

BATCH = 1000
UNKNOWN = SPECIALS[UNK]
"""The token for a piece of text that a tokenizer has no token for."""


@runtime_checkable
class CaptionTokenizer(Protocol):
    """A tokenizer that is ready to use, here or, pickled, in a worker process.

    Attributes:
        name: name of the track.
        source: description of where the tokens come from, stored with the vocabulary.
        vocabulary: all tokens in order, or ``None`` to use those that occur in the train pool.
    """

    name: str
    source: str
    vocabulary: list[str] | None

    def cut(self, captions: Iterable[str]) -> Iterator[list[str]]:
        """Cut a stream of captions into tokens: content only, nothing put around them."""
        ...

    def save(self, path: Path) -> None:
        """Store what others need to cut new text; nothing where the library alone is enough."""
        ...


def encoded(
    backend: "tokenizers.Tokenizer", captions: Iterable[str]
) -> "Iterator[tokenizers.Encoding]":
    """Encode a stream of captions in batches; nothing is put around them."""
    stream = iter(captions)
    while batch := list(islice(stream, BATCH)):
        yield from backend.encode_batch(batch, add_special_tokens=False)


def alphabet(captions: Iterable[str], limit: int) -> list[str]:
    """Return the most frequent characters, sorted; ties are broken by code point.

    Differs:
        The trainer's own limit drops tied characters in the order of a randomly seeded hash map.
    """
    counts: Counter[str] = Counter()
    for caption in captions:
        counts.update(caption)
    return sorted(sorted(counts, key=lambda item: (-counts[item], item))[:limit])
