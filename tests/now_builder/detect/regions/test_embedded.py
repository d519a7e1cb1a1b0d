"""Regions described by a dual encoder's picture tower: a small one, with random weights."""

import shutil

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file

from now_builder.detect.regions.extraction import orthonormal
from now_builder.detect.regions.loading import _whole_pixels
from now_builder.detect.run import detect
from now_builder.detect.settings import DetectSettings
from now_builder.dual_encoder import hash_of_encoder
from now_builder.errors import ConfigError
from now_builder.formats.features import LAYOUT, open_features
from now_builder.formats.shard import open_screenshot, read_captures


@pytest.fixture(scope="module")
def captures(draw, tmp_path_factory):
    folder = tmp_path_factory.mktemp("c") / "captures"
    draw(folder, pages=2, sites=2, shards=1)
    return folder


@pytest.fixture(scope="module")
def clip(encoders, tmp_path_factory):
    return encoders.save(encoders.clip, tmp_path_factory.mktemp("m") / "clip", ["cats"])


@pytest.fixture(scope="module")
def settings(weights, clip):
    return DetectSettings(weights=weights, batch_size=2, threads=1, device="cpu", embed=str(clip))


def read(features):
    with open_features(features) as file:
        return file.read(slice(None)), file.attributes


def by_hand(clip, screenshot, box):
    """A region's vector, from the pixels that its box touches."""
    left, top, right, bottom = np.array([*np.floor(box[:2]), *np.ceil(box[2:])], dtype=int)
    crop = np.asarray(open_screenshot(screenshot, ""))[top:bottom, left:right]
    side = min(max(crop.shape[:2]), 512)
    square = Image.fromarray(crop).resize((side, side), Image.Resampling.BICUBIC)
    model = transformers.AutoModel.from_pretrained(clip).eval()
    processor = transformers.AutoProcessor.from_pretrained(clip)
    pixels = processor.image_processor(images=[square], return_tensors="pt")
    with torch.inference_mode():
        found = model.get_image_features(**pixels).pooler_output[0]
    return (found / found.norm()) @ orthonormal(len(found)) * 768**0.5


def test_regions_are_the_detectors_own_but_for_their_features(captures, settings, clip, tmp_path):
    chosen = settings.model_copy(update={"regions": "dom"})
    detect(captures, tmp_path / "own.h5", chosen.model_copy(update={"embed": ""}))
    detect(captures, tmp_path / "f.h5", chosen)
    (own, before), (found, attributes) = read(tmp_path / "own.h5"), read(tmp_path / "f.h5")
    for name in set(LAYOUT) - {"regions"}:
        assert np.array_equal(getattr(own, name), getattr(found, name)), name
    new = {"embed": "clip", "embed_sha256": hash_of_encoder(clip),
           "embed_projection": "orthonormal, seed 0"}  # fmt: skip
    new["precision"] = "fp32"  # of the words alone it may be another
    assert (
        attributes
        == {name: value for name, value in before.items() if not name.startswith("words")} | new
    )
    shots = {capture.key: capture.screenshot for capture in read_captures(captures)}
    for row, key in enumerate(found.keys):
        for place in (0, 11, 35):
            expected = by_hand(clip, shots[key], found.boxes[row, place])
            np.testing.assert_allclose(found.regions[row, place], expected, atol=1e-4)
    np.testing.assert_allclose(np.square(found.regions).mean(axis=2), 1, atol=1e-4)
    assert detect(captures, tmp_path / "f.h5", chosen).fresh == 0


def test_a_file_of_another_tower_or_of_none_is_refused(captures, settings, clip, tmp_path):
    features, other = tmp_path / "f.h5", tmp_path / "clip"
    detect(captures, features, settings)
    shutil.copytree(clip, other)
    moved = settings.model_copy(update={"embed": str(other)})
    assert detect(captures, features, moved).fresh == 0
    state = load_file(other / "model.safetensors")
    state["visual_projection.weight"] += 1
    save_file(state, other / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match=r"embed_sha256.*--force"):
        detect(captures, features, moved)


def test_what_is_no_dual_encoder_is_refused_in_one_line(captures, settings, tmp_path):
    chosen = settings.model_copy(update={"embed": str(tmp_path)})
    with pytest.raises(ConfigError, match=r"model\.safetensors is missing") as caught:
        detect(captures, tmp_path / "f.h5", chosen)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "f.h5").exists()


def test_a_box_covers_the_pixels_that_it_touches_and_one_at_least():
    for box, pixels in {
        (10.2, 20.0, 30.0, 40.7): (10, 20, 30, 41),
        (5.0, 5.0, 5.0, 5.0): (5, 5, 6, 6),
        (720.0, 1280.0, 720.0, 1280.0): (719, 1279, 720, 1280),
        (0.0, 0.0, 720.0, 1280.0): (0, 0, 720, 1280),
    }.items():
        assert _whole_pixels(box) == pixels
