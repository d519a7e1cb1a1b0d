"""Pre-trained dual encoders of `transformers`: pictures and texts to vectors that compare."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from jaxtyping import Float
from PIL import Image
from safetensors import SafetensorError
from torch import Tensor, nn

from now_builder.errors import ConfigError
from now_builder.hub.models import find_model, hash_of_files

TowerPrecision = Literal["fp32", "bf16", "fp16"]

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_SMALL = ("*.json", "*.txt", "*.model")
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_TOWERS = ("get_image_features", "get_text_features")
_UNUSABLE = (
    OSError, ValueError, TypeError, RuntimeError, ImportError, KeyError, AttributeError,
    SafetensorError,
)  # fmt: skip
_NO_LIMIT = 10**6
_LONGEST = 512
"""Maximum tokens of a text where a model sets none: descriptions are shorter."""
"""Tokens from which on a tokenizer's limit means that it has none."""
_SIDE = 512
"""Maximum side of squeezed pictures, px: no less than towers take."""


class DualEncoder:
    """A picture tower and a text tower whose vectors are compared by their cosine.

    Any model of `transformers` that has both ``get_image_features`` and ``get_text_features``:
    CLIP, SigLIP, SigLIP 2, AltCLIP, Chinese-CLIP, MetaCLIP 2, a vision-text dual encoder and the
    like. Code that comes with a model is never run.

    Args:
        name: Folder, or name on the hub, from which the model is downloaded unless it has been.
        device: Device that it runs on.
        precision: Precision of the towers; vectors are always float32.
        revision: Branch, tag or commit on the hub.

    Attributes:
        name: Its name on the hub, or that of its folder, without the path.
        on_hub: Whether it comes from the hub.
        revision: Its commit on the hub, where that is known.
        sha256: Hash of weights, configuration, processor and tokenizer.
        parameters: Number of values of the network.
        text_limit: Maximum tokens of a text, marks of beginning and end included.
        scale: Factor of the cosine, from the model's own ``logit_scale``; 1 without one.
        bias: Added to it, from SigLIP's ``logit_bias``; else 0.

    Raises:
        ConfigError: If `transformers` is missing, the model cannot be had, lacks a file, or is no
            dual encoder.

    Source:
        CLIP (Radford et al., ICML 2021); SigLIP (Zhai et al., ICCV 2023), whose text tower has
        learned on texts padded to their full length, and without a mask.
    """

    def __init__(
        self,
        name: str,
        device: torch.device,
        precision: TowerPrecision = "fp32",
        revision: str | None = None,
    ) -> None:
        folder = find_encoder(name, revision)
        self.name, self.on_hub = encoder_name(name), not Path(name).is_dir()
        self.revision = folder.name if re.fullmatch(r"[0-9a-f]{40}", folder.name) else None
        self.sha256 = hash_of_encoder(folder)
        self._device, self._dtype = device, _DTYPES[precision]
        self._model, self._processor = _load(name, folder, self._dtype)
        self._model = self._model.to(device)
        self.parameters = sum(values.numel() for values in self._model.parameters())
        self.scale = _number(self._model, "logit_scale", torch.exp, 1.0)
        self.bias = _number(self._model, "logit_bias", torch.clone, 0.0)
        own = (self._processor.tokenizer.model_max_length, _positions(self._model))
        self.text_limit = min((count for count in own if count < _NO_LIMIT), default=_LONGEST)
        # SigLIP pools the last place, so that it must be padded as in its training.
        self._full_length = self.text_limit if "siglip" in self._model.config.model_type else 0

    @torch.inference_mode()
    def images(
        self, pictures: Sequence[Image.Image], *, squeeze: bool = False
    ) -> Float[Tensor, "n width"]:
        """Embed RGB pictures of any size as unit vectors on the CPU.

        ``squeeze`` resizes each to a square first, so that a processor that crops to a square
        (CLIP's) cuts nothing off.
        """
        shown = list(pictures)
        if squeeze:
            sides = [min(max(picture.size), _SIDE) for picture in pictures]
            shown = [
                picture.resize((side, side), Image.Resampling.BICUBIC)
                for picture, side in zip(pictures, sides, strict=True)
            ]
        inputs = self._processor.image_processor(images=shown, return_tensors="pt")
        return self._features("get_image_features", inputs)

    @torch.inference_mode()
    def texts(self, texts: Sequence[str]) -> Float[Tensor, "n width"]:
        """Embed texts, cut to :attr:`text_limit` tokens, as unit vectors on the CPU."""
        tokenizer = self._processor.tokenizer
        inputs = tokenizer.pad(
            tokenizer(list(texts), truncation=True, max_length=self.text_limit),
            padding="max_length" if self._full_length else True,
            max_length=self._full_length or None,
            return_tensors="pt",
        )
        if self._full_length:
            inputs.pop("attention_mask", None)
        return self._features("get_text_features", inputs)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return how many tokens each text has before it is cut."""
        encoded = self._processor.tokenizer(list(texts), verbose=False)
        return [len(ids) for ids in encoded["input_ids"]]

    def _features(self, tower: str, inputs: Mapping[str, Any]) -> Float[Tensor, "n width"]:
        method: Callable[..., Any] = getattr(self._model, tower)
        known = inspect.signature(method).parameters  # some tokenizers return more than is taken
        output = method(**{
            name: values.to(self._device, self._dtype if values.is_floating_point() else None)
            for name, values in inputs.items()
            if name in known
        })  # fmt: skip
        vectors = output if isinstance(output, Tensor) else getattr(output, "pooler_output", None)
        if vectors is None or vectors.ndim != 2:
            raise _refused(self.name, f"{tower} returns no single vector for each")
        vectors = vectors.float().cpu()
        if not vectors.isfinite().all():
            raise _refused(self.name, f"{tower} is not finite in {self._dtype}; fp32 may be")
        return F.normalize(vectors, dim=1)


def find_encoder(name: str, revision: str | None = None) -> Path:
    """Return the folder of a dual encoder, downloaded if need be.

    Raises:
        ConfigError: If `transformers` is missing, there is no such model, or it lacks a file.
    """
    if find_spec("transformers") is None:
        raise ConfigError("transformers is missing; pip install 'noise-of-web[zero-shot]'")
    advice = f"where there is a network, `hf download {name or 'NAME'}` brings all of it"
    for pattern in _WEIGHTS:  # pickled ones, which are read as plain values, only where need be
        try:
            folder = find_model(name, (*_SMALL, pattern), revision)
        except ConfigError as error:
            raise _refused(name, f"{advice} ({error})") from None
        if not (folder / "config.json").is_file():
            raise _refused(name, f"config.json is missing in {folder}")
        if any(folder.glob(pattern)):
            return folder
    raise _refused(name, f"model.safetensors is missing in {folder}; {advice}")


def hash_of_encoder(folder: Path) -> str:
    """Hash weights, configuration, processor and tokenizer of a dual encoder."""
    return hash_of_files(folder, (*_SMALL, *_WEIGHTS))


def encoder_name(name: str) -> str:
    """Return a name on the hub as it is, and of a folder its own name without the path."""
    return Path(name).resolve().name if Path(name).is_dir() else name


def _load(name: str, folder: Path, dtype: torch.dtype) -> tuple[Any, Any]:
    """Load network and processor; no parameter may be missing, as it would be random."""
    from transformers import AutoModel, AutoProcessor

    processors: Any = AutoProcessor  # untyped
    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        model, loading = AutoModel.from_pretrained(
            folder, dtype=dtype, output_loading_info=True, **local
        )
        missing = [tower for tower in _TOWERS if not hasattr(model, tower)]
        if missing:
            kind = model.config.model_type
            raise _refused(name, f"{kind} is no dual encoder: it has no {' and no '.join(missing)}")
        processor = processors.from_pretrained(folder, **local)
    except UnpicklingError:
        raise _refused(name, "its weights are a pickle of more than tensors") from None
    except _UNUSABLE as error:
        raise _refused(name, str(error)) from None
    if loading["missing_keys"]:
        missing = sorted(loading["missing_keys"])
        raise _refused(name, f"{len(missing)} parameters missing: {missing[:3]}")
    lacking = [part for part in ("image_processor", "tokenizer") if not hasattr(processor, part)]
    if lacking:
        raise _refused(name, f"files of its {' and '.join(lacking)} are missing in {folder}")
    return model.eval(), processor


def _positions(model: Any) -> int:
    """Return the number of positions that the text tower has for tokens."""
    for name, module in model.named_modules():
        own = "text" in name and name.endswith("position_embeddings")
        if own and isinstance(module, nn.Embedding):
            # RoBERTa counts positions from behind that of padding.
            first = 0 if module.padding_idx is None else module.padding_idx + 1
            return module.num_embeddings - first
    text = getattr(model.config, "text_config", None)
    return int(getattr(text, "max_position_embeddings", _NO_LIMIT))


def _number(model: Any, name: str, function: Callable[[Tensor], Tensor], default: float) -> float:
    parameter = getattr(model, name, None)
    if not isinstance(parameter, Tensor) or parameter.numel() != 1:
        return default
    return float(function(parameter.detach().float()))


def _refused(name: str, reason: str) -> ConfigError:
    plain = " ".join(reason.split())
    return ConfigError(f"model {name!r}: not a usable dual encoder ({plain:.400})")
