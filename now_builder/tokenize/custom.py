"""A tokenizer that the user brings: any file of the ``tokenizers`` library, taken as it is."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from operator import itemgetter
from pathlib import Path
from typing import Any

import tokenizers

from now_builder.errors import ConfigError, FormatError
from now_builder.formats.captions import SPECIALS, TOKENIZERS
from now_builder.formats.io import write_text
from now_builder.tokenize.base import UNKNOWN
from now_builder.tokenize.library import encoded

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")


class CustomTokenizer:
    """A tokenizer read from a file; nothing is learned for it.

    Attributes:
        vocabulary: tokens in the order of the file's own ids, without the special ones.
    """

    def __init__(self, name: str, path: Path) -> None:
        try:
            self._text = path.read_bytes().decode()
            self._backend = tokenizers.Tokenizer.from_str(self._text)
            outside = {*SPECIALS, *_special(self._backend, json.loads(self._text)["model"])}
        except Exception as error:  # noqa: BLE001 - the Rust side raises the bare class
            raise FormatError(path, f"not a file of tokenizers ({error})") from None
        self._backend.no_truncation()
        self._backend.no_padding()
        self.name, self._path = name, path
        self.source = (
            f"{name}.tokenizer.json, sha256 {hashlib.sha256(self._text.encode()).hexdigest()}, "
            f"brought along (tokenizers {version('tokenizers')})"
        )
        ids = self._backend.get_vocab()
        self._tokens = {
            number: UNKNOWN if token in outside else token
            for token, number in sorted(ids.items(), key=itemgetter(1))
        }
        self.vocabulary: list[str] | None = [
            token for token in self._tokens.values() if token != UNKNOWN
        ]

    def cut(self, captions: Iterable[str]) -> Iterator[list[str]]:
        """Cut a stream of captions; special tokens that a caption spells out are unknown."""
        for encoding in encoded(self._backend, captions, self._path):
            # Not its tokens: for one that is unknown, some models give the text.
            yield [self._tokens[number] for number in encoding.ids]

    def save(self, path: Path) -> None:
        """Store the file as it was brought."""
        write_text(path, self._text)


def custom_name(path: Path) -> str:
    """Name the pipeline of a file: what stands before ``.json`` (and ``.tokenizer``).

    Raises:
        ConfigError: If that is no safe file name, or is the name of another pipeline.
    """
    name = path.name.removesuffix(".json").removesuffix(".tokenizer")
    if not _NAME.fullmatch(name) or name.lower() in TOKENIZERS:
        raise ConfigError(
            f"--with {path}: the tokenizer would be called {name!r}, expected 1 to 40 letters, "
            f"digits, _ or -, and not {', '.join(TOKENIZERS)}; rename the file"
        )
    return name


def _special(backend: tokenizers.Tokenizer, model: dict[str, Any]) -> set[str]:
    """Find the special tokens, and the one that stands for what the model does not know.

    The model is read from the file: the library, asked for it, writes a line for each free id.
    """
    added = backend.get_added_tokens_decoder().values()
    unknown = model.get("unk_token")
    if model.get("unk_id") is not None:  # Unigram: a place in a list of tokens and scores
        unknown = model["vocab"][model["unk_id"]][0]
    special = {token.content for token in added if token.special}
    return special if unknown is None else {*special, str(unknown)}
