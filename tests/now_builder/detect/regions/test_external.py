"""Regions from detectors of `transformers`: tiny ones, with arbitrary weights, from folders."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

from now_builder.detect.pixels import decode_screenshot, to_batch
from now_builder.detect.regions.external import ExternalDetector, fingerprint
from now_builder.detect.regions.loading import absolute
from now_builder.detect.regions.sources import ExternalBoxes
from now_builder.detect.run import detect
from now_builder.detect.settings import DetectSettings
from now_builder.errors import ConfigError
from now_builder.formats.features import SOURCES, open_features
from now_builder.formats.shard import read_captures

SIDE = {"height": 128, "width": 128}
EDGES = {"shortest_edge": 100, "longest_edge": 200}
CPU = torch.device("cpu")
_SMALL = {"num_queries": 50, "num_labels": 3, "decoder_ffn_dim": 16, "decoder_layers": 2}
_HYBRID = {
    **_SMALL, "encoder_hidden_dim": 16, "encoder_in_channels": [16] * 3, "encoder_ffn_dim": 16,
    "encoder_attention_heads": 2, "d_model": 16, "decoder_in_channels": [16] * 3,
    "decoder_attention_heads": 2, "num_denoising": 0, "hidden_expansion": 0.5,
}  # fmt: skip


def d_fine():
    backbone = transformers.HGNetV2Config(
        hidden_sizes=[16] * 4, depths=[1] * 4, embedding_size=8, stem_channels=[3, 8, 8],
        stage_in_channels=[8, 16, 16, 16], stage_mid_channels=[8] * 4,
        stage_out_channels=[16] * 4, stage_num_blocks=[1] * 4, stage_numb_of_layers=[1] * 4,
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = transformers.DFineConfig(
        backbone_config=backbone, decoder_n_points=[2, 2, 2], **_HYBRID
    )
    model = transformers.DFineForObjectDetection(config)
    return model, transformers.RTDetrImageProcessor(size=SIDE)


def _resnet(*stages):
    return transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8, 8, 16], depths=[1] * 4, layer_type="basic",
        out_features=list(stages),
    )  # fmt: skip


def _plain(name):
    return {
        **_SMALL, "use_timm_backbone": False, "d_model": 32, "encoder_layers": 1,
        "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16,
        "backbone_config": _resnet(*name),
    }  # fmt: skip


def detr():
    config = transformers.DetrConfig(**_plain(["stage4"]))
    model = transformers.DetrForObjectDetection(config)
    nn.init.normal_(model.model.query_position_embeddings.weight)  # boxes unlike each other
    for layer in model.bbox_predictor.layers:
        nn.init.normal_(layer.weight, std=0.3)
    return model, transformers.DetrImageProcessor(size=EDGES)


def deformable_detr():
    config = transformers.DeformableDetrConfig(
        num_feature_levels=3, **_plain(["stage2", "stage3", "stage4"])
    )
    model = transformers.DeformableDetrForObjectDetection(config)
    return model, transformers.DeformableDetrImageProcessor(size=EDGES)


KINDS = (d_fine, detr, deformable_detr)


@pytest.fixture(scope="module")
def save(tmp_path_factory):
    """Return the function that writes a model of a kind into a folder, once."""
    root = tmp_path_factory.mktemp("external")

    def saved(kind):
        folder = root / kind.__name__
        if not folder.exists():
            torch.manual_seed(0)
            for part in kind():
                part.save_pretrained(folder)
        return folder

    return saved


@pytest.fixture(scope="module")
def captures(draw, tmp_path_factory):
    folder = tmp_path_factory.mktemp("c") / "captures"
    draw(folder, pages=4, sites=2, shards=1)
    return folder


@pytest.fixture(scope="module")
def settings(weights):
    return DetectSettings(weights=weights, batch_size=3, threads=1, device="cpu", region_score=0.0)


def with_regions(settings, folder, **more):
    return settings.model_copy(update={"regions": f"hf:{folder}", **more})


def read(features):
    with open_features(features) as file:
        return file.read(slice(None)), file.attributes


def screenshots(captures):
    pages = [decode_screenshot(page.screenshot, (360, 640), "") for page in read_captures(captures)]
    return to_batch(pages)


@pytest.mark.parametrize("kind", KINDS)
def test_any_detector_gives_its_boxes_exactly(save, captures, settings, tmp_path, kind):
    folder = save(kind)
    features = tmp_path / "f.h5"
    assert detect(captures, features, with_regions(settings, folder)).fresh == 4
    batch, attributes = read(features)
    assert attributes["regions"] == f"hf:{kind.__name__}"
    assert attributes["regions_sha256"] == fingerprint(folder)
    assert batch.regions.shape == (4, 36, 768)
    assert np.isfinite(batch.regions).all()
    assert (np.abs(batch.regions).sum(axis=2) > 0).all()
    model = transformers.AutoModelForObjectDetection.from_pretrained(folder).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    with torch.inference_mode():
        found = model(**processor(images=list(screenshots(captures)), return_tensors="pt"))
    x, y, w, h = found.pred_boxes.unbind(dim=2)
    edges = torch.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2], dim=2).clamp(0, 1)
    theirs = edges * torch.tensor([720.0, 1280.0] * 2)
    assert theirs[0].std(dim=0).min() > 0.1
    external = batch.source == SOURCES.index("external")
    assert (external.sum(axis=1) == batch.n_regions).all()
    assert (batch.n_regions > 0).all()
    for row in range(4):
        ours = torch.from_numpy(batch.boxes[row][external[row]])
        apart = (ours[:, None] - theirs[row][None]).abs().amax(dim=2).amin(dim=1)
        assert apart.max() < 2e-2  # px: nothing but rounding, in whatever batch


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_the_best_class_as_the_model_family_reads_them(save, captures, kind):
    folder = save(kind)
    pages = screenshots(captures)
    boxes, scores = ExternalDetector(str(folder), CPU)(pages)
    model = transformers.AutoModelForObjectDetection.from_pretrained(folder).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    with torch.inference_mode():
        found = model(**processor(images=list(pages), return_tensors="pt"))
    answers = processor.post_process_object_detection(found, 0.0, [(1, 1)] * 4)
    for row, answer in enumerate(answers):
        best = answer["scores"].argmax()
        torch.testing.assert_close(scores[row].max(), answer["scores"][best])
        place = scores[row].argmax()
        torch.testing.assert_close(boxes[row][place], answer["boxes"][best], atol=1e-4, rtol=0)


def test_boxes_below_the_least_score_give_way_to_the_detectors_own(
    save, captures, settings, tmp_path
):
    folder = save(d_fine)
    _, scores = ExternalDetector(str(folder), CPU)(screenshots(captures))
    least = float(scores[0].sort(descending=True).values[4:6].mean())
    for name, score in (("five", least), ("none", 1.0)):
        detect(
            captures, tmp_path / f"{name}.h5", with_regions(settings, folder, region_score=score)
        )
    five, none = (read(tmp_path / f"{name}.h5")[0] for name in ("five", "none"))
    assert 1 <= five.n_regions[0] <= 5
    assert (five.source[0, five.n_regions[0] :] != SOURCES.index("external")).all()
    assert none.n_regions.tolist() == [0] * 4
    assert (np.abs(none.regions).sum(axis=2) > 0).all()


def test_a_file_made_with_other_external_weights_is_refused(save, captures, settings, tmp_path):
    folder = tmp_path / "a" / "model"
    shutil.copytree(save(d_fine), folder)
    features = tmp_path / "f.h5"
    chosen = with_regions(settings, folder)
    detect(captures, features, chosen)
    moved = tmp_path / "b" / "model"
    shutil.copytree(folder, moved)
    assert detect(captures, features, with_regions(settings, moved)).fresh == 0
    with pytest.raises(ConfigError, match=r"region_score.*--force"):
        detect(captures, features, chosen.model_copy(update={"region_score": 0.5}))
    state = load_file(folder / "model.safetensors")
    name = next(name for name in state if name.endswith("conv.weight"))
    state[name] += 1
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match=r"regions_sha256.*--force"):
        detect(captures, features, chosen)
    assert detect(captures, features, chosen, force=True).fresh == 4


def classifier(folder):
    transformers.ResNetForImageClassification(_resnet("stage4")).save_pretrained(folder)


def torn(folder):
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:100])


def headless(folder):
    state = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in state.items() if "class_embed" not in name}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (classifier, "AutoModelForObjectDetection"),
        (torn, "not a usable detector"),
        (headless, "parameters missing"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no .safetensors"),
        (lambda folder: (folder / "preprocessor_config.json").unlink(), "processor"),
        (lambda folder: (folder / "config.json").write_text("{"), "JSON"),
    ],
    ids=["classifier", "torn", "headless", "pickled", "no processor", "no config"],
)
def test_what_is_no_detector_is_refused_in_one_line(
    save, captures, settings, tmp_path, spoil, problem
):
    folder = shutil.copytree(save(d_fine), tmp_path / "model")
    spoil(folder)
    with pytest.raises(ConfigError, match=rf"regions 'hf:.*{problem}") as caught:
        detect(captures, tmp_path / "f.h5", with_regions(settings, folder))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "f.h5").exists()


@pytest.mark.parametrize(
    ("regions", "problem"),
    [
        ("hf:no such name at all!", "neither a folder nor a name of the hub"),
        ("hf:/no/such/folder", "neither a folder nor a name of the hub"),
        ("hf:", "neither a folder nor a name of the hub"),
        ("hf:now/none", "regions 'hf:now/none'.*hub"),
        ("hg:x", "expected proposals, dom, hf:"),
    ],
)
def test_a_source_that_cannot_be_had_is_refused_in_one_line(
    captures, settings, tmp_path, monkeypatch, regions, problem
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=problem) as caught:
        detect(captures, tmp_path / "f.h5", settings.model_copy(update={"regions": regions}))
    assert "\n" not in str(caught.value)


def test_boxes_that_are_none_are_dropped_and_the_others_lie_on_the_screen():
    boxes = torch.tensor([[[-0.2, 0.1, 0.5, 1.4], [0.1, float("nan"), 0.2, 0.3], [0, 0, 0.5, 0.5]]])
    scores = torch.tensor([[0.4, 0.9, 0.6]])
    source = ExternalBoxes(lambda _: (boxes, scores), 0.3)
    pixels = torch.zeros(1, 3, 64, 32, dtype=torch.uint8)
    (page,) = source.propose([], pixels, (100, 200))
    assert page.boxes.tolist() == [[0, 0, 50, 100], [0, 20, 50, 200]]
    assert page.scores.tolist() == pytest.approx([0.6, 0.4])


def test_a_model_that_gives_no_boxes_is_refused(save, monkeypatch):
    detector = ExternalDetector(str(save(detr)), CPU)
    monkeypatch.setattr(
        type(detector._model), "forward", lambda *_, **__: SimpleNamespace(logits=torch.zeros(1))
    )
    with pytest.raises(ConfigError, match="gives no boxes"):
        detector(torch.zeros(1, 3, 64, 32, dtype=torch.uint8))


def test_workers_elsewhere_get_absolute_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "detr").mkdir()
    for name in ("own.yaml", "own.pth"):
        (tmp_path / name).touch()
    assert absolute("hf:detr") == f"hf:{tmp_path / 'detr'}"
    assert absolute("detectron2:own.yaml@own.pth") == (
        f"detectron2:{tmp_path / 'own.yaml'}@{tmp_path / 'own.pth'}"
    )
    for same in ("hf:someone/detr", "dom", "detectron2:COCO-Detection/x.yaml@random"):
        assert absolute(same) == same
