"""Matrix products: the faster library on a CPU, and no TF32 within a block on a GPU."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
_FINER_THAN_BF16 = 1 + 2**-12
_CPU_INFO = Path("/proc/cpuinfo")
NARROWEST = 256
"""Minimum width of an embedding; below it oneDNN is slower."""
KERNELS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16", "LRU_CACHE_CAPACITY": "16"}
"""Kernels that oneDNN keeps; with its default of 1,024 they fill half a gigabyte."""


@contextmanager
def fast_float32(width: int) -> Iterator[bool]:
    """Use oneDNN for float32 matrix products on the CPU, where it is faster and exact.

    PyTorch's other library, MKL, uses the wide registers of Intel's processors alone: on others
    oneDNN is up to twice as fast on large products. On Intel's processors it is no faster, and on
    small products it is slower everywhere, because it compiles a kernel for each shape. So
    processor and width decide, and a run that is resumed on its machine has the same products.
    Few kernels are kept, unless the environment variables say otherwise.

    The switch to oneDNN also allows bfloat16 in the products of processors with matrix tiles; on
    these it is not used. It acts on the whole process and is restored at the end.
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
def _in_float32(switch: Any) -> Iterator[None]:
    """Do the products of a backend of torch in float32."""
    before = switch.fp32_precision
    switch.fp32_precision = "ieee"
    try:
        yield
    finally:
        switch.fp32_precision = before


@contextmanager
def small_products() -> Iterator[None]:
    """Do not use oneDNN for float32 products on the CPU.

    Compiling its kernel for a shape takes longer than a product of some dozen rows.
    """
    with _in_float32(torch.backends.mkldnn.matmul):  # type: ignore[attr-defined]
        yield


def linear(x: Tensor, weight: Tensor, bias: Tensor, *, relu: bool = False) -> Tensor:
    """Apply a linear layer, with ``relu`` also a rectifier, without a graph.

    Where oneDNN does the products, bias and rectifier are part of the product.
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
    """Return whether Linux lists an instruction of the processor that multiplies bfloat16."""
    if not _CPU_INFO.exists():
        return False
    return not _BF16_FLAGS.isdisjoint(_CPU_INFO.read_text(encoding="utf-8").split())


@contextmanager
def whole_float32() -> Iterator[None]:
    """Do a GPU's float32 products in float32, also with ``train.tf32``."""
    with _in_float32(torch.backends.cuda.matmul):
        yield


@cache
def _is_intel() -> bool:
    """Return whether Linux lists an Intel processor."""
    return _CPU_INFO.exists() and "GenuineIntel" in _CPU_INFO.read_text(encoding="utf-8")


def _is_exact() -> bool:
    """Return whether a product keeps digits that bfloat16 would round away."""
    product = torch.full((256, 256), _FINER_THAN_BF16) @ torch.ones(256, 256)
    return bool((product == 256 * _FINER_THAN_BF16).all())
