"""A user's own tokenizer: any file of the ``tokenizers`` library, used as it is."""

import hashlib
import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tokenizers

from now_builder.errors import ConfigError, FormatError
from now_builder.formats.captions import TOKENIZERS
from now_builder.tokenize.library import LibraryTokenizer

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")


def read_custom(path: Path, name: str) -> LibraryTokenizer:
    """Read a tokenizer from a file; nothing is learned for it.

    Raises:
        FormatError: If the file is not one of the ``tokenizers`` library.
    """
    try:
        text = path.read_bytes().decode()
        backend = tokenizers.Tokenizer.from_str(text)
        control = _control(json.loads(text))
    except Exception as error:  # noqa: BLE001 - the Rust side raises the bare class
        raise FormatError(path, f"not a file of tokenizers ({error})") from None
    backend.no_truncation()
    backend.no_padding()
    source = (
        f"{name}.tokenizer.json, sha256 {hashlib.sha256(text.encode()).hexdigest()}, "
        f"brought along (tokenizers {version('tokenizers')})"
    )
    return LibraryTokenizer(name, source, backend, control, path)


def custom_name(path: Path) -> str:
    """Return the track's name: the file's name without ``.json`` (and ``.tokenizer``).

    Raises:
        ConfigError: If that is not a safe file name, or is the name of another track.
    """
    name = path.name.removesuffix(".json").removesuffix(".tokenizer")
    if not _NAME.fullmatch(name) or name.lower() in TOKENIZERS:
        raise ConfigError(
            f"--with {path}: the tokenizer would be called {name!r}, expected 1 to 40 letters, "
            f"digits, _ or -, and not {', '.join(TOKENIZERS)}; rename the file"
        )
    return name


def _control(tree: dict[str, Any]) -> set[str]:
    """Return the tokens that a file puts around a text, and its unknown token.

    They are read from the JSON, since the library would write out a line for each free id.
    """
    model = tree["model"]
    unknown = model.get("unk_token")
    if model.get("unk_id") is not None:  # Unigram: a place in a list of tokens and scores
        unknown = model["vocab"][model["unk_id"]][0]
    around = _around(tree.get("post_processor") or {})
    return around if unknown is None else {*around, str(unknown)}


def _around(processor: dict[str, Any]) -> set[str]:
    pairs = (processor.get(name) for name in ("cls", "sep"))  # of BERT and RoBERTa: token and id
    tokens = {pair[0] for pair in pairs if pair} | {*processor.get("special_tokens", ())}
    return tokens.union(*map(_around, processor.get("processors", ())))
