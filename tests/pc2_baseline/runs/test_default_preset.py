"""The release decides on the preset without --config, and on the track; the command says so."""

import json
import shutil
from pathlib import Path

import h5py
import pytest
import torch
from typer.testing import CliRunner

from pc2_baseline.cli import app
from pc2_baseline.config import Plan, read_settings
from pc2_baseline.data.planted import plant
from pc2_baseline.runs import train as module
from pc2_baseline.runs.train import SMALL_PRESET, default_preset, with_only_track


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted") / "release"
    plant(folder, Plan(train=48, dev=8, test=8))
    return folder


def test_a_small_release_gets_a_preset_that_fits_it(release):
    name, overrides, on = default_preset(release, ["train.seed=3"])
    assert (name, on) == (SMALL_PRESET, "demo")
    assert overrides[-1] == "train.seed=3"
    settings = read_settings(name, overrides, on)
    manifest = json.loads((release / "manifest.json").read_text(encoding="utf-8"))
    assert settings.data.tokenizer in manifest["fingerprints"]["train"]
    assert settings.method.name == "crossfit"


def test_a_large_one_and_what_has_no_manifest_get_the_papers(release, tmp_path, monkeypatch):
    assert default_preset(tmp_path, ["a.b=1"]) == ("pc2-paper", ["a.b=1"], None)
    monkeypatch.setattr(module, "FEW_PAIRS", 48)
    assert default_preset(release, []) == ("pc2-paper", [], None)


def test_where_the_detector_read_its_words_are_begun_with(release, tmp_path):
    copy = shutil.copytree(release, tmp_path / "release")
    for path in copy.rglob("*.h5"):
        with h5py.File(path, "r+") as file:
            file.attrs["words"] = "now-words/2 512:768"
    assert read_settings(*default_preset(release, [])).model.similarity == "pooled"
    assert read_settings(*default_preset(copy, [])).model.similarity == "reading"
    chosen = read_settings(*default_preset(copy, ["model.similarity=pooled"]))
    assert chosen.model.similarity == "pooled", "what the user asks for comes last"


def test_training_says_which_it_took(release, tmp_path):
    quick = ["--set", "train.warmup_epochs=1", "--set", "train.epochs=1", "--set", "method.folds=2"]
    done = CliRunner().invoke(app, ["train", str(release), str(tmp_path / "run"), *quick])
    assert done.exit_code == 0, done.output
    assert f"preset {SMALL_PRESET} --on demo, chosen for this release" in done.output + done.stderr
    assert 'name = "crossfit"' in Path(tmp_path / "run" / "run.toml").read_text(encoding="utf-8")


def test_products_on_a_gpu_are_rounded_to_tf32_where_that_is_asked_for(release, tmp_path):
    kinds = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)
    small = [
        "train.warmup_epochs=1", "train.epochs=0", "model.embed_dim=8", "model.similarity_dim=8",
        "data.tokenizer=jieba",
    ]  # fmt: skip
    for asked, precision in (("true", "tf32"), ("false", "ieee")):
        sets = [part for one in (*small, f"train.tf32={asked}") for part in ("--set", one)]
        command = ["train", str(release), str(tmp_path / asked), "--config", "sgr", *sets]
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
        assert {kind.fp32_precision for kind in kinds} == {precision}


def test_the_only_track_is_taken_where_the_presets_is_not_there(release, capsys):
    assert with_only_track(release, "ridge", ["train.seed=1"])[1:] == ['data.tokenizer="jieba"']
    words = "track jieba, the only one, instead of bert"
    assert capsys.readouterr().err == f"{release}: {words}\n"


def test_a_track_that_is_there_or_asked_for_is_left(release, capsys):
    for on, overrides in (
        (None, []),
        ("f30k", []),
        ("now-bert", ["data.tokenizer = bert"]),
        ("now-bert", ["data.tokenizer=bpe"]),
    ):
        assert with_only_track(release, "pc2-paper", overrides, on) == overrides
    assert not capsys.readouterr().err


def test_of_several_tracks_none_is_taken(release, tmp_path):
    copy = shutil.copytree(release, tmp_path / "release")
    for path in [*copy.rglob("*_caps_jieba.txt"), *copy.rglob("*_vocab_jieba.json")]:
        shutil.copy(path, path.with_name(path.name.replace("jieba", "mine")))
    assert with_only_track(copy, "pc2-paper", [], "now-bert") == []
    run = CliRunner().invoke(
        app,
        ["train", str(copy), str(tmp_path / "run"), "--config", "pc2-paper", "--on", "now-bert"],
    )
    assert run.exit_code == 1
    assert str(run.exception) == (
        f"{copy}: no track bert, it has jieba, mine; use --set data.tokenizer=jieba"
    )
    assert not (tmp_path / "run").exists()


def test_another_data_set_is_called_by_its_name(release, tmp_path):
    for config, folder, found in (
        ("sgr --on f30k", release, "contains NoW; use --set data.name=now100k_precomp, not"),
        ("sgr", tmp_path / "coco_precomp", "contains coco_precomp; use --set data.name=coco"),
        ("sgr", tmp_path, "contains coco_precomp; use --set data.name=coco"),
    ):
        (tmp_path / "coco_precomp").mkdir(exist_ok=True)
        done = CliRunner().invoke(
            app, ["train", str(folder), str(tmp_path / "r"), "--config", *config.split()]
        )
        assert f"{folder}: {found}" in str(done.exception)
    tables = ["table", str(release), str(tmp_path / "t"), "--methods", "sgr", "--on", "f30k"]
    assert "contains NoW" in str(CliRunner().invoke(app, tables).exception)


def test_a_folder_without_the_vocabulary_says_which_it_has(release, tmp_path):
    (tmp_path / "now100k_precomp_vocab_bpe.json").touch()
    asked = ["--config", "sgr", "--set", f"data.vocab_path={tmp_path}"]
    done = CliRunner().invoke(app, ["train", str(release), str(tmp_path / "run"), *asked])
    words = "file not found; the folder has now100k_precomp_vocab_bpe.json"
    assert str(done.exception).endswith(f"now100k_precomp_vocab_jieba.json: {words}")
