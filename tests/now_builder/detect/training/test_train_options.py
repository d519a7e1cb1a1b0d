"""Options of a training: classes, labels, precision, averages; its history and pictures."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from now_builder.detect.labels.mapping import DEFAULT, read_mapping
from now_builder.detect.model.apt import TINY, AptDetector
from now_builder.detect.model.text_encoder import HashedNgrams
from now_builder.detect.model.weights import card_path, load_detector, read_card
from now_builder.detect.regions.extraction import AptExtractor
from now_builder.detect.settings import TrainDetectorSettings
from now_builder.detect.training import recipe as recipe_module
from now_builder.detect.training.callbacks import history_path, pictures_path
from now_builder.detect.training.data import (
    Screenshots,
    _hold_out,
    read_train_pages,
)
from now_builder.detect.training.finish import finish
from now_builder.detect.training.learner import make_average
from now_builder.detect.training.loop import Training
from now_builder.detect.training.measure import find, measure
from now_builder.detect.training.run import train_detector
from now_builder.errors import ConfigError
from now_builder.formats.io import sha256_of

QUICK = {"steps": 2, "batch_size": 2, "threads": 1, "device": "cpu"}
MAPPING = """
classes = [["press", "按"], ["picture", "图"]]
[looks]
button = "press"
link = "press"
image = "picture"
icon = "picture"
"""


def lines(weights):
    return [json.loads(line) for line in history_path(weights).read_text("utf-8").splitlines()]


STEPS = 7


@pytest.fixture(scope="module")
def measured(few, tmp_path_factory):
    """A training of some epochs and a bit."""
    weights = tmp_path_factory.mktemp("measured") / "w.safetensors"
    settings = TrainDetectorSettings(**{**QUICK, "steps": STEPS, "held_out": 0.2})
    train_detector(few, weights, settings)
    return weights


def test_other_classes_can_be_learned_from_trained_weights(few, weights, tmp_path):
    path = tmp_path / "m.toml"
    path.write_text(MAPPING, encoding="utf-8")
    settings = TrainDetectorSettings(**{**QUICK, "steps": 1}, from_=weights, mapping=path)
    weights = tmp_path / "w.safetensors"
    train_detector(few, weights, settings)
    model, card = load_detector(weights, torch.device("cpu"))
    assert card.classes == ["press", "picture"]
    assert card.mapping == read_mapping(path)
    assert card.mapping.classes == (("press", "按"), ("picture", "图"))
    assert model.prompts.shape == (2, 768)
    assert set(card.measured_by_class) <= {"press", "picture"}
    assert train_detector(few, weights, settings).seconds == 0
    path.write_text(MAPPING.replace('"图"', '"像"'), encoding="utf-8")
    with pytest.raises(ConfigError, match="other mapping; --force"):
        train_detector(few, weights, settings)


def test_hosts_of_one_domain_are_held_out_together(train_pages):
    hosts = [f"h{number}.owner{number // 6}.co.uk" for number in range(60)]
    pages = [replace(train_pages.learn[0], site=host, key=host) for host in hosts]
    cut = _hold_out(Path("captures"), pages, 0.3, 0, DEFAULT)
    learned, kept = (
        {page.site.split(".", 1)[1] for page in part} for part in (cut.learn, cut.held_out)
    )
    assert (len(learned), len(kept)) == (7, 3)
    assert not learned & kept


def test_bf16_learns_on_the_cpu_and_keeps_fp32_parameters(few, tmp_path, monkeypatch):
    """On screenshots of a quarter of the size: a CPU without bf16 of its own takes minutes."""
    recipe = recipe_module._RECIPES["tiny"]
    small = recipe.model.model_copy(update={"input_size": (180, 320)})
    monkeypatch.setitem(recipe_module._RECIPES, "tiny", replace(recipe, model=small))
    pages = read_train_pages(few, 0.2)
    settings = TrainDetectorSettings(**{**QUICK, "steps": 12}, precision="bf16")
    training = Training(tmp_path / "w.safetensors", settings, pages)
    kinds = set()
    training.learner.model.visual.conv2.register_forward_hook(
        lambda *call: kinds.add(call[2].dtype)
    )
    totals = [sum(training.take_step().values()) for _ in range(12)]
    assert kinds == {torch.bfloat16}
    assert {p.dtype for p in training.learner.model.parameters()} == {torch.float32}
    assert sum(totals[-3:]) < 0.8 * sum(totals[:3])


def test_the_average_is_of_the_last_steps_also_early_on():
    model = AptDetector(TINY, torch.zeros(1, 768))
    average = make_average(model, 0.9)
    expected = None

    def numbers(module):
        return module.rpn.objectness[0].bias, module.visual.bn1.running_mean

    for step in range(100):
        with torch.no_grad():
            for values in numbers(model):
                values.fill_(float(step))
            model.visual.bn1.num_batches_tracked.fill_(step)
        average.update_parameters(model)
        keep = min(0.9, (1 + step) / (10 + step))
        expected = float(step) if expected is None else keep * expected + (1 - keep) * step
        if step == 20:
            assert expected > 16  # a decay of 0.9 from the start would give less than 13
    for values in numbers(average.module):
        assert values.tolist() == pytest.approx([expected] * len(values), rel=1e-4)
    assert average.module.visual.bn1.num_batches_tracked.item() == 99
    assert torch.equal(average.module.prompts, model.prompts)


def test_the_average_is_what_is_written(few, tmp_path):
    weights, name = tmp_path / "w.safetensors", "rpn.tower.0.weight"
    settings = TrainDetectorSettings(**{**QUICK, "steps": 3}, ema=0.9)
    training = Training(weights, settings, read_train_pages(few, 0.2))
    training.run()
    last = training.learner.model.state_dict()[name].clone()
    finish(weights, training.learner, training.pages)
    written = load_file(weights)[name]
    assert torch.equal(written, training.learner.average.module.state_dict()[name])
    assert not torch.equal(written, last)


def test_the_history_has_a_line_an_epoch(few, measured):
    found = lines(measured)
    pages = len(read_train_pages(few, 0.2).learn)
    assert [line["epoch"] for line in found] == list(range(1, len(found) + 1))
    assert len(found) == -(-STEPS * 2 // pages) > 1
    assert found[-1]["step"] == STEPS
    assert found[-1]["lr"] < found[0]["lr"]
    for line in found:
        assert set(line["losses"]) == {"rpn", "rpn box", "class", "box", "paint"}
        assert set(line["measured"]) >= {"ap", "ap50", "ap75", "recall36"}
        assert sum(kind["elements"] for kind in line["measured_by_class"].values()) > 0
    assert found[-1]["losses"]["class"] < found[0]["losses"]["class"]


def test_each_epoch_has_a_picture_of_the_same_pages(few, measured):
    shown = min(3, len(read_train_pages(few, 0.2).held_out))
    pictures = sorted(pictures_path(measured).iterdir())
    assert [path.name for path in pictures][:2] == ["epoch-001.png", "epoch-002.png"]
    sheets = [np.asarray(Image.open(path).convert("RGB")) for path in pictures]
    assert {sheet.shape for sheet in sheets} == {(28 + 640, shown * (2 * 360 + 8 + 28) - 28, 3)}
    labels = [sheet[:, :360] for sheet in sheets]
    assert np.array_equal(labels[0], labels[1])
    assert not np.array_equal(sheets[0][:, 368:728], sheets[1][:, 368:728])


def test_starting_over_removes_history_and_pictures_and_fewer_measures_change_nothing(
    few, measured, tmp_path
):
    weights = tmp_path / "w.safetensors"
    pictures_path(weights).mkdir()
    (pictures_path(weights) / "epoch-099.png").write_bytes(b"old")
    history_path(weights).write_text("{}\n" * 50, encoding="utf-8")
    made = {**QUICK, "steps": STEPS, "held_out": 0.2, "measure_every": 2}
    train_detector(few, weights, TrainDetectorSettings(**made))
    assert weights.read_bytes() == measured.read_bytes()
    found = lines(weights)
    with_measures = [line["epoch"] for line in found if "measured" in line]
    assert with_measures == sorted({*range(2, len(found) + 1, 2), len(found)})
    pictures = sorted(path.name for path in pictures_path(weights).iterdir())
    assert pictures == [f"epoch-{epoch:03d}.png" for epoch in with_measures]


def test_a_training_goes_on_from_other_weights(few, weights, tmp_path):
    first, weights = weights, shutil.copy(weights, tmp_path / "start.safetensors")
    read = {**json.loads(card_path(first).read_text("utf-8")), "words": {"steps": 7}}
    card_path(weights).write_text(json.dumps(read), "utf-8")
    settings = TrainDetectorSettings(**{**QUICK, "steps": 1, "lr": 1e-6}, from_=weights)
    train_detector(few, tmp_path / "w.safetensors", settings)
    before, after = load_file(weights), load_file(tmp_path / "w.safetensors")
    for name in ("visual.layer4.0.conv2.weight", "neck.back.weight", "rpn.objectness.0.weight"):
        torch.testing.assert_close(after[name], before[name].float(), atol=1e-4, rtol=0)
    made = read_card(tmp_path / "w.safetensors")
    assert made.settings["from_"] == sha256_of(weights)
    assert made.words == {"steps": 7}
    scratch = settings.model_copy(update={"from_": None})
    with pytest.raises(ConfigError, match="other from_; --force"):
        train_detector(few, tmp_path / "w.safetensors", scratch)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"precision": "fp16"}, "precision: found fp16 on device cpu"),
        ({"size": "paper", "text_encoder": "hash:0", "from_": "w"}, "size tiny; expected paper"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(few, weights, tmp_path, more, problem):
    if "from_" in more:
        more = {**more, "from_": weights}
    with pytest.raises(ConfigError, match=problem):
        train_detector(few, tmp_path / "w.safetensors", TrainDetectorSettings(**QUICK, **more))


def test_several_crawls_are_learned_from_together(few, drawn):
    alone, both = (read_train_pages(few, 0.0, also=more) for more in ((), (drawn,)))
    other = read_train_pages(drawn, 0.0)
    places = [page.place for page in both.learn]
    assert sorted(places, key=str) == sorted(
        (page.place for page in [*alone.learn, *other.learn]), key=str
    )
    shots = Screenshots((36, 64), 100, 1)
    keys = {page.key for page in alone.learn}
    twice = [page for page in both.learn if page.key in keys][:8]
    assert len({page.key for page in twice}) < len(twice), "keys of crawls repeat"
    again = Screenshots((36, 64), 0, 1).read(twice)
    assert torch.equal(shots.read(twice), again)
    assert torch.equal(shots.read(twice), again)  # from memory


def test_half_weights_are_half_as_large_and_measured_as_they_are(few, measured, tmp_path):
    path = tmp_path / "half.safetensors"
    train_detector(few, path, TrainDetectorSettings(**QUICK, held_out=0.2, half=True))
    assert path.stat().st_size < 0.52 * measured.stat().st_size
    assert {value.dtype for value in load_file(path).values()} == {torch.float16, torch.int64}
    model, card = load_detector(path, torch.device("cpu"))
    assert model.centre.dtype == torch.float32
    pages = read_train_pages(few, 0.2)
    [found] = find(
        [AptExtractor(model, HashedNgrams(0), {}).extract],
        pages.held_out,
        Screenshots(model.config.input_size, 10, 1),
    )
    assert measure(found, card.classes).figures == pytest.approx(card.measured)
