"""Float32 products by the other library stay float32, and the switch goes back."""

import pytest
import torch

from pc2_baseline.networks import onednn_products as products


@pytest.fixture
def switch():
    """What chooses the library."""
    return torch.backends.mkldnn.matmul


def test_products_with_the_switch_are_as_near_to_float64_as_float32_is(switch):
    before = switch.fp32_precision
    a, b = torch.randn(64, 1024), torch.randn(1024, 64)
    exact = a.double() @ b.double()
    with products.fast_float32(1024):
        found = a @ b
    assert (found - exact).abs().max() < 1e-6 * exact.abs().max() * 1024**0.5
    assert switch.fp32_precision == before


def test_the_switch_stays_off_where_products_would_be_rounded(switch, monkeypatch):
    monkeypatch.setattr(products, "_is_exact", lambda: False)
    before = switch.fp32_precision
    with products.fast_float32(1024) as on:
        assert not on
        assert switch.fp32_precision == before


def test_the_switch_goes_back_after_an_error(switch):
    before = switch.fp32_precision
    with pytest.raises(KeyError), products.fast_float32(1024):
        raise KeyError
    assert switch.fp32_precision == before


@pytest.mark.parametrize(
    ("vendor", "width", "turned"),
    [("AuthenticAMD", 256, True), ("AuthenticAMD", 255, False), ("GenuineIntel", 2048, False)],
)
def test_the_processor_and_the_width_decide(switch, monkeypatch, tmp_path, vendor, width, turned):
    """Small products and Intel's processors are left to the library that serves them well."""
    info = tmp_path / "cpuinfo"
    info.write_text(f"vendor_id\t: {vendor}\n", encoding="utf-8")
    monkeypatch.setattr(products, "_CPU_INFO", info)
    monkeypatch.setattr(products, "_is_exact", lambda: True)
    products._is_intel.cache_clear()
    before = switch.fp32_precision
    with products.fast_float32(width) as on:
        assert on == turned
        assert (switch.fp32_precision == "bf16") == (turned or before == "bf16")
    products._is_intel.cache_clear()
    assert switch.fp32_precision == before


@pytest.mark.parametrize("relu", [False, True])
def test_a_linear_layer_by_either_library_is_the_same(switch, monkeypatch, relu):
    x, weight, bias = torch.randn(3, 40, 64), torch.randn(32, 64), torch.randn(32)
    expected = torch.nn.functional.linear(x, weight, bias)
    expected = expected.relu() if relu else expected
    found = products.linear(x, weight, bias, relu=relu)
    with products.fast_float32(1024):
        other = products.linear(x, weight, bias, relu=relu)
    assert torch.equal(found, expected)
    assert torch.allclose(other, expected, atol=1e-4)


def test_small_products_are_left_to_the_other_library(switch):
    before = switch.fp32_precision
    switch.fp32_precision = "bf16"
    try:
        with products.small_products():
            assert switch.fp32_precision == "ieee"
        assert switch.fp32_precision == "bf16"
    finally:
        switch.fp32_precision = before


@pytest.mark.parametrize("flags", ["fma avx512_bf16", "fp asimd bf16", "avx512f avx2"])
def test_a_processor_lists_whether_it_multiplies_in_bf16(monkeypatch, tmp_path, flags):
    info = tmp_path / "cpuinfo"
    info.write_text(f"flags\t\t: {flags}\n", encoding="utf-8")
    monkeypatch.setattr(products, "_CPU_INFO", info)
    assert products.multiplies_in_bf16.__wrapped__() == ("bf16" in flags)
