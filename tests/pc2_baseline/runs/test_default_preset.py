"""Without --config the size of the release decides on the preset, and the command says so."""

import json
import shutil
from pathlib import Path

import h5py
import pytest
from typer.testing import CliRunner

from pc2_baseline.cli import app
from pc2_baseline.config import Plan, read_settings
from pc2_baseline.data.planted import plant
from pc2_baseline.runs import default_preset as module
from pc2_baseline.runs.default_preset import SMALL_PRESET, default_preset


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted") / "release"
    plant(folder, Plan(train=48, dev=8, test=8))
    return folder


def test_a_small_release_gets_a_preset_that_fits_it(release):
    name, overrides = default_preset(release, ["train.seed=3"])
    assert name == SMALL_PRESET
    assert overrides[-1] == "train.seed=3"
    settings = read_settings(name, overrides)
    manifest = json.loads((release / "manifest.json").read_text(encoding="utf-8"))
    assert settings.data.tokenizer in manifest["fingerprints"]["train"]
    assert settings.method.name == "crossfit"


def test_a_large_one_and_what_has_no_manifest_get_the_papers(release, tmp_path, monkeypatch):
    assert default_preset(tmp_path, ["a.b=1"]) == ("pc2-paper", ["a.b=1"])
    monkeypatch.setattr(module, "FEW_PAIRS", 48)
    assert default_preset(release, []) == ("pc2-paper", [])


def test_where_the_detector_read_its_words_are_begun_with(release, tmp_path):
    copy = shutil.copytree(release, tmp_path / "release")
    for path in copy.rglob("*.h5"):
        with h5py.File(path, "r+") as file:
            file.attrs["words"] = "now-words/1 512:768"
    assert read_settings(*default_preset(release, [])).model.similarity == "pooled"
    assert read_settings(*default_preset(copy, [])).model.similarity == "reading"
    chosen = read_settings(*default_preset(copy, ["model.similarity=pooled"]))
    assert chosen.model.similarity == "pooled", "what the user asks for comes last"


def test_training_says_which_it_took(release, tmp_path):
    quick = ["--set", "train.warmup_epochs=1", "--set", "train.epochs=1", "--set", "method.folds=2"]
    done = CliRunner().invoke(app, ["train", str(release), str(tmp_path / "run"), *quick])
    assert done.exit_code == 0, done.output
    assert f"preset {SMALL_PRESET}, by the release" in done.output + done.stderr
    assert 'name = "crossfit"' in Path(tmp_path / "run" / "run.toml").read_text(encoding="utf-8")
