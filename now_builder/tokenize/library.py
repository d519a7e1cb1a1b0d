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
    """A tokenizer of the library that was learned here or loaded.

    Args:
        control: Its tokens that stand for no text, besides those that it calls special.
    """

    name: str
    source: str
    backend: tokenizers.Tokenizer
    control: InitVar[Iterable[str]] = ()
    vocabulary: list[str] | None = None
    _tokens: dict[int, str] = field(init=False, repr=False)

    def __post_init__(self, control: Iterable[str]) -> None:
        self._tokens = text_tokens(self.backend, control)

    def cut(self, captions: Iterable[str]) -> Iterator[list[str]]:
        """Cut a stream of captions; special tokens that a caption spells out are unknown."""
        for encoding in encoded(self.backend, captions, self.source):
            yield [self._tokens[number] for number in encoding.ids]

    def save(self, path: Path) -> None:
        """Store the raw tokenizer: ``tokenizers.Tokenizer.from_file`` reads it."""
        write_text(path, self.backend.to_str(pretty=False) + "\n")


def text_tokens(backend: tokenizers.Tokenizer, control: Iterable[str]) -> dict[int, str]:
    """Return the token of each id, in their order; ``<unk>`` for those that stand for no text.

    These are the ones that the tokenizer calls special, ours, and those of ``control``: a caption
    that spells one out must not get it.
    """
    added = backend.get_added_tokens_decoder().values()
    outside = {*SPECIALS, *control, *(token.content for token in added if token.special)}
    ids = sorted(backend.get_vocab().items(), key=itemgetter(1))
    return {number: UNKNOWN if token in outside else token for token, number in ids}


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
