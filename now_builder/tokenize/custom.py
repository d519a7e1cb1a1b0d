"""A tokenizer that the user brings: any file of the ``tokenizers`` library, taken as it is."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tokenizers

from now_builder.errors import ConfigError, FormatError
from now_builder.formats.captions import TOKENIZERS
from now_builder.formats.io import write_text
from now_builder.tokenize.base import UNKNOWN
from now_builder.tokenize.library import encoded, text_tokens

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
            control = _control(json.loads(self._text))
        except Exception as error:  # noqa: BLE001 - the Rust side raises the bare class
            raise FormatError(path, f"not a file of tokenizers ({error})") from None
        self._backend.no_truncation()
        self._backend.no_padding()
        self.name, self._path = name, path
        self.source = (
            f"{name}.tokenizer.json, sha256 {hashlib.sha256(self._text.encode()).hexdigest()}, "
            f"brought along (tokenizers {version('tokenizers')})"
        )
        self._tokens = text_tokens(self._backend, control)
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


def _control(tree: dict[str, Any]) -> set[str]:
    """Find the tokens that a file puts around a text, and the one that stands for the unknown.

    They are read from the file: the library, asked for it, writes a line for each free id.
    """
    model = tree["model"]
    unknown = model.get("unk_token")
    if model.get("unk_id") is not None:  # Unigram: a place in a list of tokens and scores
        unknown = model["vocab"][model["unk_id"]][0]
    around = _around(tree.get("post_processor") or {})
    return around if unknown is None else {*around, str(unknown)}


def _around(processor: dict[str, Any]) -> set[str]:
    pairs = (processor.get(name) for name in ("cls", "sep"))  # of BERT and RoBERTa: token and id
    found = {pair[0] for pair in pairs if pair} | {*processor.get("special_tokens", ())}
    return found.union(*map(_around, processor.get("processors", ())))
