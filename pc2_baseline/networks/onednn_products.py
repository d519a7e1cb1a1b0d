"""Float32 products by the faster of a CPU's two libraries, where it gives float32."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_FINER_THAN_BF16 = 1 + 2**-12


@contextmanager
def fast_float32() -> Iterator[bool]:
    """Let oneDNN do float32 matrix products on the CPU, if it does them in float32.

    PyTorch's other library, MKL, does not use the wide registers of processors that are not
    Intel's: there oneDNN is more than twice as fast. The switch that hands products to it also
    allows bfloat16 inside where a processor has matrix tiles for it; then it is left alone. It is
    the whole process's, so it is put back at the end.

    Returns:
        Whether it was turned on.
    """
    switch = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = switch.fp32_precision
    switch.fp32_precision = "bf16"
    on = _is_exact()
    if not on:
        switch.fp32_precision = before
    try:
        yield on
    finally:
        switch.fp32_precision = before


def _is_exact() -> bool:
    """Whether a product keeps what bfloat16 would round away."""
    product = torch.full((256, 256), _FINER_THAN_BF16) @ torch.ones(256, 256)
    return bool((product == 256 * _FINER_THAN_BF16).all())
