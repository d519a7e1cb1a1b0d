"""Matrix products: by the faster of a CPU's libraries, and on a GPU without TF32 in a block."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

_BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
_FINER_THAN_BF16 = 1 + 2**-12
_CPU_INFO = Path("/proc/cpuinfo")
NARROWEST = 256
"""Width of an embedding from which oneDNN pays."""
KERNELS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16", "LRU_CACHE_CAPACITY": "16"}
"""Kernels that oneDNN keeps; of 1,024, its default, blocks of many lengths fill half a gigabyte."""


@contextmanager
def fast_float32(width: int) -> Iterator[bool]:
    """Let oneDNN do float32 matrix products on the CPU, where it pays and does them in float32.

    PyTorch's other library, MKL, does not use the wide registers of processors that are not
    Intel's: there oneDNN is up to twice as fast on large products. On Intel's processors it gains
    nothing, and on small products it costs more than it gains everywhere: it makes a kernel for
    each shape. So it is a matter of processor and width, and a run that is resumed on its machine
    has the same products. Few of the kernels are kept, unless the environment says otherwise.

    The switch that hands products to oneDNN also allows bfloat16 inside where a processor has
    matrix tiles for it; then it is left alone. It is the whole process's, so it is put back at the
    end.
    """
    switch = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = switch.fp32_precision
    for name, number in KERNELS.items():  # read at the first product of the process
        os.environ.setdefault(name, number)
    on = width >= NARROWEST and not _is_intel()
    if on:
        switch.fp32_precision = "bf16"
        on = _is_exact()
        switch.fp32_precision = "bf16" if on else before
    try:
        yield on
    finally:
        switch.fp32_precision = before


@contextmanager
def small_products() -> Iterator[None]:
    """Leave float32 products on the CPU to PyTorch's other library.

    Making oneDNN's kernel for a shape takes longer than a product of some dozen rows.
    """
    switch = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = switch.fp32_precision
    switch.fp32_precision = "ieee"
    try:
        yield
    finally:
        switch.fp32_precision = before


def linear(x: Tensor, weight: Tensor, bias: Tensor, *, relu: bool = False) -> Tensor:
    """Apply a linear layer, and a rectifier if asked, without a graph.

    Where oneDNN does the products, it adds the bias and rectifies within the product.
    """
    mkldnn = torch.backends.mkldnn
    on = mkldnn.matmul.fp32_precision == "bf16"  # type: ignore[attr-defined]
    if on and x.is_cpu and x.dtype != torch.float64 and mkldnn.is_available():  # type: ignore[no-untyped-call]
        last = "relu" if relu else "none"
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, last, [], "")  # noqa: SLF001
        return product
    product = functional.linear(x, weight, bias)
    return product.relu_() if relu else product


@cache
def multiplies_in_bf16() -> bool:
    """Whether Linux lists an instruction of the processor that multiplies bfloat16."""
    if not _CPU_INFO.exists():
        return False
    return not _BF16_FLAGS.isdisjoint(_CPU_INFO.read_text(encoding="utf-8").split())


@contextmanager
def whole_float32() -> Iterator[None]:
    """Let a GPU do float32 products in float32, also where ``train.tf32`` rounds those around."""
    switch = torch.backends.cuda.matmul
    before = switch.fp32_precision
    switch.fp32_precision = "ieee"
    try:
        yield
    finally:
        switch.fp32_precision = before


@cache
def _is_intel() -> bool:
    """Whether Linux says that the processor is Intel's."""
    return _CPU_INFO.exists() and "GenuineIntel" in _CPU_INFO.read_text(encoding="utf-8")


def _is_exact() -> bool:
    """Whether a product keeps what bfloat16 would round away."""
    product = torch.full((256, 256), _FINER_THAN_BF16) @ torch.ones(256, 256)
    return bool((product == 256 * _FINER_THAN_BF16).all())
