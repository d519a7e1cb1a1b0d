"""Embed text as 768-d vectors by hashed n-grams or a transformer, and link it to regions."""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from jaxtyping import Float
from torch import Tensor

from now_builder.detect.base import Page, TextBox
from now_builder.detect.boxes import intersection_over_minimum
from now_builder.errors import ConfigError
from now_builder.formats.shard import HEIGHT, WIDTH, Element

DIMENSION = 768
_KEPT = 16_384  # Number of cached strings; their vectors need 50 MB


@runtime_checkable
class TextEncoder(Protocol):
    """A frozen text encoder."""

    name: str
    """Name in the feature file."""

    def encode(self, texts: Sequence[str]) -> Float[Tensor, "texts 768"]:
        """Embed strings as unit vectors on the CPU; a string without content as zero."""
        ...


class HashedNgrams:
    """Embed text by hashed character n-grams: no weights, the same on every machine.

    Strings with common characters are near each other, whatever they mean. Every n-gram of one to
    three characters adds a sign at four places chosen by a seeded hash.

    Source:
        Feature hashing (Weinberger et al., ICML 2009).
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed, self.name = seed, f"hash:{seed}"
        self._cached_vector = lru_cache(_KEPT)(self._vector)

    def encode(self, texts: Sequence[str]) -> Float[Tensor, "texts 768"]:
        """Embed strings; recent ones are cached."""
        rows = [self._cached_vector(text) for text in texts]
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
    """Embed text by a pretrained transformer (hub name or folder): masked mean of its last layer.

    Raises:
        ConfigError: If the model cannot be loaded or its width is not 768.
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
        ConfigError: If the name is malformed or the model cannot be loaded.
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
    """Embed class prompts as unit vectors, averaged over English and Chinese templates."""
    texts = [t.format(english=english, chinese=zh) for english, zh in names for t in TEMPLATES]
    vectors = encoder.encode(texts).reshape(len(names), len(TEMPLATES), DIMENSION)
    return F.normalize(vectors.mean(dim=1), dim=1)


LINK_THRESHOLD = 0.5


def dom_text_boxes(elements: Sequence[Element]) -> list[TextBox]:
    """Return the visible strings of a page; never those of ``<title>`` or ``<meta>``."""
    return [
        TextBox(element.text, element.text_box)
        for element in elements
        if element.visible and element.text.strip() and element.text_box is not None
    ]


def linked_embeddings(
    regions: Float[Tensor, "regions 4"],
    texts: Float[Tensor, "texts 4"],
    vectors: Float[Tensor, "texts 768"],
) -> Float[Tensor, "regions 768"]:
    """Return the normalised mean embedding of the strings linked to each region; zero without any.

    A string is linked to a region if their intersection over minimum is above one half.
    """
    if not len(texts):
        return regions.new_zeros(len(regions), DIMENSION)
    linked = intersection_over_minimum(regions, texts) > LINK_THRESHOLD
    return F.normalize(linked.to(vectors.dtype) @ vectors, dim=1)


def embed_text_boxes(
    encoder: TextEncoder, boxes: Sequence[TextBox], scale: tuple[float, float]
) -> tuple[Float[Tensor, "texts 4"], Float[Tensor, "texts 768"]]:
    """Return the boxes, scaled from image px to detector input px, and embeddings of strings."""
    places = torch.tensor([box.box for box in boxes], dtype=torch.float32).reshape(-1, 4)
    factors = torch.tensor([*scale, *scale], dtype=torch.float32)
    return places * factors, encoder.encode([box.text for box in boxes])


def page_text(
    encoder: TextEncoder,
    pages: Sequence[Page],
    regions: Sequence[Float[Tensor, "_ 4"]],
    size: tuple[int, int],
) -> Float[Tensor, "all 768"]:
    """Embed the strings linked to each region, whose boxes are in detector input px."""
    rows = []
    for page, boxes in zip(pages, regions, strict=True):
        scale = (size[0] / WIDTH, size[1] / HEIGHT)
        places, vectors = embed_text_boxes(encoder, page.text_boxes, scale)
        rows.append(linked_embeddings(boxes, places.to(boxes.device), vectors.to(boxes.device)))
    return torch.cat(rows)
