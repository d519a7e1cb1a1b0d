"""The detector prepared for inference: batch norms folded, in a chosen precision."""

from pathlib import Path
from typing import Literal

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from now_builder.detect.model.apt import AptDetector
from now_builder.errors import ConfigError

Computed = Literal["fp32", "mixed", "bf16", "fp16"]
Precision = Literal["auto"] | Computed

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_CPU_INFO = Path("/proc/cpuinfo")
_CPU_HAS_BF16 = {"avx512_bf16", "amx_bf16", "bf16"}
"""Flags of CPUs that multiply in bfloat16; on all others it is slower than float32."""


def choose_precision(
    name: Precision, device: torch.device, size: str, *, reads: bool = False
) -> Computed:
    """Turn ``auto`` into the quicker precision, ``mixed`` into ``fp32`` where no words are read.

    It is ``bf16`` on GPUs that have it and, at the paper's size, on CPUs that have it. On those the
    tiny size is hardly quicker in it, but its reading of words is twice as quick: ``mixed`` leaves
    all else, and so the regions, as they are in ``fp32``.

    Raises:
        ConfigError: If the device cannot compute in a precision.
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
    if _CPU_HAS_BF16.isdisjoint(_cpu_flags()):
        return "fp32"
    return "bf16" if size == "paper" else "mixed" if reads else "fp32"


def _cpu_flags() -> set[str]:
    try:
        return set(_CPU_INFO.read_text(encoding="utf-8", errors="replace").split())
    except OSError:  # not Linux
        return set()


def to_inference(model: AptDetector, precision: Computed) -> AptDetector:
    """Fold batch norms into convolutions, then convert backbone, proposals and reader.

    In place: such a model cannot be trained or saved any more. The heads that compute classes,
    boxes and the stored embedding of a pooled region stay in float32; they cost little.
    """
    kind = torch.float32 if precision == "mixed" else _DTYPES[precision]
    parts: list[tuple[nn.Module, torch.dtype]] = [
        (part, kind) for part in (model.visual, model.neck, model.rpn)
    ]
    if model.patches is not None and model.patches.words is not None:
        parts.append((model.patches.words, torch.bfloat16 if precision == "mixed" else kind))
    for part, own in parts:
        _fold(part.eval())
        for parameter in part.parameters():  # not buffers: pixel statistics and anchors stay exact
            parameter.requires_grad = False
            parameter.data = parameter.data.to(own)
    return model.eval().to(memory_format=torch.channels_last)


def _fold(module: nn.Module) -> None:
    """Fold each batch norm into the convolution that is registered before it."""
    before: tuple[str, nn.Module] | None = None
    for name, child in list(module.named_children()):
        if isinstance(child, nn.BatchNorm2d) and before and isinstance(before[1], nn.Conv2d):
            setattr(module, before[0], fuse_conv_bn_eval(before[1], child))
            setattr(module, name, nn.Identity())
        _fold(child)
        before = (name, child)
