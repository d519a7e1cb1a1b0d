"""Sentence encoders of `transformers`: texts to vectors that are near where they mean the same."""

from collections.abc import Sequence
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from now_builder.errors import ConfigError
from now_builder.hub.models import find_model, hash_of_files
from now_builder.program.missing_package import install_extra
from pc2_baseline.progress import bar

_FILES = ("*.json", "*.txt", "*.model")
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_BLOCK = 1024
"""Texts that are sorted by length together."""
_UNUSABLE = (OSError, ValueError, TypeError, RuntimeError, ImportError, LookupError, AttributeError)


class SentenceEncoder:
    """A model that turns a text into one vector, with the pooling that its files tell.

    Code that comes with a model is never run. Texts longer than it takes are cut.

    Args:
        name: Folder, or name on the hub, from which the model is downloaded unless it has been.
        device: Device that it runs on.

    Raises:
        ConfigError: If `sentence-transformers` is missing, or the model cannot be had or used.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self._name, folder = name, _find(name)
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging

        log: Any = logging  # untyped
        log.disable_progress_bar()
        try:
            self._model = SentenceTransformer(
                str(folder), device=str(device), local_files_only=True
            )
        except _UNUSABLE as error:
            raise _refused(name, str(error)) from None

    def __call__(self, texts: Sequence[str]) -> Float[np.ndarray, "texts width"]:
        """Return a unit vector of each text, zeros for an empty one; equal texts are read once."""
        known = list(dict.fromkeys(texts))
        blocks = [known[start : start + _BLOCK] for start in range(0, len(known), _BLOCK)]
        encode = partial(self._model.encode, normalize_embeddings=True, show_progress_bar=False)
        try:
            found = [encode(block) for block in bar(blocks, "text encoder", len(blocks), "block")]
        except _UNUSABLE as error:
            raise _refused(self._name, str(error)) from None
        vectors = np.concatenate(found).astype(np.float32)
        if not np.isfinite(vectors).all():
            raise _refused(self._name, "its vectors are not finite")
        vectors *= np.array([bool(text.strip()) for text in known])[:, None]
        place = {text: row for row, text in enumerate(known)}
        each: np.ndarray = vectors[[place[text] for text in texts]]
        return each


@lru_cache(maxsize=1)
def sentence_encoder(name: str, device: torch.device) -> SentenceEncoder:
    """Return a sentence encoder, loaded once for all splits."""
    return SentenceEncoder(name, device)


def hash_of_sentence_encoder(name: str) -> str:
    """Hash weights, configuration and tokenizer of a sentence encoder.

    Raises:
        ConfigError: If it cannot be had.
    """
    every = (*_FILES, *_WEIGHTS)
    return hash_of_files(_find(name), (*every, *(f"*/{pattern}" for pattern in every)))


def _find(name: str) -> Path:
    if find_spec("sentence_transformers") is None:
        raise ConfigError(f"sentence-transformers is missing; {install_extra('text-encoder')}")
    for pattern in _WEIGHTS:  # pickled ones, which are read as plain values, only where need be
        try:
            folder = find_model(name, (*_FILES, pattern))
        except ConfigError as error:
            raise _refused(name, str(error)) from None
        if any(folder.rglob(pattern)):
            return folder
    raise _refused(name, f"no weights in {folder}")


def _refused(name: str, reason: str) -> ConfigError:
    plain = " ".join(reason.split())
    return ConfigError(f"model.text_encoder {name!r}: not a usable sentence encoder ({plain:.400})")
