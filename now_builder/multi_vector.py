"""Late-interaction models of `transformers`: a vector a place of pictures and texts, and MaxSim."""

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from now_builder.dual_encoder import (
    DTYPES,
    LONGEST,
    TowerPrecision,
    encoder_name,
    find_encoder,
    hash_of_encoder,
    load_network,
    refused,
    squared,
    unusable,
)

_LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
_BLOCK = 32
"""Pictures, and texts, that are compared at a time."""


def has_many_vectors(name: str, revision: str | None = None) -> bool:
    """Return whether a model gives a vector for each place of a picture and each word of a text.

    Raises:
        ConfigError: As :class:`MultiVectorEncoder`.
    """
    folder = find_encoder(name, revision)
    from transformers import AutoConfig

    with unusable(name):
        kind = AutoConfig.from_pretrained(folder, **_LOCAL).model_type
    return str(kind).startswith("col")  # colpali, colqwen2 and their kin


class MultiVectorEncoder:
    """A model whose pictures and texts are compared place by place.

    ColPali, ColQwen2 and their kin, whose processors have ``process_images`` and
    ``process_queries``. Texts are prepared as queries, which adds the model's own prompt to them.
    Code that comes with a model is never run.

    Args:
        name: Folder, or name on the hub, from which the model is downloaded unless it has been.
        device: Device that it runs on.
        precision: Precision of the network; vectors are always float32.
        revision: Branch, tag or commit on the hub.

    Attributes:
        name: Its name on the hub, or that of its folder, without the path.
        on_hub: Whether it comes from the hub.
        revision: Its commit on the hub, where that is known.
        text_limit: Maximum tokens of a text, prompt left aside.
        parameters: Number of values of the network.

    Raises:
        ConfigError: If `transformers` is missing, or the model cannot be had, lacks a file or is
            of another kind.
    """

    text_limit = LONGEST

    def __init__(
        self,
        name: str,
        device: torch.device,
        precision: TowerPrecision = "fp32",
        revision: str | None = None,
    ) -> None:
        self._folder = folder = find_encoder(name, revision)
        from transformers import AutoModelForPreTraining, AutoProcessor

        self.name, self.on_hub = encoder_name(name), not Path(name).is_dir()
        self.revision = folder.name if re.fullmatch(r"[0-9a-f]{40}", folder.name) else None
        processors: Any = AutoProcessor  # untyped
        with unusable(name):
            self.processor = processors.from_pretrained(folder, **_LOCAL)
        if not hasattr(self.processor, "process_queries"):
            raise refused(name, "its processor prepares no queries")
        network = load_network(name, folder, DTYPES[precision], AutoModelForPreTraining)
        self.network = network.to(device).eval()
        self._device = device
        self.parameters = sum(values.numel() for values in network.parameters())

    @cached_property
    def sha256(self) -> str:
        """Hash of weights, configuration, processor and tokenizer."""
        return hash_of_encoder(self._folder)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return how many tokens each text has before it is cut, prompt left aside."""
        return [len(ids) for ids in self._encoded(texts)["input_ids"]]

    def images(
        self, pictures: Sequence[Image.Image], *, squeeze: bool = False
    ) -> Float[Tensor, "n places width"]:
        """Embed RGB pictures of any size on the CPU: unit vectors, zero where one has no place.

        ``squeeze`` resizes each to a square first.
        """
        shown = [squared(picture) if squeeze else picture for picture in pictures]
        return self._vectors(self.processor.process_images(images=shown))

    def texts(self, texts: Sequence[str]) -> Float[Tensor, "n places width"]:
        """Embed texts, cut to :attr:`text_limit` tokens, on the CPU; zero where one has no word."""
        marks = self._encoded(texts)["offset_mapping"]
        cut = [
            text[: own[self.text_limit - 1][1]] if len(own) > self.text_limit else text
            for text, own in zip(texts, marks, strict=True)
        ]
        return self._vectors(self.processor.process_queries(text=cut))

    @torch.inference_mode()
    def scores(
        self,
        images: Float[Tensor, "images places width"],
        captions: Float[Tensor, "captions words width"],
    ) -> Float[Tensor, "images captions"]:
        """Compare all pictures with all texts, by :func:`max_sim`, on the model's device."""
        rows = []
        for start in range(0, len(images), _BLOCK):
            shown = images[start : start + _BLOCK].to(self._device)
            found = [
                max_sim(shown, captions[first : first + _BLOCK].to(self._device)).cpu()
                for first in range(0, len(captions), _BLOCK)
            ]
            rows.append(torch.cat(found, 1))
        return torch.cat(rows)

    def _encoded(self, texts: Sequence[str]) -> Any:
        return self.processor.tokenizer(
            list(texts), add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )

    @torch.inference_mode()
    def _vectors(self, given: Any) -> Float[Tensor, "n places width"]:
        own = {part: value.to(self._device) for part, value in given.items() if part != "labels"}
        vectors = self.network(**own).embeddings.float().cpu()
        if not vectors.isfinite().all():
            raise refused(self.name, f"vectors not finite in {self.network.dtype}; fp32 may be")
        found: Tensor = vectors
        return found


def max_sim(
    images: Float[Tensor, "images places width"], captions: Float[Tensor, "captions words width"]
) -> Float[Tensor, "images captions"]:
    r"""Add up what each word has with the place of the picture that is nearest to it.

    .. math:: s_{ij} = \sum_w \max_p \langle v_{ip}, t_{jw} \rangle

    Vectors that are zero stand for no place and no word.

    Source:
        ColBERT (Khattab and Zaharia, SIGIR 2020), eq. 3; on pictures ColPali (Faysse et al., ICLR
        2025), eq. 1.
    """
    products = torch.einsum("ipd,jwd->ijwp", images, captions)
    absent = ~images.any(2)
    nearest = products.masked_fill(absent[:, None, None], float("-inf")).amax(3)
    return nearest.masked_fill(~captions.any(2), 0.0).sum(2)
