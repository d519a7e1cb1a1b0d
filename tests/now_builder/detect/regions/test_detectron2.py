"""detectron2 models as detectors, of their own and with our predictor in them."""

import json
import re
import sys

import numpy as np
import pytest
import torch

from now_builder.detect.base import Page, TextBox
from now_builder.detect.boxes import clip, windows
from now_builder.detect.model.text_encoder import HashedNgrams
from now_builder.detect.model.weights import read_card, to_prompts
from now_builder.detect.pixels import decode_screenshot
from now_builder.detect.regions import detectron2 as detectron
from now_builder.detect.regions.extraction import orthonormal, to_768
from now_builder.detect.run import detect, detect_shards
from now_builder.detect.settings import DetectSettings
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.features import SOURCES, open_features
from now_builder.formats.io import sha256_of
from now_builder.formats.shard import read_captures
from now_builder.program.missing_package import INSTALL_DETECTRON2
from tests.now_builder.detect.conftest import check_rows

needs_detectron2 = pytest.mark.detectron2
pytestmark = pytest.mark.filterwarnings("ignore:torch.meshgrid", "ignore:.*jit.script")


def test_what_cannot_be_had_or_does_not_go_together_is_refused(
    drawn, weights, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "detectron2", None)
    for changed, problem in (
        ({}, f"^detectron2: not installed. Run: {re.escape(INSTALL_DETECTRON2)}$"),
        ({"regions": "hf:model"}, "regions 'hf:model': expected proposals, dom or detectron2:"),
        ({"weights": weights}, "--weights: not possible with --regions detectron2:"),
        ({"precision": "fp16"}, "precision fp16: not possible with detectron2"),
    ):
        settings = DetectSettings(**{"regions": "detectron2:config.yaml@random", **changed})
        with pytest.raises(ConfigError, match=problem):
            detect(drawn, tmp_path / "f.h5", settings)


def test_the_projection_to_768_keeps_norms_and_inner_products():
    frame = orthonormal(256, 0).clone()
    orthonormal.cache_clear()
    torch.manual_seed(5)
    assert torch.equal(orthonormal(256, 0), frame), "a function of width and seed"
    assert not torch.allclose(orthonormal(256, 1), frame)
    draw = torch.randn(200, 256, generator=torch.Generator().manual_seed(0))
    after = (draw @ frame) @ (draw @ frame).T
    torch.testing.assert_close(after, draw @ draw.T, atol=1e-2, rtol=1e-4)
    wide = orthonormal(1024, 0).double()
    expected = torch.eye(768).double() * 1024 / 768
    torch.testing.assert_close(wide.T @ wide, expected, atol=1e-5, rtol=0)


def test_a_silent_or_overflowing_head_gives_no_zero_row_and_no_nan():
    for width in (256, 768, 2048):
        features = torch.ones(4, width)
        features[1] = 0
        features[2, 0] = torch.inf
        features[3, 0] = torch.nan
        found = to_768(features)
        assert found.shape == (4, 768)
        assert found.isfinite().all()
        assert (found.norm(dim=1) > 0).all()


_NET = "STEM_OUT_CHANNELS: 8, RES2_OUT_CHANNELS: 32, WIDTH_PER_GROUP: 8"
_HEADS = "NUM_CLASSES: 18, BATCH_SIZE_PER_IMAGE: 32, SCORE_THRESH_TEST: 0.0"
_MODELS = {
    "fpn": f"""
  BACKBONE: {{NAME: build_resnet_fpn_backbone}}
  FPN: {{IN_FEATURES: [res2, res3, res4, res5], OUT_CHANNELS: 16}}
  RESNETS: {{OUT_FEATURES: [res2, res3, res4, res5], {_NET}}}
  ANCHOR_GENERATOR: {{SIZES: [[16], [32], [64], [128], [256]]}}
  RPN: {{IN_FEATURES: [p2, p3, p4, p5, p6], PRE_NMS_TOPK_TEST: 300, POST_NMS_TOPK_TEST: FEW}}
  ROI_HEADS: {{NAME: StandardROIHeads, IN_FEATURES: [p2, p3, p4, p5], {_HEADS}}}
  ROI_BOX_HEAD: {{NAME: FastRCNNConvFCHead, NUM_FC: 2, FC_DIM: 1024, POOLER_RESOLUTION: 7}}
""",
    "c4": f"""
  RESNETS: {{OUT_FEATURES: [res4], {_NET}}}
  RPN: {{IN_FEATURES: [res4], PRE_NMS_TOPK_TEST: 300, POST_NMS_TOPK_TEST: FEW}}
  ROI_HEADS: {{NAME: Res5ROIHeads, {_HEADS}}}
""",
}
_SMALL = """  META_ARCHITECTURE: GeneralizedRCNN
  PIXEL_STD: [58.0, 58.0, 58.0]
INPUT: {MIN_SIZE_TEST: 160, MAX_SIZE_TEST: 280, FORMAT: BGR}
VERSION: 2
"""


def write_config(path, kind, heads="Res5ROIHeads", proposals=60):
    """Write the config of a small model of either kind; ``heads`` are those of C4."""
    model = _MODELS[kind].replace("FEW", str(proposals)).replace("Res5ROIHeads", heads)
    path.write_text(f"MODEL:{model}{_SMALL}")
    return path


def write_checkpoint(config, path, seed=0):
    """Write weights under which proposals lie near their anchors and no class is certain."""
    network = detectron.Network(
        detectron.read_model_spec(f"detectron2:{config}@random"), torch.device("cpu")
    )
    torch.manual_seed(seed)
    state = network.model.state_dict()
    for name, values in state.items():
        if "anchor_deltas" in name or "bbox_pred" in name:
            values.mul_(1e-3)
        if "cls_score" in name or "objectness" in name:
            values.copy_(torch.randn(values.shape) * 1e-3)
    torch.save({"model": state}, path)
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Config and checkpoint of a small model of each kind."""
    pytest.importorskip("detectron2")
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("models")
    found = {}
    for kind in ("fpn", "c4"):
        config = write_config(folder / f"{kind}.yaml", kind)
        found[kind] = (config, write_checkpoint(config, folder / f"{kind}.pth"))
    return found


def settings_for(config, checkpoint, **more):
    return DetectSettings(
        regions=f"detectron2:{config}@{checkpoint}", batch_size=5, threads=1, device="cpu", **more
    )


def network_for(config, weights="random"):
    recipe = detectron.read_model_spec(f"detectron2:{config}@{weights}")
    return detectron.Network(recipe, torch.device("cpu"))


def screenshots(captures, count=2):
    pages = [page for page, _ in zip(read_captures(captures), range(count), strict=False)]
    images = [decode_screenshot(page.screenshot, (720, 1280), page.key) for page in pages]
    return [Page(page.key) for page in pages], torch.from_numpy(np.stack(images))


def check(batch, pages):
    check_rows(batch, pages)
    assert (batch.n_regions == (batch.source == 0).sum(axis=1)).all()


@needs_detectron2
@pytest.mark.parametrize("kind", ["fpn", "c4"])
def test_a_detectron2_model_alone_fills_a_feature_file_and_goes_on_after_a_stop(
    drawn, models, tmp_path, kind
):
    config, weights = models[kind]
    settings, whole = settings_for(config, weights), tmp_path / "whole.h5"
    assert detect(drawn, whole, settings).fresh == 24
    assert detect(drawn, whole, settings).fresh == 0
    with open_features(whole) as features:
        said, batch = features.attributes, features.read(slice(None))
    assert said["detector"] == "detectron2"
    assert said["regions"] == f"detectron2:{kind}.yaml@{kind}.pth"
    assert said["weights_sha256"] == sha256_of(weights)
    assert len(said["config_sha256"]) == 64
    assert said["projection"] == "orthonormal, seed 0"
    assert len(json.loads(said["classes"])) == 18
    check(batch, 24)
    assert batch.n_regions.min() > 0
    assert ((batch.classes >= 0) == (batch.source != SOURCES.index("grid"))).all()
    assert len(np.unique(batch.regions[:, 0], axis=0)) == 24

    stopped = tmp_path / "stopped.h5"
    detect_shards(drawn, stopped, settings, 0)
    assert detect(drawn, stopped, settings).fresh == 12
    with open_features(stopped) as features:
        again = features.read(slice(None))
    assert np.array_equal(batch.regions, again.regions)
    assert np.array_equal(batch.boxes, again.boxes)

    other = write_checkpoint(config, tmp_path / weights.name, seed=1)
    with pytest.raises(ConfigError, match=r"weights_sha256.*--force"):
        detect(drawn, whole, settings_for(config, other))


@needs_detectron2
@pytest.mark.parametrize("kind", ["fpn", "c4"])
@torch.inference_mode()
def test_features_are_those_of_proposals_through_the_models_own_head(drawn, models, kind):
    network = network_for(*models[kind])
    pages, images = screenshots(drawn, 1)
    batch = detectron.Detectron2Detector(network, {}).extract(pages, images)
    model, heads = network.model, network.model.roi_heads
    inputs = model.preprocess_image([{"image": network.image(images[0])}])
    maps = model.backbone(inputs.tensor)
    proposals, _ = model.proposal_generator(inputs, maps, None)
    levels = [maps[name] for name in heads.in_features]
    if kind == "fpn":
        pooled = heads.box_head(heads.box_pooler(levels, [proposals[0].proposal_boxes]))
        assert pooled.shape[1] == 1024
    else:
        pooled = heads._shared_roi_transform(levels, [proposals[0].proposal_boxes]).mean((2, 3))
        assert pooled.shape[1] == 256
    expected = pooled @ orthonormal(pooled.shape[1])
    predictions = heads.box_predictor(pooled)
    best = predictions[0].softmax(1)[:, :-1].max(dim=1)
    moved = heads.box_predictor.predict_boxes(predictions, proposals)[0].reshape(-1, 18, 4)
    height, width = inputs.image_sizes[0]
    scale = torch.tensor([720 / width, 1280 / height]).repeat(2)
    rows = batch.source[0] != SOURCES.index("grid")
    assert rows.sum() > 20
    for row in rows.nonzero()[0]:
        region = torch.from_numpy(batch.regions[0, row])
        near = int((expected - region).norm(dim=1).argmin())
        torch.testing.assert_close(expected[near], region, rtol=1e-4, atol=1e-4)
        assert best.values[near].item() == pytest.approx(batch.scores[0, row], abs=1e-5)
        assert best.indices[near].item() == batch.classes[0, row]
        box = clip(moved[near, best.indices[near]][None] * scale, (720, 1280))[0]
        torch.testing.assert_close(box, torch.from_numpy(batch.boxes[0, row]))


@needs_detectron2
@pytest.mark.parametrize("kind", ["fpn", "c4"])
def test_where_little_is_proposed_windows_go_through_the_same_head(drawn, models, tmp_path, kind):
    few = 5
    config = write_config(tmp_path / "few.yaml", kind, proposals=few)
    pages, images = screenshots(drawn)
    batch = detectron.Detectron2Detector(network_for(config), {}).extract(pages, images)
    check(batch, 2)
    grid = batch.source == SOURCES.index("grid")
    assert (grid.sum(axis=1) == 36 - few).all()
    assert grid[:, few:].all()
    assert (batch.boxes[grid] == np.concatenate([windows((720, 1280))[: 36 - few]] * 2)).all()
    assert (batch.scores[grid] == 0).all()
    assert (batch.classes[grid] == -1).all()
    assert len(np.unique(batch.regions[0, few:], axis=0)) == 36 - few


@needs_detectron2
def test_in_bfloat16_features_point_where_they_did(drawn, models, tmp_path):
    config = write_config(tmp_path / "c.yaml", "c4", heads="AptRes5ROIHeads", proposals=0)
    network, (pages, images) = network_for(config), screenshots(drawn, 1)
    full = detectron.Detectron2Detector(network, {}).extract(pages, images).regions[0]
    half = detectron.Detectron2Detector(network, {}, autocast=True).extract(pages, images)
    check(half, 1)
    assert half.regions.dtype == np.float32
    assert not np.array_equal(half.regions[0], full)
    cosine = torch.nn.functional.cosine_similarity(
        torch.from_numpy(half.regions[0]), torch.from_numpy(full)
    )
    assert cosine.min() > 0.99


@needs_detectron2
def test_a_model_of_another_architecture_is_refused():
    pytest.importorskip("detectron2")
    recipe = detectron.read_model_spec(
        "detectron2:COCO-Detection/retinanet_R_50_FPN_1x.yaml@random"
    )
    with pytest.raises(ConfigError, match="RetinaNet"):
        detectron.Detectron2Detector(detectron.Network(recipe, torch.device("cpu")), {})


@needs_detectron2
def test_a_config_may_name_its_own_weights(models, tmp_path):
    config, weights = models["fpn"]
    named = config.read_text().replace("MODEL:", f"MODEL:\n  WEIGHTS: {weights}", 1)
    (tmp_path / "named.yaml").write_text(named)
    recipe = detectron.read_model_spec(f"detectron2:{tmp_path / 'named.yaml'}")
    assert recipe.weights == weights
    named_outside = detectron.read_model_spec(f"detectron2:{config}@{weights}")
    assert recipe.config.dump() == named_outside.config.dump()


@needs_detectron2
def test_arrays_beside_the_tensors_are_read(models, tmp_path):
    config, weights = models["fpn"]
    state = torch.load(weights)["model"]
    more = {"best": np.float64(71.5), "losses": np.ones(3, np.float32), "kept": np.array([True])}
    torch.save({"model": state} | more, tmp_path / "run.pth")
    found = network_for(config, tmp_path / "run.pth").model.state_dict()
    assert all(torch.equal(found[key], value) for key, value in state.items())


@needs_detectron2
def test_configs_that_cannot_be_used_are_refused(tmp_path):
    pytest.importorskip("detectron2")
    zoo, own = "COCO-Detection/faster_rcnn_R_50_C4_3x.yaml", tmp_path / "own.yaml"
    for content, regions, message in (
        ("", "nowhere.yaml@random", "neither a YAML file nor the name of one"),
        ("", zoo, "MODEL.WEIGHTS .* not found. Give"),
        ("", f"{zoo}@x.pkl", "x.pkl: file not found. Give"),
        ("MODEL: {STRANGE: 1}", f"{own}@random", "not a detectron2 config .*STRANGE"),
        ("SEED: !!python/object/apply:eval ['1']", f"{own}@random", "config .*python/object"),
        ("INPUT: {FORMAT: L}", f"{own}@random", "INPUT.FORMAT 'L', expected BGR or RGB"),
    ):
        own.write_text(f"{content}\nVERSION: 2\n")
        with pytest.raises(ConfigError, match=message):
            detectron.read_model_spec(f"detectron2:{regions}")


@needs_detectron2
def test_weights_of_another_model_or_none_at_all_are_refused(models, tmp_path):
    (fpn, fpn_weights), (_, c4_weights) = models["fpn"], models["c4"]
    with pytest.raises(FormatError, match=r"not of this config: weights for .* missing"):
        network_for(fpn, c4_weights)
    (tmp_path / "torn.pth").write_bytes(b"PK\3\4 torn")
    with pytest.raises(FormatError, match="not a readable detectron2 checkpoint"):
        network_for(fpn, tmp_path / "torn.pth")
    torch.save(torch.load(fpn_weights) | {"folder": tmp_path}, tmp_path / "mine.pth")
    with pytest.raises(FormatError, match=r"mine\.pth: not a readable .* pathlib\.PosixPath"):
        network_for(fpn, tmp_path / "mine.pth")


def apt_config(folder, more=""):
    path = write_config(folder / "apt.yaml", "c4", heads="AptRes5ROIHeads")
    path.write_text(
        path.read_text().replace("MODEL:", f"MODEL:\n  APT: {{TEMPERATURE: 0.1{more}}}")
    )
    return path


def training_input():
    structures = pytest.importorskip("detectron2.structures")
    torch.manual_seed(0)
    image = torch.randint(0, 256, (3, 192, 128)).float()
    image[:, 20:80, 20:90] = 250.0
    image[:, 110:150, 10:120] = 5.0
    truth = structures.Instances((192, 128))
    truth.gt_boxes = structures.Boxes(
        torch.tensor([[20.0, 20.0, 90.0, 80.0], [10.0, 110.0, 120.0, 150.0]])
    )
    truth.gt_classes = torch.tensor([3, 5])
    return {"image": image, "instances": truth}


@needs_detectron2
def test_our_predictor_trains_and_infers_inside_detectron2(models, tmp_path):
    events = pytest.importorskip("detectron2.utils.events")
    network = network_for(apt_config(tmp_path))
    model, predictor = network.model, network.predictor
    assert network.is_apt
    prompts = predictor.prompts.clone()
    model.train()
    optimizer = torch.optim.Adam(predictor.parameters(), lr=1e-3)
    strings = (torch.tensor([[25.0, 25.0, 85.0, 75.0]]), HashedNgrams().encode(["Buy now"]))
    course = []
    with events.EventStorage():
        for _ in range(8):
            with predictor.reading([strings]):
                losses = model([training_input()])
            assert set(losses) >= {"loss_cls", "loss_box_reg", "loss_rpn_cls", "loss_rpn_loc"}
            course.append(losses["loss_cls"].item())
            optimizer.zero_grad()
            (losses["loss_cls"] + losses["loss_box_reg"]).backward()
            assert predictor.tuner.expand.weight.grad.abs().sum() > 0
            assert predictor.projection.weight.grad.abs().sum() > 0
            optimizer.step()
    assert np.isfinite(course).all()
    assert np.mean(course[-2:]) < 0.8 * course[0]
    assert torch.equal(predictor.prompts, prompts)
    model.eval()
    with torch.inference_mode():
        found = model([{"image": training_input()["image"]}])[0]["instances"]
    assert len(found) > 0
    assert int(found.pred_classes.max()) < 18
    assert ((found.scores > 0) & (found.scores <= 1)).all()


@needs_detectron2
def test_prompts_come_from_a_trained_detector_or_a_text_encoder(weights, tmp_path):
    pytest.importorskip("detectron2")
    config = apt_config(tmp_path, f", CARD: {weights}")
    assert detectron.read_model_spec(f"detectron2:{config}@random").classes[:2] == [
        "text",
        "heading",
    ]
    own = network_for(config).predictor
    torch.testing.assert_close(own.prompts, to_prompts(read_card(weights)))
    names = ", CLASSES: [[cat, 猫], [dog, 狗]], TEXT_ENCODER: 'hash:1'"
    two = apt_config(tmp_path, names)
    with pytest.raises(ConfigError, match=r"prompts of 2 classes, .*NUM_CLASSES is 18"):
        network_for(two)
    two.write_text(two.read_text().replace("NUM_CLASSES: 18", "NUM_CLASSES: 2"))
    assert detectron.read_model_spec(f"detectron2:{two}@random").classes == ["cat", "dog"]
    predictor = network_for(two).predictor
    assert predictor.prompts.shape == (2, 768)
    torch.testing.assert_close(predictor.prompts.norm(dim=1), torch.ones(2))


@needs_detectron2
def test_our_predictor_in_detectron2_gives_visual_features_whatever_the_text(
    drawn, models, tmp_path
):
    network = network_for(apt_config(tmp_path))
    torch.manual_seed(0)
    torch.nn.init.normal_(network.predictor.tuner.expand.weight, std=0.1)
    for layer in ("objectness_logits", "anchor_deltas"):
        getattr(network.model.proposal_generator.rpn_head, layer).weight.data *= 1e-3
    pages, images = screenshots(drawn, 1)
    detector = detectron.Detectron2Detector(network, {})
    silent = detector.extract(pages, images)
    told = detector.extract(
        [Page(pages[0].key, [TextBox("Buy now", (0.0, 0.0, 720.0, 1280.0))])], images
    )
    check(silent, 1)
    check(told, 1)
    assert not np.array_equal(silent.scores, told.scores)
    boxes = {tuple(box): row for box, row in zip(silent.boxes[0], silent.regions[0], strict=True)}
    shared = [
        np.allclose(boxes[tuple(box)], row)
        for box, row in zip(told.boxes[0], told.regions[0], strict=True)
        if tuple(box) in boxes
    ]
    assert shared
    assert all(shared)
