"""Float32 products by the faster of a CPU's two libraries, where it gives float32."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

_FINER_THAN_BF16 = 1 + 2**-12
_CPU_INFO = Path("/proc/cpuinfo")
NARROWEST = 256
"""Width of an embedding from which oneDNN pays."""


@contextmanager
def fast_float32(width: int) -> Iterator[bool]:
    """Let oneDNN do float32 matrix products on the CPU, where it pays and does them in float32.

    PyTorch's other library, MKL, does not use the wide registers of processors that are not
    Intel's: there oneDNN is up to twice as fast on large products. On Intel's processors it gains
    nothing, and on small products it costs more than it gains everywhere: it makes a kernel for
    each shape, which takes memory. So it is a matter of processor and width, and a run that is
    resumed on its machine has the same products.

    The switch that hands products to oneDNN also allows bfloat16 inside where a processor has
    matrix tiles for it; then it is left alone. It is the whole process's, so it is put back at the
    end.

    Args:
        width: Width of the embedding that is trained or scored, ``model.embed_dim``.

    Returns:
        Whether it was turned on.
    """
    switch = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = switch.fp32_precision
    on = width >= NARROWEST and not _is_intel()
    if on:
        switch.fp32_precision = "bf16"
        on = _is_exact()
        switch.fp32_precision = "bf16" if on else before
    try:
        yield on
    finally:
        switch.fp32_precision = before


def linear(
    x: Float[Tensor, "*shape inputs"],
    weight: Float[Tensor, "outputs inputs"],
    bias: Float[Tensor, " outputs"],
    *,
    rectify: bool = False,
) -> Float[Tensor, "*shape outputs"]:
    """Return ``linear(x, weight, bias)``, or ``relu`` of it; no gradient flows through.

    Where oneDNN does the products, bias and rectifier are part of the product: PyTorch's own
    function copies the bias to every row first. The values are the same.
    """
    if x.device.type == "cpu" and _by_onednn(x.dtype):
        after = "relu" if rectify else "none"
        fused: Tensor = torch.ops.mkldnn._linear_pointwise(  # noqa: SLF001
            x, weight, bias, after, [], None
        )
        return fused
    plain = functional.linear(x, weight, bias)
    return plain.relu_() if rectify else plain


def _by_onednn(kind: torch.dtype) -> bool:
    """Whether oneDNN does a CPU's products of some type, and can add a bias to them."""
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    if kind == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001
    switch = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    return kind == torch.float32 and switch.fp32_precision == "bf16"


@cache
def _is_intel() -> bool:
    """Whether Linux says that the processor is Intel's."""
    return _CPU_INFO.exists() and "GenuineIntel" in _CPU_INFO.read_text(encoding="utf-8")


def _is_exact() -> bool:
    """Whether a product keeps what bfloat16 would round away."""
    product = torch.full((256, 256), _FINER_THAN_BF16) @ torch.ones(256, 256)
    return bool((product == 256 * _FINER_THAN_BF16).all())
