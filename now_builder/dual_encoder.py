"""Embed pictures and texts by pre-trained dual encoders of `transformers`."""

from collections.abc import Iterator, Sequence
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

from now_builder.errors import ConfigError
from now_builder.hub.models import find_model, hash_of_files
from now_builder.program.missing_package import install_extra

TowerPrecision = Literal["fp32", "bf16", "fp16"]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_SMALL = ("*.json", "*.txt", "*.model")
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_UNUSABLE = (
    OSError, ValueError, TypeError, RuntimeError, ImportError, LookupError, AttributeError,
    SafetensorError,
)  # fmt: skip
LONGEST = 512
"""Maximum tokens of a text if a model sets no limit; descriptions are shorter."""
_SIDE = 512
"""Maximum side of pictures before the processor resizes them, px."""
_LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}


class EncoderInputs:
    """Prepare the inputs of a dual encoder: pixels of pictures and token ids of texts.

    It reads no weights, and never runs code that comes with a model.

    Args:
        name: Folder, or name on the hub; the model is downloaded if it is not in the cache.

    Attributes:
        folder: Folder of its files.
        text_limit: Maximum tokens of a text, special tokens included.
        shape: Shape of a resized picture: channels, height and width.

    Raises:
        ConfigError: If `transformers` is missing, the model cannot be downloaded, lacks a file, or
            is not a dual encoder of pictures of one size.
    """

    def __init__(self, name: str) -> None:
        self.name, self.folder = name, find_encoder(name)
        from transformers import AutoConfig, AutoModel, AutoProcessor

        models: Any = AutoModel  # untyped, like AutoProcessor
        processors: Any = AutoProcessor
        with unusable(name):
            config: Any = AutoConfig.from_pretrained(self.folder, **_LOCAL)
            with torch.device("meta"):
                self._skeleton = models.from_config(config, trust_remote_code=False)
            processor = processors.from_pretrained(self.folder, **_LOCAL)
            self.image_processor, self.tokenizer = processor.image_processor, processor.tokenizer
            positions = getattr(config.text_config, "max_position_embeddings", LONGEST)
            self.text_limit = min(self.tokenizer.model_max_length, positions)
            # SigLIP pools the last position: texts are padded to full length, without a mask.
            self.full_length = "siglip" in config.model_type
            one = self._process([Image.new("RGB", (_SIDE, _SIDE))])
        self.shape = tuple(one.shape[1:])
        if len(self.shape) != 3 or not hasattr(self._skeleton, "get_image_features"):
            raise refused(name, f"{config.model_type} does not embed pictures of one size")

    @cached_property
    def width(self) -> int:
        """Width of the vectors."""
        ids = torch.zeros(1, self.text_limit, dtype=torch.long, device="meta")
        return int(_vectors(self.name, self._skeleton.get_text_features(input_ids=ids)).shape[1])

    def pack(self, pictures: Sequence[Image.Image]) -> UInt8[Tensor, "n values"]:
        """Resize RGB pictures of any size to the model's input, one row of bytes each.

        Each becomes a square first, so that a processor that crops (CLIP's) loses nothing.
        :meth:`DualTowers.images` scales and shifts them; bytes take a quarter of the memory.
        """
        rows = self._process([squared(each) for each in pictures]).flatten(1)
        packed = rows.to(torch.uint8)
        if not torch.equal(packed.to(rows.dtype), rows) or packed.shape[1] != prod(self.shape):
            raise refused(self.name, "its image processor does not return bytes")
        return packed

    def _process(self, pictures: list[Image.Image]) -> Tensor:
        made = self.image_processor(
            pictures, return_tensors="pt", do_rescale=False, do_normalize=False
        )
        pixels: Tensor = made["pixel_values"]
        return pixels

    def tokens(self, texts: Sequence[str], most: int | None = None) -> list[list[int]]:
        """Return the ids of texts, cut to the limit or to ``most`` tokens plus special tokens."""
        special = self.tokenizer.num_special_tokens_to_add()
        limit = self.text_limit if most is None else min(self.text_limit, most + special)
        encoded = self.tokenizer(list(texts), truncation=True, max_length=limit)
        if self.full_length:
            encoded = self.tokenizer.pad(encoded, padding="max_length", max_length=self.text_limit)
        return list(encoded["input_ids"])


class DualTowers(nn.Module):
    """Embed the inputs that :class:`EncoderInputs` prepares.

    Source:
        CLIP (Radford et al., ICML 2021); SigLIP (Zhai et al., ICCV 2023).
    """

    mean: Tensor
    spread: Tensor

    def __init__(self, inputs: EncoderInputs, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        from transformers import AutoModel
        from transformers.utils import logging

        log: Any = logging  # untyped
        log.disable_progress_bar()  # it takes seconds
        with unusable(inputs.name):
            self.model, loading = AutoModel.from_pretrained(
                inputs.folder, dtype=dtype, output_loading_info=True, **_LOCAL
            )
        if missing := sorted(loading["missing_keys"]):  # transformers initialises them at random
            raise refused(inputs.name, f"{len(missing)} parameters missing: {missing[:3]}")
        self._inputs = [inputs]  # a list, so that it is not registered as a submodule
        processor = inputs.image_processor
        factor = processor.rescale_factor if processor.do_rescale else 1.0
        values = (processor.image_mean, processor.image_std)
        for name, value in zip(
            ("mean", "spread"), values if processor.do_normalize else (0.0, 1.0), strict=True
        ):
            channels = torch.as_tensor(value).expand(3) / factor
            self.register_buffer(name, channels[:, None, None], persistent=False)

    def images(self, packed: Num[Tensor, "n values"]) -> Float[Tensor, "n width"]:
        """Embed packed pictures; vectors are not normalised."""
        pixels = packed.reshape(-1, *self._inputs[0].shape).float()
        inputs = ((pixels - self.mean) / self.spread).to(self.model.dtype)
        return _vectors(self._inputs[0].name, self.model.get_image_features(pixel_values=inputs))

    def texts(
        self, tokens: Int[Tensor, "n words"], lengths: Int[Tensor, " n"]
    ) -> Float[Tensor, "n width"]:
        """Embed texts from ids, right-padded with any value."""
        inputs, position = self._inputs[0], torch.arange(tokens.shape[1], device=tokens.device)
        is_token = position < lengths.to(tokens.device)[:, None]
        ids = tokens.masked_fill(~is_token, inputs.tokenizer.pad_token_id)
        mask = {} if inputs.full_length else {"attention_mask": is_token.long()}
        return _vectors(inputs.name, self.model.get_text_features(input_ids=ids, **mask))


class PictureEncoder(EncoderInputs):
    """The picture tower of a dual encoder, loaded on a device."""

    def __init__(self, name: str, device: torch.device, precision: TowerPrecision = "fp32") -> None:
        super().__init__(name)
        self._device = device
        self._towers = DualTowers(self, DTYPES[precision]).to(device).eval()

    @torch.inference_mode()
    def images(self, pictures: Sequence[Image.Image]) -> Float[Tensor, "n width"]:
        """Embed pictures, in any size, as unit vectors in float32 on the CPU."""
        packed = self.pack(pictures).to(self._device)
        vectors = self._towers.images(packed).float().cpu()
        if not vectors.isfinite().all():
            raise refused(self.name, "its vectors are not finite; precision fp32 may help")
        return F.normalize(vectors, dim=1)


def _vectors(name: str, output: Any) -> Float[Tensor, "n width"]:
    vectors = output if isinstance(output, Tensor) else getattr(output, "pooler_output", None)
    if not isinstance(vectors, Tensor) or vectors.ndim != 2:
        raise refused(name, "does not return one vector per input")
    return vectors


def squared(picture: Image.Image) -> Image.Image:
    """Resize a picture to a square, of at most 512 px."""
    side = min(max(picture.size), _SIDE)
    return picture.resize((side, side), Image.Resampling.BICUBIC)


def find_encoder(name: str) -> Path:
    """Return the folder of a pre-trained model; download it if necessary.

    Raises:
        ConfigError: If `transformers` is missing, there is no such model, or it has no weights.
    """
    if find_spec("transformers") is None:
        raise ConfigError(f"transformers is missing; {install_extra('zero-shot')}")
    advice = f"with a network, run `hf download {name or 'NAME'}`"
    for pattern in _WEIGHTS:  # pickles (read as plain values) only if there are no safetensors
        try:
            folder = find_model(name, (*_SMALL, pattern))
        except ConfigError as error:
            raise refused(name, f"{advice} ({error})") from None
        if any(folder.rglob(pattern)):
            return folder
    raise refused(name, f"model.safetensors is missing in {folder}; {advice}")


def hash_of_encoder(folder: Path) -> str:
    """Hash weights, configuration, processor and tokenizer of a pre-trained model."""
    return hash_of_files(folder, (*_SMALL, *_WEIGHTS))


def encoder_name(name: str) -> str:
    """Return a name on the hub unchanged, and of a folder its name without the path."""
    return Path(name).resolve().name if Path(name).is_dir() else name


@contextmanager
def unusable(name: str) -> Iterator[None]:
    """Turn exceptions of libraries about a model into a ConfigError."""
    try:
        yield
    except UnpicklingError:
        raise refused(name, "its weights are a pickle with other objects than tensors") from None
    except _UNUSABLE as error:
        raise refused(name, str(error)) from None


def refused(name: str, reason: str) -> ConfigError:
    """Return the error for a model that cannot be used."""
    plain = " ".join(reason.split())
    return ConfigError(f"model {name!r}: not a usable dual encoder ({plain:.400})")
