"""Float32 products by the other library stay float32, or the switch goes back."""

import pytest
import torch

from pc2_baseline import products


@pytest.fixture(autouse=True)
def switch():
    """Leave the switch as it was."""
    own = torch.backends.mkldnn.matmul
    before = own.fp32_precision
    yield own
    own.fp32_precision = before


def test_products_after_the_switch_are_as_near_to_float64_as_float32_is():
    products.speed_up_float32()
    a, b = torch.randn(64, 1024), torch.randn(1024, 64)
    exact = a.double() @ b.double()
    assert ((a @ b) - exact).abs().max() < 1e-6 * exact.abs().max() * 1024**0.5


def test_the_switch_goes_back_where_products_are_rounded(switch, monkeypatch):
    monkeypatch.setattr(products, "_is_exact", lambda: False)
    assert not products.speed_up_float32()
    assert switch.fp32_precision == "ieee"
