"""The interface of a caption tokenizer."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

from now_builder.formats.captions import SPECIALS, UNK

UNKNOWN = SPECIALS[UNK]
"""The token of text for which a tokenizer has no token."""


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
