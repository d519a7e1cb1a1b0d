"""Training: it learns, from the train pool only, and a kill leaves no trace; its options."""

import json
import multiprocessing
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from now_builder.detect.labels.mapping import NAMES, read_mapping
from now_builder.detect.model.apt import TINY, AptDetector
from now_builder.detect.model.clip_resnet import ModifiedResNet
from now_builder.detect.model.text_encoder import HashedNgrams
from now_builder.detect.model.weights import card_path, load_detector, read_card
from now_builder.detect.regions.extraction import AptExtractor
from now_builder.detect.settings import TrainDetectorSettings
from now_builder.detect.training import history, learner, run
from now_builder.detect.training.data import Screenshots, hold_out, read_train_pages
from now_builder.detect.training.history import history_path, pictures_path
from now_builder.detect.training.learner import Learner, identity, make_average
from now_builder.detect.training.measure import find, measure
from now_builder.detect.training.run import (
    checkpoint_path,
    finish,
    fit_scale,
    save_checkpoint,
    train_detector,
)
from now_builder.errors import ConfigError, FormatError, TrainingError
from now_builder.formats.io import sha256_of
from now_builder.formats.shard import locate_screenshots, read_rows
from now_builder.formats.split import read_split

pytestmark = pytest.mark.usefixtures("small_screens")

QUICK = {"steps": 4, "batch_size": 2, "threads": 1, "device": "cpu", "ema": 0.9, "held_out": 0.2}
MAPPING = """
classes = [["press", "按"], ["picture", "图"]]
[looks]
button = "press"
link = "press"
image = "picture"
icon = "picture"
"""


@pytest.fixture(autouse=True)
def _checkpoint_each_step(monkeypatch):
    monkeypatch.setattr(run, "CHECKPOINT_EVERY", 1)


@pytest.fixture(scope="module")
def whole(few, small_screens, tmp_path_factory):
    """Weights of a quick training of two epochs that was not stopped."""
    weights = tmp_path_factory.mktemp("whole") / "whole.safetensors"
    train_detector(few, weights, TrainDetectorSettings(**QUICK))
    return weights


def test_a_trained_detector_finds_more_than_an_untrained_one(train_pages, trained):
    weights, totals = trained
    assert sum(totals[-5:]) < 0.6 * sum(totals[:5])
    pages = train_pages
    screenshots = Screenshots((180, 320), 100, 1)
    untrained = Learner(TrainDetectorSettings(threads=1, device="cpu"), pages)
    learnt, _ = load_detector(weights, torch.device("cpu"))
    before, after = (
        measure(find(AptExtractor(model, HashedNgrams(0), {}), pages.held_out, screenshots), NAMES)
        for model in (untrained.model, learnt)
    )
    assert after.recall36 > before.recall36 + 0.05
    assert after.classified36 > before.classified36 + 0.05
    assert after.ap50 > before.ap50 + 0.05


def test_only_the_train_pool_is_read_and_sites_are_held_out_whole(drawn):
    plan = read_split(drawn / "split.toml")
    pages = read_train_pages(drawn, 0.3)
    rows = [row for row in read_rows(drawn) if row.status == "ok"]
    ours = {row.key for row in rows if plan.pool_of(row.site, row.key) == "train"}
    assert {page.key for page in [*pages.learn, *pages.held_out]} == ours
    assert not {p.site for p in pages.learn} & {p.site for p in pages.held_out}


def test_other_pools_old_history_and_fewer_measures_do_not_change_the_weights(
    few, whole, tmp_path, monkeypatch
):
    """The tar members of other pools are made unreadable; only the last epoch is measured."""
    captures = Path(shutil.copytree(few, tmp_path / "captures"))
    plan = read_split(captures / "split.toml")
    spoiled = 0
    rows = {row.key: row for row in read_rows(captures)}
    for key, place in locate_screenshots(captures, 0).items():
        if plan.pool_of(rows[key].site, key) != "train":
            with place.path.open("r+b") as file:
                file.seek(place.offset)
                file.write(b"\0" * place.size)
            spoiled += 1
    assert spoiled
    weights = tmp_path / "w.safetensors"
    pictures_path(weights).mkdir()
    (pictures_path(weights) / "epoch-099.png").write_bytes(b"old")
    history_path(weights).write_text("{}\n" * 50, encoding="utf-8")
    monkeypatch.setattr(history, "_EPOCHS", 1)
    train_detector(captures, weights, TrainDetectorSettings(**QUICK))
    assert sha256_of(weights) == sha256_of(whole)
    found = [json.loads(line) for line in history_path(weights).read_text("utf-8").splitlines()]
    assert [line["epoch"] for line in found if "measured" in line] == [len(found)]
    pictures = [path.name for path in pictures_path(weights).iterdir()]
    assert pictures == [f"epoch-{len(found):03d}.png"]


def test_a_kill_in_the_middle_changes_nothing(few, whole, tmp_path):
    settings = TrainDetectorSettings(**QUICK)
    weights = tmp_path / "killed.safetensors"
    process = multiprocessing.get_context("fork").Process(  # has torch
        target=train_detector, args=(few, weights, settings)
    )
    process.start()
    deadline = time.monotonic() + 120
    while not checkpoint_path(weights).exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert checkpoint_path(weights).exists()
    assert not weights.exists()
    train_detector(few, weights, settings)
    assert weights.read_bytes() == whole.read_bytes()
    assert not checkpoint_path(weights).exists()
    history = history_path(weights).read_text(encoding="utf-8")
    assert history == history_path(whole).read_text(encoding="utf-8")
    assert card_path(weights).read_bytes() == card_path(whole).read_bytes()
    pictures, others = (sorted(pictures_path(path).iterdir()) for path in (whole, weights))
    assert [p.read_bytes() for p in pictures] == [p.read_bytes() for p in others]
    again = train_detector(few, weights, settings)
    assert again.seconds == 0
    with pytest.raises(ConfigError, match=r"other lr\. Give --force"):
        train_detector(few, weights, settings.model_copy(update={"lr": 0.5}))
    with pytest.raises(FormatError, match="no such"):
        train_detector(tmp_path, weights, settings, force=True)
    assert weights.exists()


def test_each_epoch_shows_every_page_once_in_an_order_of_its_own(train_pages):
    settings = TrainDetectorSettings(**{**QUICK, "batch_size": len(train_pages.learn)})
    training = Learner(settings, train_pages)
    epochs = []
    for training.step in (0, 1, 0):
        epochs.append([page.key for page in training.batch()])
    keys = [page.key for page in train_pages.learn]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(keys)
    assert epochs[0] == epochs[2] != epochs[1]


def test_a_checkpoint_of_other_settings_or_a_torn_one_is_refused(few, tmp_path):
    weights = tmp_path / "w.safetensors"
    settings = TrainDetectorSettings(**QUICK)
    state = Learner(settings, read_train_pages(few, 0.2)).state_dict()
    save_checkpoint(weights, state, identity(settings))
    with pytest.raises(ConfigError, match=r"other settings or pages\. Give --force"):
        train_detector(few, weights, settings.model_copy(update={"lr": 0.5}))
    path = checkpoint_path(weights)
    for torn in (b"torn", path.read_bytes().replace(b"identity", b"\xff" * 8)):
        path.write_bytes(torn)
        with pytest.raises(FormatError, match="not a readable checkpoint"):
            train_detector(few, weights, settings)


def test_weights_and_json_that_do_not_belong_together_are_refused(trained, tmp_path):
    weights, _ = trained
    copy = tmp_path / "w.safetensors"
    copy.write_bytes(weights.read_bytes())
    with pytest.raises(FormatError, match="file not found"):
        read_card(copy)
    card_path(copy).write_bytes(card_path(weights).read_bytes())
    read_card(copy)
    copy.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(FormatError, match="not the JSON of these weights"):
        read_card(copy)


def test_captures_without_labels_are_a_users_mistake(draw, tmp_path):
    draw(tmp_path / "c", pages=1, sites=1, shards=1)
    with pytest.raises(TrainingError, match="at least two"):
        train_detector(tmp_path / "c", tmp_path / "w.safetensors", TrainDetectorSettings())
    with pytest.raises(ConfigError, match="safetensors"):
        train_detector(tmp_path / "c", tmp_path / "w.pt", TrainDetectorSettings())


def test_evening_out_gives_centred_rows_of_mean_square_one():
    generator = torch.Generator().manual_seed(0)
    spread = torch.linspace(0.01, 3, 768, dtype=torch.float64)
    rows = torch.randn(2000, 768, generator=generator, dtype=torch.float64) * spread + 5
    centre, whiten = fit_scale(rows)
    mapped = (rows.float() - centre) @ whiten
    assert mapped.mean(dim=0).abs().max() < 1e-3
    assert mapped.square().mean().item() == pytest.approx(1, rel=1e-3)
    before, after = rows.std(dim=0), mapped.std(dim=0)
    assert after.max() / after.min() < 0.3 * before.max() / before.min()


def test_a_loaded_backbone_keeps_its_stem_and_its_statistics(few, tmp_path):
    torch.manual_seed(3)
    start = ModifiedResNet(TINY.layers, TINY.width, TINY.outputs, TINY.side, TINY.layer3_stride)
    clip = {f"visual.{name}": value for name, value in start.state_dict().items()}
    save_file(clip, tmp_path / "clip.safetensors")
    source = str(tmp_path / "clip.safetensors")
    settings = TrainDetectorSettings(**{**QUICK, "steps": 1, "clip_weights": source})
    train_detector(few, tmp_path / "w.safetensors", settings)
    after = load_file(tmp_path / "w.safetensors")
    frozen = [
        name for name in clip if ".bn" in name or name.startswith(("visual.conv", "visual.layer1"))
    ]
    assert len(frozen) > 20
    for name in frozen:
        assert torch.equal(clip[name], after[name]), name
    assert not torch.equal(
        clip["visual.layer4.0.conv2.weight"], after["visual.layer4.0.conv2.weight"]
    )


def test_other_classes_can_be_learned_from_trained_weights(few, whole, tmp_path):
    path = tmp_path / "m.toml"
    path.write_text(MAPPING, encoding="utf-8")
    settings = TrainDetectorSettings(**{**QUICK, "steps": 1}, from_=whole, mapping=path)
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
    with pytest.raises(ConfigError, match=r"other mapping\. Give --force"):
        train_detector(few, weights, settings)


def test_hosts_of_one_domain_are_held_out_together(train_pages):
    hosts = [f"h{number}.owner{number // 6}.co.uk" for number in range(60)]
    pages = [replace(train_pages.learn[0], site=host, key=host) for host in hosts]
    learned, kept = ({p.site.split(".", 1)[1] for p in part} for part in hold_out(pages, 0.3))
    assert (len(learned), len(kept)) == (7, 3)
    assert not learned & kept


def test_bf16_learns_on_the_cpu_and_keeps_fp32_parameters(few):
    settings = TrainDetectorSettings(**{**QUICK, "steps": 8}, precision="bf16")
    training = Learner(settings, read_train_pages(few, 0.2))
    kinds = set()
    training.model.visual.conv2.register_forward_hook(lambda *call: kinds.add(call[2].dtype))
    totals = [sum(training.take_step().values()) for _ in range(8)]
    assert kinds == {torch.bfloat16}
    assert {p.dtype for p in training.model.parameters()} == {torch.float32}
    assert sum(totals[-2:]) < 0.9 * sum(totals[:2])


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
    training = Learner(TrainDetectorSettings(**QUICK), read_train_pages(few, 0.2))
    for _ in range(2):
        training.take_step()
    last = training.model.state_dict()[name].clone()
    finish(weights, training)
    written = load_file(weights)[name]
    assert torch.equal(written, training.average.module.state_dict()[name])
    assert not torch.equal(written, last)


def test_the_history_has_a_line_and_a_picture_of_the_same_pages_for_each_epoch(few, whole):
    pages = read_train_pages(few, 0.2)
    found = [json.loads(line) for line in history_path(whole).read_text("utf-8").splitlines()]
    count = -(-QUICK["steps"] * QUICK["batch_size"] // len(pages.learn))
    assert [line["epoch"] for line in found] == list(range(1, count + 1)) != [1]
    assert found[-1]["step"] == QUICK["steps"]
    for line in found:
        assert set(line["losses"]) == {"rpn", "rpn box", "class", "box", "paint"}
        assert set(line["measured"]) >= {"ap", "ap50", "ap75", "recall36"}
        assert sum(kind["elements"] for kind in line["measured_by_class"].values()) > 0
    assert found[-1]["losses"]["class"] < found[0]["losses"]["class"]
    pictures = sorted(pictures_path(whole).iterdir())
    assert len(pictures) == count
    sheets = [np.asarray(Image.open(path).convert("RGB")) for path in pictures]
    labels, regions = ([sheet[:, left : left + 360] for sheet in sheets] for left in (8, 376))
    assert np.array_equal(labels[0], labels[1])
    assert not np.array_equal(regions[0], regions[1])


def test_a_training_goes_on_from_other_weights(few, whole, tmp_path):
    first, weights = whole, shutil.copy(whole, tmp_path / "start.safetensors")
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
    with pytest.raises(ConfigError, match=r"other from_\. Give --force"):
        train_detector(few, tmp_path / "w.safetensors", scratch)


def test_settings_that_do_not_go_together_are_refused(few, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(learner, "make_text_encoder", lambda *_: HashedNgrams(0))
    for more, problem in (
        ({"precision": "fp16"}, "precision: found fp16 on device cpu"),
        ({"size": "paper", "from_": whole}, "size tiny; expected paper"),
    ):
        with pytest.raises(ConfigError, match=problem):
            train_detector(few, tmp_path / "w.safetensors", TrainDetectorSettings(**QUICK, **more))


def test_several_crawls_are_learned_from_together(few, drawn):
    alone, both = (read_train_pages(few, 0.0, also=more) for more in ((), (drawn,)))
    other = read_train_pages(drawn, 0.0)
    places = [page.place for page in both.learn]
    assert sorted(places, key=str) == sorted(
        (page.place for page in [*alone.learn, *other.learn]), key=str
    )
    keys = {page.key for page in alone.learn}
    twice = [page for page in both.learn if page.key in keys][:8]
    assert len({page.key for page in twice}) < len(twice), "keys of crawls repeat"
    again = Screenshots((36, 64), 0, 1).read(twice)
    shots = Screenshots((36, 64), 100, 1)
    for _ in ("read", "from memory"):
        assert torch.equal(shots.read(twice), again)


def test_half_weights_are_half_as_large_and_measured_as_they_are(few, whole, tmp_path):
    path = tmp_path / "half.safetensors"
    train_detector(few, path, TrainDetectorSettings(**QUICK, half=True))
    assert path.stat().st_size < 0.52 * whole.stat().st_size
    assert {value.dtype for value in load_file(path).values()} == {torch.float16, torch.int64}
    model, card = load_detector(path, torch.device("cpu"))
    assert model.centre.dtype == torch.float32
    pages = read_train_pages(few, 0.2)
    screenshots = Screenshots(model.config.input_size, 10, 1)
    found = find(AptExtractor(model, HashedNgrams(0), {}), pages.held_out, screenshots)
    assert measure(found, card.classes).figures == pytest.approx(card.measured)
