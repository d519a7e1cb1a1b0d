"""Tokenizers of the ``tokenizers`` library, and what learning one needs."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import tokenizers

from now_builder.errors import FormatError
from now_builder.formats.io import write_text
from now_builder.tokenize.base import UNKNOWN

BATCH = 1000


@dataclass(slots=True)
class LibraryTokenizer:
    """A tokenizer of the library that was learned here or loaded.

    Attributes:
        unknown: its own token for a piece of text that it has no token for.
    """

    name: str
    source: str
    backend: tokenizers.Tokenizer
    unknown: str | None = None
    vocabulary: list[str] | None = None

    def cut(self, captions: Iterable[str]) -> Iterator[list[str]]:
        """Cut a stream of captions into tokens, without ``[CLS]``, ``[SEP]`` and the like."""
        for encoding in encoded(self.backend, captions, self.source):
            yield [UNKNOWN if token == self.unknown else token for token in encoding.tokens]

    def save(self, path: Path) -> None:
        """Store the raw tokenizer: ``tokenizers.Tokenizer.from_file`` reads it."""
        write_text(path, self.backend.to_str(pretty=False) + "\n")


def encoded(
    backend: tokenizers.Tokenizer, captions: Iterable[str], origin: Path | str
) -> Iterator[tokenizers.Encoding]:
    """Encode a stream of captions in batches; nothing is put around them.

    Raises:
        FormatError: If the tokenizer, whose file or source is ``origin``, fails at a caption.
    """
    stream = iter(captions)
    while batch := list(islice(stream, BATCH)):
        try:
            encodings = backend.encode_batch(batch, add_special_tokens=False)
        except Exception as error:  # noqa: BLE001 - the Rust side raises the bare class
            raise FormatError(origin, f"cannot cut a caption ({error!s:.200})") from None
        yield from encodings


def alphabet(captions: Iterable[str], limit: int) -> list[str]:
    """Return the most frequent characters, sorted; ties are broken by code point.

    Differs:
        The trainer's own limit drops tied characters in the order of a randomly seeded hash map.
    """
    counts: Counter[str] = Counter()
    for caption in captions:
        counts.update(caption)
    return sorted(sorted(counts, key=lambda item: (-counts[item], item))[:limit])
