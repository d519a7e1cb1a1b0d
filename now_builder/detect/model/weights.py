"""Read and write detector weights with their JSON; prepare the model for inference."""

from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from now_builder.config import Strict, build
from now_builder.detect.labels.mapping import ClassMapping
from now_builder.detect.model.apt import AptDetector, ModelConfig
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.io import atomic_write, read_json, sha256_of, write_json

Computed = Literal["fp32", "mixed", "bf16", "fp16"]
Precision = Literal["auto"] | Computed

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_CPU_INFO = Path("/proc/cpuinfo")
_CPU_HAS_BF16 = {"avx512_bf16", "amx_bf16", "bf16"}
"""Flags of CPUs that multiply in bfloat16; on others it is slower than float32."""

FORMAT = "now-detector/2"
SHIPPED = "tiny-web"
"""Name of the weights in the package."""


class DetectorCard(Strict):
    """JSON file next to the weights.

    Attributes:
        model: Architecture.
        classes: English names of the classes, in order.
        mapping: Mapping of elements to the classes, with Chinese names; ``None``: the default.
        prompts: Frozen embedding of each class.
        text_encoder: Encoder of prompts and page text.
        weights_sha256: Hash of the safetensors file, to detect a JSON of other weights.
        settings: Settings of the training.
        trained_on: Pages, sites, steps, fingerprint of the pages.
        measured: Figures on the held-out part of the train pool.
        measured_by_class: The same for each class.
        words: Training, data and figures of the word reader; empty without one.
    """

    format: str = FORMAT
    model: ModelConfig
    classes: list[str]
    mapping: ClassMapping | None = None
    prompts: list[list[float]]
    text_encoder: str
    weights_sha256: str
    settings: dict[str, Any] = Field(default_factory=dict)
    trained_on: dict[str, Any] = Field(default_factory=dict)
    measured: dict[str, float] = Field(default_factory=dict)
    measured_by_class: dict[str, dict[str, float]] = Field(default_factory=dict)
    words: dict[str, Any] = Field(default_factory=dict)


def find_weights(named: Path | None) -> Path:
    """Return the path of weights; that of the package's for ``tiny-web`` and ``None``.

    A file with the name ``tiny-web`` takes precedence.
    """
    if named is None or (str(named) == SHIPPED and not named.exists()):
        return Path(__file__).with_name(f"{SHIPPED}.safetensors")
    return named


def card_path(weights: Path) -> Path:
    """Return the path of the JSON of a weights file."""
    return weights.with_suffix(".json")


def write_weights(path: Path, state: dict[str, Tensor], card: DetectorCard) -> DetectorCard:
    """Write the JSON with the hash, then the weights, each atomically."""
    with atomic_write(path) as temporary:
        save_file({name: tensor.contiguous() for name, tensor in state.items()}, temporary)
        card = card.model_copy(update={"weights_sha256": sha256_of(temporary)})
        write_json(card_path(path), card.model_dump(mode="json"))
    return card


def read_card(weights: Path) -> DetectorCard:
    """Read the JSON of a weights file and check its hash of the weights.

    Raises:
        ConfigError: If the weights are missing.
        FormatError: If the JSON is missing, damaged, or of other weights.
    """
    if not weights.is_file():
        raise ConfigError(
            f"{weights}: file not found. Make it with `now-builder train-detector`, or use "
            f"{SHIPPED}, the weights in the package"
        )
    path = card_path(weights)
    tree = read_json(path, f"file not found; it belongs to {weights.name}")
    tree_format = tree.get("format") if isinstance(tree, dict) else type(tree).__name__
    if tree_format != FORMAT:
        raise FormatError(path, f"format {tree_format!r}, expected {FORMAT!r}")
    # Weights of earlier versions, such as tiny-web, also mapped categories of other data sets.
    if isinstance(mapping := tree.get("mapping"), dict):
        mapping.pop("names", None)
    card = build(DetectorCard, tree, str(path))
    actual = sha256_of(weights)
    if card.weights_sha256 != actual:
        raise FormatError(
            path,
            f"weights_sha256 is {card.weights_sha256[:12]}…, but {weights.name} has "
            f"{actual[:12]}…: not the JSON of these weights",
        )
    return card


def load_detector(weights: Path, device: torch.device) -> tuple[AptDetector, DetectorCard]:
    """Load a trained detector.

    Raises:
        ConfigError: If the weights are missing.
        FormatError: If they are damaged or do not fit their JSON.
    """
    card = read_card(weights)
    model = AptDetector(card.model, to_prompts(card))
    try:
        model.load_state_dict(load_file(weights))
    except (SafetensorError, OSError) as error:
        raise FormatError(weights, f"not a readable safetensors file ({error})") from None
    except RuntimeError as error:
        raise FormatError(weights, f"does not fit its JSON ({str(error)[:300]})") from None
    model = model.to(memory_format=torch.channels_last).to(device)
    return model.eval(), card


def to_prompts(card: DetectorCard) -> Float[Tensor, "classes 768"]:
    """Return the class prompts of a card as a tensor."""
    return torch.tensor(card.prompts, dtype=torch.float32)


def choose_device(name: str) -> torch.device:
    """Turn ``auto``, ``cpu``, ``cuda`` or ``cuda:N`` into a device.

    Raises:
        ConfigError: If the name is unknown or CUDA is not available.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device {name!r}: expected auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device {name!r}: no CUDA device found")
    return device


def choose_precision(
    name: Precision, device: torch.device, size: str, *, reads: bool = False
) -> Computed:
    """Replace ``auto`` by the faster precision, and ``mixed`` by ``fp32`` without words.

    ``auto`` is ``bf16`` on GPUs with bfloat16 and, at the paper's size, on such CPUs. There the
    tiny size is hardly faster, except the word reader, which is twice as fast: with words, it runs
    in ``mixed``, which computes the regions in ``fp32``.

    Raises:
        ConfigError: If the device does not support the precision.
    """
    if device.type != "cuda" and name == "fp16":
        raise ConfigError(
            f"precision fp16: not on {device.type}; expected auto, fp32, mixed or bf16"
        )
    if name == "mixed":
        return "mixed" if reads else "fp32"
    if name != "auto":
        return name
    if device.type == "cuda":
        return "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp32"
    flags = _CPU_INFO.read_text("utf-8", "replace") if _CPU_INFO.exists() else ""  # not Linux
    if _CPU_HAS_BF16.isdisjoint(flags.split()):
        return "fp32"
    return "bf16" if size == "paper" else "mixed" if reads else "fp32"


def to_inference(model: AptDetector, precision: Computed) -> AptDetector:
    """Fold batch norms into convolutions, then convert backbone, proposals and word reader.

    It works in place; the model can no longer be trained or saved. The cheap heads for classes,
    boxes and stored embeddings stay in float32.
    """
    dtype = torch.float32 if precision == "mixed" else _DTYPES[precision]
    parts: dict[nn.Module, torch.dtype] = dict.fromkeys(
        (model.visual, model.neck, model.rpn), dtype
    )
    if model.patches is not None and model.patches.words is not None:
        parts[model.patches.words] = torch.bfloat16 if precision == "mixed" else dtype
    for part, part_dtype in parts.items():
        _fold(part.eval())
        for parameter in part.parameters():  # not buffers: pixel statistics and anchors stay exact
            parameter.requires_grad = False
            parameter.data = parameter.data.to(part_dtype)
    return model.eval().to(memory_format=torch.channels_last)


def _fold(module: nn.Module) -> None:
    """Fold each batch norm into the convolution registered before it."""
    before: tuple[str, nn.Module] | None = None
    for name, child in list(module.named_children()):
        if isinstance(child, nn.BatchNorm2d) and before and isinstance(before[1], nn.Conv2d):
            setattr(module, before[0], fuse_conv_bn_eval(before[1], child))
            setattr(module, name, nn.Identity())
        _fold(child)
        before = (name, child)
