"""The form in which the detector runs: the same numbers as the trained one, only quicker."""

import copy

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import nn
from torchvision.ops import roi_align

from now_builder.detect.base import Page
from now_builder.detect.model import weights as weights_module
from now_builder.detect.model.apt import align
from now_builder.detect.model.text_encoder import HashedNgrams
from now_builder.detect.model.weights import (
    choose_precision,
    find_weights,
    load_detector,
    to_inference,
)
from now_builder.detect.regions.extraction import AptExtractor
from now_builder.errors import ConfigError

CPU = torch.device("cpu")


def screenshots(count=2):
    generator = torch.Generator().manual_seed(1)
    small = torch.randint(0, 256, (count, 3, 40, 22), generator=generator, dtype=torch.uint8)
    return small.repeat_interleave(16, 2).repeat_interleave(17, 3)[..., :640, :360].contiguous()


@torch.inference_mode()
def test_folded_batch_norms_give_the_same_numbers(make_model):
    model, folded = make_model(), to_inference(make_model(), "fp32")
    assert not any(isinstance(child, nn.BatchNorm2d) for child in folded.modules())
    maps, ours = model.maps(screenshots()), folded.maps(screenshots())
    torch.testing.assert_close(ours.regions, maps.regions, atol=1e-4, rtol=1e-4)
    boxes = [torch.tensor([[10.0, 20, 90, 120], [0, 0, 360, 640]])] * 2
    torch.testing.assert_close(
        folded.pool(ours, boxes), model.pool(maps, boxes), atol=1e-4, rtol=1e-3
    )


def test_a_model_in_bfloat16_keeps_its_pixel_statistics_and_stays_close(make_model):
    exact, rough = make_model(), to_inference(make_model(), "bf16")
    assert rough.visual.dtype == torch.bfloat16
    assert rough.visual.mean.dtype == rough.projection.weight.dtype == torch.float32
    two = AptExtractor(rough, HashedNgrams(0), {}).extract([Page("a"), Page("b")], screenshots())
    assert np.isfinite(two.regions).all()
    boxes = [torch.from_numpy(page) / 2 for page in two.boxes]
    with torch.inference_mode():
        maps, ours = exact.maps(screenshots()), rough.maps(screenshots())
        expected, found = exact.pool(maps, boxes), rough.pool(ours, boxes)
    assert ours.regions.dtype == ours.levels[0].dtype == torch.bfloat16
    assert (ours.regions.float() - maps.regions).norm() < 0.03 * maps.regions.norm()
    assert (found.float() - expected).norm() < 0.05 * expected.norm()


def test_mixed_reads_in_bf16_and_leaves_the_regions_alone():
    model, card = load_detector(find_weights(None), CPU)
    assert card.model.words
    page = Image.new("RGB", (360, 640), "white")
    pen, font = ImageDraw.Draw(page), ImageFont.load_default(14)
    for top in range(10, 620, 24):
        pen.text((10, top), f"row {top} of words about the weather", "black", font)
    pages = torch.from_numpy(np.array(page)).permute(2, 0, 1)[None].repeat(2, 1, 1, 1)
    boxes = [torch.tensor([[0.0, 0, 360, 320], [0, 320, 360, 640]])] * 2
    with torch.inference_mode():
        exact = to_inference(copy.deepcopy(model), "fp32")
        mixed = to_inference(model, "mixed")
        assert torch.equal(mixed.maps(pages).regions, exact.maps(pages).regions)
        read, said = mixed.patches.words(pages, boxes), exact.patches.words(pages, boxes)
    assert next(mixed.patches.words.parameters()).dtype == torch.bfloat16
    assert read.dtype == torch.float32
    assert (read - said).norm() < 0.1 * said.norm()
    assert said.norm() > 1


def flags(tmp_path, monkeypatch, text):
    path = tmp_path / "cpuinfo"
    path.write_text(f"flags : fpu avx2 {text}\n")
    monkeypatch.setattr(weights_module, "_CPU_INFO", path)


def test_precision_follows_the_cpu_and_the_size(tmp_path, monkeypatch):
    flags(tmp_path, monkeypatch, "avx512f avx512_bf16")
    assert choose_precision("auto", CPU, "paper") == "bf16"
    assert choose_precision("auto", CPU, "tiny") == "fp32"
    assert choose_precision("auto", CPU, "tiny", reads=True) == "mixed"
    assert choose_precision("mixed", CPU, "tiny") == "fp32", "there are no words"
    assert choose_precision("fp32", CPU, "tiny", reads=True) == "fp32"
    assert choose_precision("fp32", CPU, "paper") == "fp32"
    flags(tmp_path, monkeypatch, "avx512f")
    assert choose_precision("auto", CPU, "tiny", reads=True) == "fp32"
    assert choose_precision("bf16", CPU, "paper") == "bf16"
    monkeypatch.setattr(weights_module, "_CPU_INFO", tmp_path / "none")
    assert choose_precision("auto", CPU, "paper") == "fp32"
    with pytest.raises(ConfigError, match="fp16: not on cpu"):
        choose_precision("fp16", CPU, "paper")


@pytest.mark.parametrize("points", [1, 2])
def test_regions_are_read_as_torchvision_reads_them(points):
    """Boxes inside, on the edges, beyond them, and of no size; pages with many, one and none."""
    generator = torch.Generator().manual_seed(2)
    maps = torch.randn(3, 5, 20, 11, generator=generator)
    corner = torch.rand(40, 2, generator=generator) * torch.tensor([170.0, 310])
    size = torch.rand(40, 2, generator=generator) * 100
    odd = torch.tensor([[0.0, 0, 176, 320], [-40, -9, 10, 10], [150, 300, 400, 500], [9, 9, 9, 9]])
    regions = [torch.cat([torch.cat([corner, corner + size], dim=1), odd]), odd[:0], odd[:1]]
    expected = roi_align(maps, regions, 4, 1 / 16, points, aligned=True)
    with torch.no_grad():
        torch.testing.assert_close(align(maps, regions, 4, 1 / 16, points), expected)
        rough = align(maps.bfloat16(), regions, 4, 1 / 16, points)
    assert rough.dtype == torch.bfloat16
    assert rough.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(rough.float(), expected, atol=0.05, rtol=0.05)


def test_gradients_pass_through_reading_regions():
    maps = torch.randn(1, 2, 6, 6, requires_grad=True)
    align(maps, [torch.tensor([[0.0, 0, 48, 48]])], 2, 1 / 16, 1).sum().backward()
    assert maps.grad.abs().sum() > 0
