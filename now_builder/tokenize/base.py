"""The interface of a caption tokenizer."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

from now_builder.formats.captions import SPECIALS, UNK

UNKNOWN = SPECIALS[UNK]
"""The token for a piece of text that a tokenizer has no token for."""


@runtime_checkable
class CaptionTokenizer(Protocol):
    """A tokenizer that is ready to use, here or, pickled, in a worker process.

    Attributes:
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
