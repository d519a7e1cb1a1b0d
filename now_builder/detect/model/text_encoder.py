"""Text to 768-d vectors: hashed character n-grams, or a transformer by name."""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from jaxtyping import Float
from torch import Tensor

from now_builder.errors import ConfigError

DIMENSION = 768
_KEPT = 16_384
"""Strings whose vectors are kept: 50 MB."""


@runtime_checkable
class TextEncoder(Protocol):
    """A frozen text encoder."""

    name: str
    """Name in the feature file."""

    def encode(self, texts: Sequence[str]) -> Float[Tensor, "texts 768"]:
        """Embed strings as unit vectors on the CPU; a string without content as zero."""
        ...


class HashedNgrams:
    """Unit vectors from hashed character n-grams: no weights, the same on every machine.

    Strings that share characters are near each other; nothing is known of meaning. Every n-gram of
    one to three characters adds a sign to four places chosen by a seeded hash.

    Source:
        Feature hashing (Weinberger et al., ICML 2009).
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed, self.name = seed, f"hash:{seed}"
        self._known = lru_cache(_KEPT)(self._vector)

    def encode(self, texts: Sequence[str]) -> Float[Tensor, "texts 768"]:
        """Embed strings; those seen lately are not computed again."""
        rows = [self._known(text) for text in texts]
        return torch.from_numpy(np.stack(rows)) if rows else torch.zeros(0, DIMENSION)

    def _vector(self, text: str) -> np.ndarray:
        content = " ".join(text.casefold().split())
        padded = f" {content} "
        starts = range(len(padded) if content else 0)
        grams = (
            padded[start : start + length]
            for length in (1, 2, 3)
            for start in starts[: len(starts) - length + 1]
        )
        seeded = (f"{self.seed}\n{gram}".encode() for gram in grams if not gram.isspace())
        digests = b"".join(hashlib.blake2b(gram, digest_size=16).digest() for gram in seeded)
        words = np.frombuffer(digests, dtype="<u4")
        signs = (words & 1) * 2.0 - 1
        places = (words >> 1) % DIMENSION
        vector = np.bincount(places, signs, DIMENSION).astype(np.float32)
        norm = float(np.linalg.norm(vector))
        return vector / norm if norm else vector


class HubEncoder:
    """A pretrained transformer by hub name or folder; masked mean of its last layer.

    Raises:
        ConfigError: If the model cannot be had or its width is not 768.
    """

    def __init__(self, name: str, device: torch.device | str = "cpu") -> None:
        from transformers import AutoModel, AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(name)
            self._model: Any = AutoModel.from_pretrained(name).eval().to(device)
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(f"text_encoder {name!r} cannot be loaded ({reason})") from None
        width = int(self._model.config.hidden_size)
        if width != DIMENSION:
            raise ConfigError(f"text_encoder {name!r}: width {width}, expected {DIMENSION}")
        self.name, self._device = name, device

    @torch.inference_mode()
    def encode(self, texts: Sequence[str]) -> Float[Tensor, "texts 768"]:
        """Embed strings in batches of 64, cut to 64 tokens."""
        rows = [self._batch(list(texts[i : i + 64])) for i in range(0, len(texts), 64)]
        vectors = torch.cat(rows) if rows else torch.zeros(0, DIMENSION)
        full = torch.tensor([bool(text.strip()) for text in texts], dtype=vectors.dtype)
        return vectors * full[:, None]

    def _batch(self, texts: list[str]) -> Float[Tensor, "texts 768"]:
        tokens = self._tokenizer(
            texts, padding=True, truncation=True, max_length=64, return_tensors="pt"
        ).to(self._device)
        states: Tensor = self._model(**tokens).last_hidden_state.float()
        mask = tokens["attention_mask"].to(states.dtype).unsqueeze(2)
        mean = (states * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
        return F.normalize(mean, dim=1).cpu()


def make_text_encoder(name: str, device: torch.device | str = "cpu") -> TextEncoder:
    """Make the encoder of a name: ``hash:<seed>``, a hub name, or a folder.

    Raises:
        ConfigError: If the name is malformed or the model cannot be had.
    """
    if name != "hash" and not name.startswith("hash:"):
        return HubEncoder(name, device)
    seed = name.partition(":")[2] or "0"
    if not seed.isdigit():
        raise ConfigError(f"text_encoder {name!r}: expected hash:<whole number>")
    return HashedNgrams(int(seed))


TEMPLATES = ("{english}", "a {english} in a mobile web page", "网页中的{chinese}")


def embed_prompts(
    encoder: TextEncoder, names: Sequence[tuple[str, str]]
) -> Float[Tensor, "classes 768"]:
    """Embed class prompts: the mean over templates in English and Chinese, of unit length."""
    texts = [t.format(english=english, chinese=zh) for english, zh in names for t in TEMPLATES]
    vectors = encoder.encode(texts).reshape(len(names), len(TEMPLATES), DIMENSION)
    return F.normalize(vectors.mean(dim=1), dim=1)
