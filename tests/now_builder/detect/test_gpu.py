"""What the detector computes on a GPU is what it computes on the CPU; NOW_TEST_DEVICE names it."""

import numpy as np
import pytest
import torch

from now_builder.detect.base import Page
from now_builder.detect.model.text_encoder import HashedNgrams, dom_text_boxes
from now_builder.detect.model.weights import find_weights, load_detector, to_inference
from now_builder.detect.pixels import decode_screenshot, to_batch
from now_builder.detect.regions.extraction import AptExtractor
from now_builder.detect.regions.loading import resolve_settings
from now_builder.detect.run import Pipeline
from now_builder.detect.settings import DetectSettings, TrainDetectorSettings
from now_builder.detect.training.learner import Learner
from now_builder.detect.training.run import finish, train
from now_builder.formats.feature_parts import read_part, read_parts

pytestmark = pytest.mark.gpu

CPU = torch.device("cpu")
BOXES = torch.tensor([[10.0, 20, 90, 120], [0, 0, 180, 320], [50, 200, 75, 231]])


def shipped():
    return load_detector(find_weights(None), CPU)[0]


def apart(found, expected):
    """Relative distance, in the norm; a NaN is infinitely far."""
    distance = float((found.to(expected.dtype).cpu() - expected).norm() / expected.norm())
    return distance if np.isfinite(distance) else np.inf


def allowed(precision, device):
    if precision == "fp16" and device.type != "cuda":
        pytest.skip("fp16 needs CUDA")
    return precision


@pytest.mark.parametrize(("precision", "near"), [("fp32", 1e-3), ("bf16", 0.05), ("fp16", 0.01)])
def test_maps_and_pooled_regions_are_those_of_the_cpu(
    captured, device, full_float32, make_model, precision, near
):
    exact = make_model()
    model = to_inference(make_model().to(device), allowed(precision, device))
    size = exact.config.input_size
    shots = to_batch([decode_screenshot(page.screenshot, size, "") for page in captured[:2]])
    with torch.inference_mode():
        expected, found = exact.maps(shots), model.maps(shots.to(device))
        assert apart(found.regions, expected.regions) < near
        assert apart(found.levels[0], expected.levels[0]) < near
        pooled = exact.pool(expected, [BOXES] * 2)
        ours = model.pool(found, [BOXES.to(device)] * 2)
        assert apart(ours, pooled) < 2 * near
        assert apart(model.projection(ours.float()), exact.projection(pooled)) < 2 * near


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_the_stage_extracts_on_the_device_what_it_does_on_the_cpu(
    captured, device, tmp_path, full_float32, precision
):
    """Pinned copies, streams, batches and parts; rounding may swap boxes, hence scores by rank."""
    model = to_inference(shipped().to(device), allowed(precision, device))
    extractor = AptExtractor(model, HashedNgrams(0), {})
    settings = DetectSettings(device=str(device), threads=2)
    Pipeline(extractor, tmp_path / "f.h5", settings, 3).run(iter(captured), len(captured), 0)
    found = [read_part(part)[0] for part in read_parts(tmp_path / "f.h5")]
    assert [key for batch in found for key in batch.keys] == [page.key for page in captured]
    plain = AptExtractor(shipped(), HashedNgrams(0), {})
    pages = [Page(page.key, dom_text_boxes(page.elements)) for page in captured]
    size = plain.input_size
    shots = to_batch([decode_screenshot(page.screenshot, size, "") for page in captured])
    expected = plain.extract(pages, shots)
    scores = np.concatenate([np.sort(batch.scores, axis=1) for batch in found])
    wanted = np.sort(expected.scores, axis=1)
    assert np.abs(scores - wanted).max() < (0.01 if precision == "fp32" else 0.2) * wanted.max()
    regions = np.concatenate([batch.regions for batch in found])
    assert np.isfinite(regions).all()
    assert np.linalg.norm(regions) == pytest.approx(np.linalg.norm(expected.regions), rel=0.05)


def settings_on(device, **more):
    made = {"steps": 12, "batch_size": 2, "threads": 1, "device": str(device), **more}
    return TrainDetectorSettings(**made)


def steps(training, count):
    return [sum(training.take_step().values()) for _ in range(count)]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_it_learns_in_every_precision_and_keeps_fp32_parameters(pictured, device, precision):
    count = 24 if allowed(precision, device) == "fp16" else 12  # its first steps only find a scale
    training = Learner(settings_on(device, precision=precision, steps=count), pictured)
    kinds = set()
    conv = training.model.visual.conv2
    conv.register_forward_hook(lambda *call: kinds.add(call[2].dtype))
    totals = steps(training, count)
    wanted = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    assert kinds == {wanted[precision]}
    assert {p.dtype for p in training.model.parameters()} == {torch.float32}
    assert sum(totals[-3:]) < 0.8 * sum(totals[:3])


def test_the_scale_of_fp16_survives_a_stop(pictured, device):
    settings = settings_on(device, precision=allowed("fp16", device))
    training, again = (Learner(settings, pictured) for _ in range(2))
    steps(training, 1)
    training.scaler.update(1234.0)
    again.load_state_dict(training.state_dict())
    assert (again.scaler.get_scale(), again.step) == (1234.0, 1)


def test_gradients_are_those_of_the_cpu(pictured, device):
    """In float64, on drawn pixels: on flat pages float32's rounding alone moves them by 8 %."""
    found = []
    for where in (CPU, device):
        training = Learner(settings_on(where), pictured)
        model = training.model.double()
        drawn = torch.Generator().manual_seed(0)
        shape = training.screenshots.read(training.batch()).shape
        pixels = torch.rand(shape, generator=drawn, dtype=torch.float64)
        objectness, deltas, _ = model.rpn(model.maps(pixels.to(where)))
        (objectness.square().mean() + deltas.square().mean()).backward()
        gradients = [p.grad.flatten().cpu() for p in model.visual.parameters()
                     if p.grad is not None]  # fmt: skip
        found.append((objectness.detach().cpu(), torch.cat(gradients)))
    assert apart(found[1][0], found[0][0]) < 1e-6
    assert apart(found[1][1], found[0][1]) < 1e-6


def test_a_whole_training_writes_weights_that_detect_takes_on_its_own_device(
    pictured, device, tmp_path, monkeypatch
):
    weights = tmp_path / "w.safetensors"
    finish(weights, train(weights, settings_on(device, steps=2), pictured))
    monkeypatch.setenv("LOCAL_RANK", "0")
    settled = resolve_settings(DetectSettings(weights=weights, device=device.type))
    assert settled.device == ("cuda:0" if device.type == "cuda" else "cpu")
