"""Pre-trained dual encoders of `transformers`: pictures and texts to vectors that compare."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib.util import find_spec
from math import prod
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from jaxtyping import Float, Int, Num, UInt8
from PIL import Image
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from now_builder.errors import ConfigError
from now_builder.hub.models import find_model, hash_of_files
from now_builder.program.missing_package import install_extra

TowerPrecision = Literal["fp32", "bf16", "fp16"]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_SMALL = ("*.json", "*.txt", "*.model")
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_TOWERS = ("get_image_features", "get_text_features")
_UNUSABLE = (
    OSError, ValueError, TypeError, RuntimeError, ImportError, KeyError, AttributeError,
    SafetensorError,
)  # fmt: skip
_NO_LIMIT = 10**6
"""Tokens from which on a tokenizer's limit means that it has none."""
LONGEST = 512
"""Maximum tokens of a text where a model sets none: descriptions are shorter."""
_SIDE = 512
"""Maximum side of squeezed pictures, px: no less than towers take."""


class EncoderInputs:
    """What the towers of a dual encoder take: pixels of pictures and ids of texts.

    No weights are read for it.

    Args:
        name: Folder, or name on the hub, from which the model is downloaded unless it has been.
        revision: Branch, tag or commit on the hub.

    Attributes:
        name: Its name on the hub, or that of its folder, without the path.
        folder: Where its files are.
        on_hub: Whether it comes from the hub.
        revision: Its commit on the hub, where that is known.
        text_limit: Maximum tokens of a text, marks of beginning and end included.
        full_length: Whether texts are padded to that, without a mask, as SigLIP's.
        processor: Its image processor and tokenizer.
        layout: Shape and type of what stands for a picture, by name, in the order of :meth:`pack`.

    Raises:
        ConfigError: If `transformers` is missing, the model cannot be had, lacks a file, or is no
            dual encoder.
    """

    def __init__(self, name: str, revision: str | None = None) -> None:
        self.folder = folder = find_encoder(name, revision)
        self.name, self.on_hub = encoder_name(name), not Path(name).is_dir()
        self.revision = folder.name if re.fullmatch(r"[0-9a-f]{40}", folder.name) else None
        self._skeleton, self.processor = _load_parts(name, folder)
        own = (self.processor.tokenizer.model_max_length, _positions(self._skeleton))
        self.text_limit = min((count for count in own if count < _NO_LIMIT), default=LONGEST)
        # SigLIP pools the last place, so that it must be padded as in its training.
        self.full_length = "siglip" in self._skeleton.config.model_type
        one = self._process([Image.new("RGB", (_SIDE, _SIDE))])
        self.layout = {part: (tuple(value.shape[1:]), value.dtype) for part, value in one.items()}

    @cached_property
    def sha256(self) -> str:
        """Hash of weights, configuration, processor and tokenizer."""
        return hash_of_encoder(self.folder)

    @cached_property
    def width(self) -> int:
        """Width of its vectors."""
        ids = torch.zeros(1, self.text_limit, dtype=torch.long, device="meta")
        return int(_vectors(self.name, self._skeleton.get_text_features(input_ids=ids)).shape[1])

    @property
    def values(self) -> int:
        """Number of values of a packed picture."""
        return sum(prod(shape) for shape, _ in self.layout.values())

    def pack(
        self, pictures: Sequence[Image.Image], *, squeeze: bool = False
    ) -> UInt8[Tensor, "n values"]:
        """Resize RGB pictures of any size as the model wants, a row of bytes each.

        They are scaled and shifted (:meth:`DualTowers.images`) where they are embedded: bytes take
        a quarter of the memory. ``squeeze`` resizes each to a square first, so that a processor
        that crops to a square (CLIP's) cuts nothing off.
        """
        found = self._process([squared(each) if squeeze else each for each in pictures])
        rows = torch.cat([found[part].flatten(1) for part in self.layout], 1)
        packed = rows.to(torch.uint8)
        if not torch.equal(packed.to(rows.dtype), rows) or packed.shape[1] != self.values:
            raise refused(self.name, "its image processor makes more of a picture than bytes")
        return packed

    def _process(self, pictures: list[Image.Image]) -> dict[str, Tensor]:
        make: Any = self.processor.image_processor
        return dict(make(pictures, return_tensors="pt", do_rescale=False, do_normalize=False))

    def tokens(self, texts: Sequence[str], most: int | None = None) -> list[list[int]]:
        """Return the ids of texts, cut to the limit, or to ``most`` tokens beside the marks."""
        tokenizer = self.processor.tokenizer
        marks = tokenizer.num_special_tokens_to_add()
        limit = self.text_limit if most is None else min(self.text_limit, most + marks)
        encoded = tokenizer(list(texts), truncation=True, max_length=limit)
        if self.full_length:
            padded = tokenizer.pad(encoded, padding="max_length", max_length=self.text_limit)
            return list(padded["input_ids"])
        return list(encoded["input_ids"])

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return how many tokens each text has before it is cut."""
        encoded = self.processor.tokenizer(list(texts), verbose=False)
        return [len(ids) for ids in encoded["input_ids"]]


class DualTowers(nn.Module):
    """The network of a dual encoder, from what :class:`EncoderInputs` makes to vectors.

    Source:
        CLIP (Radford et al., ICML 2021); SigLIP (Zhai et al., ICCV 2023), whose text tower has
        learned on texts padded to their full length, and without a mask.
    """

    mean: Tensor
    spread: Tensor

    def __init__(self, inputs: EncoderInputs, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.model = load_network(inputs.name, inputs.folder, dtype)
        self._name = inputs.name
        self._dtype, self._layout, self._whole = dtype, inputs.layout, inputs.full_length
        tokenizer: Any = inputs.processor.tokenizer
        self._padding, self._left = tokenizer.pad_token_id, tokenizer.padding_side == "left"
        for name, value in zip(("mean", "spread"), _normalisation(inputs), strict=True):
            self.register_buffer(name, value, persistent=False)

    def images(self, packed: Num[Tensor, "n values"]) -> Float[Tensor, "n width"]:
        """Embed pictures; the vectors are not scaled to unit length."""
        sizes = [prod(shape) for shape, _ in self._layout.values()]
        given = {
            part: own.reshape(-1, *shape).to(kind)
            for (part, (shape, kind)), own in zip(
                self._layout.items(), torch.split(packed, sizes, 1), strict=True
            )
        }
        shown = (given["pixel_values"].float() - self.mean) / self.spread
        given["pixel_values"] = shown.to(self._dtype)
        return _vectors(self._name, self.model.get_image_features(**given))

    def texts(
        self, tokens: Int[Tensor, "n words"], lengths: Int[Tensor, " n"]
    ) -> Float[Tensor, "n width"]:
        """Embed texts from ids of any padding, which stand first in their rows."""
        place = torch.arange(tokens.shape[1], device=tokens.device)
        lengths = lengths.to(tokens.device)[:, None]
        if self._left:
            shift = tokens.shape[1] - lengths
            tokens = tokens.gather(1, (place - shift) % tokens.shape[1])
            there = place >= shift
        else:
            there = place < lengths
        ids = tokens.masked_fill(~there, self._padding)
        mask = {} if self._whole else {"attention_mask": there.long()}
        return _vectors(self._name, self.model.get_text_features(input_ids=ids, **mask))


class DualEncoder(EncoderInputs):
    """A picture tower and a text tower whose vectors are compared by their cosine.

    Any model of `transformers` that has both ``get_image_features`` and ``get_text_features``:
    CLIP, SigLIP, SigLIP 2, AltCLIP, Chinese-CLIP, MetaCLIP 2, a vision-text dual encoder and the
    like. Code that comes with a model is never run.

    Args:
        name: As of :class:`EncoderInputs`.
        device: Device that it runs on.
        precision: Precision of the towers; vectors are always float32.
        revision: Branch, tag or commit on the hub.

    Attributes:
        parameters: Number of values of the network.
        scale: Factor of the cosine, from the model's own ``logit_scale``; 1 without one.
        bias: Added to it, from SigLIP's ``logit_bias``; else 0.

    Raises:
        ConfigError: As :class:`EncoderInputs`.
    """

    def __init__(
        self,
        name: str,
        device: torch.device,
        precision: TowerPrecision = "fp32",
        revision: str | None = None,
    ) -> None:
        super().__init__(name, revision)
        self._device = device
        self.towers = DualTowers(self, DTYPES[precision]).to(device).eval()
        model = self.towers.model
        self.parameters = sum(values.numel() for values in model.parameters())
        self.scale = _number(model, "logit_scale", torch.exp, 1.0)
        self.bias = _number(model, "logit_bias", torch.clone, 0.0)

    def images(
        self, pictures: Sequence[Image.Image], *, squeeze: bool = False
    ) -> Float[Tensor, "n width"]:
        """Embed pictures, as :meth:`pack` takes them, as unit vectors on the CPU."""
        return self.packed_images(self.pack(pictures, squeeze=squeeze))

    @torch.inference_mode()
    def packed_images(self, packed: UInt8[Tensor, "n values"]) -> Float[Tensor, "n width"]:
        """Embed what :meth:`pack` has made of pictures as unit vectors on the CPU."""
        return self._unit("image", self.towers.images(packed.to(self._device)))

    @torch.inference_mode()
    def texts(self, texts: Sequence[str]) -> Float[Tensor, "n width"]:
        """Embed texts, cut to :attr:`text_limit` tokens, as unit vectors on the CPU."""
        ids = [torch.tensor(own) for own in self.tokens(texts)]
        lengths = torch.tensor([len(own) for own in ids])
        tokens = pad_sequence(ids, batch_first=True).to(self._device)
        return self._unit("text", self.towers.texts(tokens, lengths))

    def scores(
        self, images: Float[Tensor, "images width"], captions: Float[Tensor, "captions width"]
    ) -> Float[Tensor, "images captions"]:
        """Return cosines times the model's own scale, plus its bias."""
        return self.scale * (images @ captions.T) + self.bias

    def _unit(self, tower: str, vectors: Float[Tensor, "n width"]) -> Float[Tensor, "n width"]:
        vectors = vectors.float().cpu()
        if not vectors.isfinite().all():
            kind = self.towers.model.dtype
            raise refused(self.name, f"get_{tower}_features is not finite in {kind}; fp32 may be")
        return F.normalize(vectors, dim=1)


def _vectors(name: str, output: Any) -> Float[Tensor, "n width"]:
    found = output if isinstance(output, Tensor) else getattr(output, "pooler_output", None)
    if not isinstance(found, Tensor) or found.ndim != 2:
        raise refused(name, "returns no single vector for each")
    return found


def _normalisation(inputs: EncoderInputs) -> tuple[Tensor, Tensor]:
    """Return what the image processor takes from a pixel, 0 to 255, and what it divides it by."""
    own: Any = inputs.processor.image_processor
    shape = inputs.layout["pixel_values"][0]
    factor = own.rescale_factor if own.do_rescale else 1.0
    sides = (own.image_mean, own.image_std) if own.do_normalize else (0.0, 1.0)
    channels = (torch.as_tensor(side).expand(3) / factor for side in sides)
    # Channels come first, or, where a row is a patch, last.
    mean, spread = (
        side[:, None, None] if len(shape) == 3 else side.repeat(shape[-1] // 3) for side in channels
    )
    return mean, spread


def squared(picture: Image.Image) -> Image.Image:
    """Resize a picture to a square, of at most 512 px."""
    side = min(max(picture.size), _SIDE)
    return picture.resize((side, side), Image.Resampling.BICUBIC)


def find_encoder(name: str, revision: str | None = None) -> Path:
    """Return the folder of a dual encoder, downloaded if need be.

    Raises:
        ConfigError: If `transformers` is missing, there is no such model, or it lacks a file.
    """
    if find_spec("transformers") is None:
        raise ConfigError(f"transformers is missing; {install_extra('zero-shot')}")
    if revision is not None and Path(name).is_dir():
        raise refused(name, f"a folder has no revision {revision!r}")
    advice = f"where there is a network, `hf download {name or 'NAME'}` brings all of it"
    for pattern in _WEIGHTS:  # pickled ones, which are read as plain values, only where need be
        try:
            folder = find_model(name, (*_SMALL, pattern), revision)
        except ConfigError as error:
            raise refused(name, f"{advice} ({error})") from None
        if not (folder / "config.json").is_file():
            raise refused(name, f"config.json is missing in {folder}")
        if any(folder.glob(pattern)):
            return folder
    raise refused(name, f"model.safetensors is missing in {folder}; {advice}")


def hash_of_encoder(folder: Path) -> str:
    """Hash weights, configuration, processor and tokenizer of a dual encoder."""
    return hash_of_files(folder, (*_SMALL, *_WEIGHTS))


def encoder_name(name: str) -> str:
    """Return a name on the hub as it is, and of a folder its own name without the path."""
    return Path(name).resolve().name if Path(name).is_dir() else name


def _load_parts(name: str, folder: Path) -> tuple[Any, Any]:
    """Return the network without its values, and the processor."""
    from transformers import AutoConfig, AutoModel, AutoProcessor

    models: Any = AutoModel  # untyped, as the other
    processors: Any = AutoProcessor
    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    with unusable(name):
        config = AutoConfig.from_pretrained(folder, **local)
        with torch.device("meta"):
            model = models.from_config(config, trust_remote_code=False)
        missing = [tower for tower in _TOWERS if not hasattr(model, tower)]
        if missing:
            kind = config.model_type
            raise refused(name, f"{kind} is no dual encoder: it has no {' and no '.join(missing)}")
        processor = processors.from_pretrained(folder, **local)
    lacking = [part for part in ("image_processor", "tokenizer") if not hasattr(processor, part)]
    if lacking:
        raise refused(name, f"files of its {' and '.join(lacking)} are missing in {folder}")
    return model.eval(), processor


def load_network(name: str, folder: Path, dtype: torch.dtype, kind: Any = None) -> Any:
    """Load the network, by AutoModel or another; no parameter may be missing: it would be random.

    Raises:
        ConfigError: If it cannot be loaded.
    """
    from transformers import AutoModel
    from transformers.utils import logging

    log: Any = logging  # untyped
    log.disable_progress_bar()  # of seconds, a line for each network
    with unusable(name):
        model, loading = (kind or AutoModel).from_pretrained(
            folder, dtype=dtype, output_loading_info=True, local_files_only=True,
            trust_remote_code=False,
        )  # fmt: skip
    if loading["missing_keys"]:
        missing = sorted(loading["missing_keys"])
        raise refused(name, f"{len(missing)} parameters missing: {missing[:3]}")
    return model


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


@contextmanager
def unusable(name: str) -> Iterator[None]:
    """Turn what transformers says of a folder that it cannot use into an error of ours."""
    try:
        yield
    except UnpicklingError:
        raise refused(name, "its weights are a pickle of more than tensors") from None
    except _UNUSABLE as error:
        raise refused(name, str(error)) from None


def refused(name: str, reason: str) -> ConfigError:
    """Return the error that says why a model is not taken."""
    plain = " ".join(reason.split())
    return ConfigError(f"model {name!r}: not a usable dual encoder ({plain:.400})")
