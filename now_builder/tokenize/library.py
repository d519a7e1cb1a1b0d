"""Tokenizers of the ``tokenizers`` library, and what learning one needs."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import InitVar, dataclass, field
from itertools import islice
from operator import itemgetter
from pathlib import Path

import tokenizers

from now_builder.errors import FormatError
from now_builder.formats.captions import SPECIALS
from now_builder.formats.io import write_text
from now_builder.tokenize.base import UNKNOWN

BATCH = 1000


@dataclass(slots=True)
class LibraryTokenizer:
    """A tokenizer of the library, learned here or loaded.

    Args:
        control: Tokens that stand for no text, besides those that the tokenizer calls special.
        file: A user's file that it was read from, whose vocabulary is used as it is.
    """

    name: str
    source: str
    backend: tokenizers.Tokenizer
    control: InitVar[Iterable[str]] = ()
    file: Path | None = None
    vocabulary: list[str] | None = None
    _tokens: dict[int, str] = field(init=False, repr=False)

    def __post_init__(self, control: Iterable[str]) -> None:
        self._tokens = text_tokens(self.backend, control)
        if self.file is not None:
            self.vocabulary = [token for token in self._tokens.values() if token != UNKNOWN]

    def cut(self, captions: Iterable[str]) -> Iterator[list[str]]:
        """Cut a stream of captions; special tokens that a caption spells out are unknown."""
        for encoding in encoded(self.backend, captions, self.file or self.source):
            # By id, not by encoding.tokens: for an unknown token some models give the text.
            yield [self._tokens[number] for number in encoding.ids]

    def save(self, path: Path) -> None:
        """Write a file that ``tokenizers.Tokenizer.from_file`` reads; a user's file unchanged."""
        if self.file is not None:
            write_text(path, self.file.read_bytes().decode())
        else:
            write_text(path, self.backend.to_str(pretty=False) + "\n")


def text_tokens(backend: tokenizers.Tokenizer, control: Iterable[str]) -> dict[int, str]:
    """Return the token of each id, in order; ``<unk>`` for tokens that stand for no text.

    Those are the tokenizer's special tokens, our own specials and ``control``: a caption that
    contains one of them as text must not get its id.
    """
    added = backend.get_added_tokens_decoder().values()
    outside = {*SPECIALS, *control, *(token.content for token in added if token.special)}
    ids = sorted(backend.get_vocab().items(), key=itemgetter(1))
    return {number: UNKNOWN if token in outside else token for token, number in ids}


def encoded(
    backend: tokenizers.Tokenizer, captions: Iterable[str], origin: Path | str
) -> Iterator[tokenizers.Encoding]:
    """Encode a stream of captions in batches, without start and end tokens.

    Raises:
        FormatError: If the tokenizer fails on a caption; ``origin`` is its file or source.
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
