"""Training: it learns, from the train pool only, and a kill leaves no trace."""

import json
import multiprocessing
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from now_builder.detect.base import Page
from now_builder.detect.labels.mapping import NAMES
from now_builder.detect.model.apt import TINY
from now_builder.detect.model.clip_resnet import ModifiedResNet
from now_builder.detect.model.text_encoder import HashedNgrams
from now_builder.detect.model.weights import card_path, load_detector, read_card
from now_builder.detect.regions.extraction import AptExtractor
from now_builder.detect.settings import TrainDetectorSettings
from now_builder.detect.training.callbacks import history_path, pictures_path
from now_builder.detect.training.checkpoints import checkpoint_path
from now_builder.detect.training.data import Screenshots, read_train_pages
from now_builder.detect.training.finish import fit_scale
from now_builder.detect.training.loop import Training
from now_builder.detect.training.measure import find, measure
from now_builder.detect.training.run import train_detector
from now_builder.errors import ConfigError, FormatError, TrainingError
from now_builder.formats.io import sha256_of
from now_builder.formats.shard import locate_screenshots, read_rows
from now_builder.formats.split import read_split

QUICK = {
    "steps": 4, "batch_size": 2, "checkpoint_every": 1, "threads": 1, "device": "cpu", "ema": 0.9,
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(few, tmp_path_factory):
    """Weights of a quick training that was not stopped."""
    weights = tmp_path_factory.mktemp("whole") / "whole.safetensors"
    train_detector(few, weights, TrainDetectorSettings(**QUICK))
    return weights


def test_a_trained_detector_finds_more_than_an_untrained_one(train_pages, trained):
    weights, totals = trained
    assert sum(totals[-5:]) < 0.6 * sum(totals[:5])
    pages = train_pages
    screenshots = Screenshots((360, 640), 100, 1)
    training = Training(weights, TrainDetectorSettings(threads=1, device="cpu"), pages)
    untrained = AptExtractor(training.learner.model, training.learner.encoder, {})
    model, _ = load_detector(weights, torch.device("cpu"))
    learnt = AptExtractor(model, training.learner.encoder, {})
    found = find([untrained.extract, learnt.extract], pages.held_out, screenshots)
    before, after = (measure(its, NAMES) for its in found)
    assert after.recall36 > before.recall36 + 0.05
    assert after.classified36 > before.classified36 + 0.05
    assert after.ap50 > before.ap50 + 0.05


def test_the_json_says_what_the_weights_are(train_pages, trained):
    weights, _ = trained
    card = json.loads(card_path(weights).read_text(encoding="utf-8"))
    assert card["weights_sha256"] == sha256_of(weights)
    assert len(card["classes"]) == len(card["prompts"]) == 18
    assert len(card["prompts"][0]) == 768
    assert card["text_encoder"] == "hash:0"
    assert card["mapping"]["classes"][3] == ["button", "按钮"]
    assert card["measured"]["recall36"] > card["measured"]["ap50"] > card["measured"]["ap"] > 0
    by_class = card["measured_by_class"]
    assert set(by_class) <= set(NAMES)
    assert sum(found["elements"] for found in by_class.values()) == card["measured"]["elements"]
    assert card["trained_on"]["pages"] == len(train_pages.learn)


def test_stored_features_are_centred_spread_out_and_of_one_scale(train_pages, trained):
    weights, _ = trained
    model, _ = load_detector(weights, torch.device("cpu"))
    pages = train_pages.learn
    batch = AptExtractor(model, HashedNgrams(0), {}).extract(
        [Page(page.key, page.text_boxes) for page in pages],
        Screenshots((360, 640), 100, 1).read(pages),
    )
    rows = torch.from_numpy(batch.regions).flatten(0, 1)
    assert 0.5 < rows.square().mean().sqrt().item() < 2
    unit = nn.functional.normalize(rows, dim=1)
    assert (unit.mean(dim=0).square().sum()).item() < 0.2  # the mean cosine of two rows


def test_only_the_train_pool_is_read_and_sites_are_held_out_whole(drawn):
    plan = read_split(drawn / "split.toml")
    pages = read_train_pages(drawn, 0.3)
    rows = [row for row in read_rows(drawn) if row.status == "ok"]
    ours = {row.key for row in rows if plan.pool_of(row.site, row.key) == "train"}
    assert {page.key for page in [*pages.learn, *pages.held_out]} == ours
    assert not {p.site for p in pages.learn} & {p.site for p in pages.held_out}


def test_screenshots_outside_the_train_pool_do_not_change_the_weights(few, whole, tmp_path):
    """The tar members of other pools are made unreadable; the weights stay the same."""
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
    train_detector(captures, weights, TrainDetectorSettings(**QUICK))
    assert sha256_of(weights) == sha256_of(whole)


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
    one, other = (json.loads(card_path(path).read_text()) for path in (whole, weights))
    assert one == other
    pictures, others = (sorted(pictures_path(path).iterdir()) for path in (whole, weights))
    assert [p.read_bytes() for p in pictures] == [p.read_bytes() for p in others]
    again = train_detector(few, weights, settings)
    assert again.seconds == 0
    with pytest.raises(ConfigError, match="other seed; --force"):
        train_detector(few, weights, settings.model_copy(update={"seed": 5}))
    with pytest.raises(FormatError, match="no such"):
        train_detector(tmp_path, weights, settings, force=True)
    assert weights.exists()


def test_each_epoch_shows_every_page_once_in_an_order_of_its_own(train_pages, tmp_path):
    settings = TrainDetectorSettings(**{**QUICK, "batch_size": len(train_pages.learn)})
    training = Training(tmp_path / "w.safetensors", settings, train_pages)
    epochs = []
    for training.step in (0, 1, 0):
        epochs.append([page.key for page in training.batch()])
    keys = [page.key for page in train_pages.learn]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(keys)
    assert epochs[0] == epochs[2] != epochs[1]


def test_a_checkpoint_of_other_settings_or_a_torn_one_is_refused(few, tmp_path):
    weights = tmp_path / "w.safetensors"
    settings = TrainDetectorSettings(**QUICK)
    training = Training(weights, settings, read_train_pages(few, 0.1))
    training.save()
    with pytest.raises(ConfigError, match="other settings; --force"):
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
    with pytest.raises(FormatError, match="missing"):
        read_card(copy)
    card_path(copy).write_bytes(card_path(weights).read_bytes())
    read_card(copy)
    copy.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(FormatError, match="not the JSON of these weights"):
        read_card(copy)


def test_captures_without_labels_are_a_users_mistake(draw, tmp_path):
    draw(tmp_path / "c", pages=1, sites=1, shards=1)
    with pytest.raises(TrainingError, match="two or more"):
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
