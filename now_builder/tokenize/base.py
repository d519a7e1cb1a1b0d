"""What a caption tokenizer is: learned on train-pool captions, it cuts any caption into tokens."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Protocol, runtime_checkable

from now_builder.formats.captions import SPECIALS, UNK

UNKNOWN = SPECIALS[UNK]
"""What a tokenizer gives for a piece of text that it has no token for."""


@runtime_checkable
class CaptionTokenizer(Protocol):
    """A tokenizer that is ready to use, here or, pickled, in a worker process.

    Attributes:
        name: Which of the pipelines this is.
        source: Where its tokens come from, in words; it is stored with the vocabulary.
        vocabulary: Its tokens in their order, if it brings them along; ``None``: those that occur
            in the train pool.
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


def batches(captions: Iterable[str], size: int) -> Iterator[list[str]]:
    """Hand over a stream ``size`` captions at a time."""
    stream = iter(captions)
    while batch := list(islice(stream, size)):
        yield batch


def alphabet(captions: Iterable[str], limit: int) -> list[str]:
    """Give the most frequent characters; ties are broken by code point, not by chance.

    Differs:
        The trainer's own limit drops tied characters in the order of a randomly seeded hash map.
    """
    counts: Counter[str] = Counter()
    for caption in captions:
        counts.update(caption)
    return sorted(sorted(counts, key=lambda item: (-counts[item], item))[:limit])
