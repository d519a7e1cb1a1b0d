"""Float32 products by the faster of a CPU's two libraries, where it gives float32."""

import torch

_FINER_THAN_BF16 = 1 + 2**-12


def speed_up_float32() -> bool:
    """Let oneDNN do float32 matrix products on the CPU, if it does them in float32.

    PyTorch's other library, MKL, does not use the wide registers of processors that are not
    Intel's: there oneDNN is more than twice as fast. The switch that hands products to it
    (``set_float32_matmul_precision("medium")``) also allows bfloat16 inside where a processor has
    matrix tiles for it; then the switch is turned back.

    Returns:
        Whether it was turned on.
    """
    switch = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    switch.fp32_precision = "bf16"
    if _is_exact():
        return True
    switch.fp32_precision = "ieee"
    return False


def _is_exact() -> bool:
    """Whether a product keeps what bfloat16 would round away."""
    product = torch.full((256, 256), _FINER_THAN_BF16) @ torch.ones(256, 256)
    return bool((product == 256 * _FINER_THAN_BF16).all())
