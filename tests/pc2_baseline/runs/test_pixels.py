"""A dual encoder from captures and release to a submission, and what is refused."""

import json
import shutil

import numpy as np
import pytest
import transformers
from safetensors.torch import load_file

from leaderboard.blind import RoundPlan, make_round
from leaderboard.scoring.evaluate import score
from leaderboard.submission.archive import open_submission
from now_builder.errors import FormatError
from pc2_baseline.config import read_settings
from pc2_baseline.runs.open_run import open_run, similarity
from pc2_baseline.runs.train import train
from tests.pc2_baseline.commands import call, failed
from tests.pc2_baseline.train_twice import train_twice

SMALL = ["train.batch=8", "train.warmup_epochs=1", "train.epochs=2", "train.device=cpu",
         "train.lr=1e-3", "train.tensorboard=false", "train.pictures=false",
         "data.tokenizer=jieba", "model.chunk=3"]  # fmt: skip


def train_command(painted, run, encoder, *more, captures=None):
    sets = [word for value in (*SMALL, f'model.encoder="{encoder}"') for word in ("--set", value)]
    return call("train", painted / "release", run, "--config", "clip", "--captures",
                captures or painted / "captures", *sets, *more)  # fmt: skip


@pytest.fixture(scope="module")
def trained(painted, small_clip, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "clip"
    done = train_command(painted, run, small_clip)
    assert done.returncode == 0, done.stderr
    return run


def test_a_run_is_evaluated_packed_and_scored(painted, small_clip, trained, tmp_path):
    found = call("evaluate", trained, "--json", "-o", tmp_path / "m.npy")
    assert found.returncode == 0, found.stderr
    packed = call("predict", trained, "-o", tmp_path / "x.zip")
    assert packed.returncode == 0, packed.stderr
    result = score(tmp_path / "x.zip", painted / "release")
    assert result.rsum == pytest.approx(json.loads(found.stdout)["scores"]["rsum"])
    with open_submission(tmp_path / "x.zip") as submission:
        assert submission.meta.method.name == "Softmax loss, clip"
        assert submission.meta.training.pretrained_backbones == ("clip",)
        assert "pre-trained" in submission.meta.training.external_data
    # features are not opened, and screenshots that do not fit are decoded by the batch
    assert not list((painted / "release").rglob("*.h5"))
    with open_run(trained).open("test", from_disk=True) as pairs:
        assert not isinstance(pairs.regions, np.ndarray)
        by_batch = open_run(trained).method.similarity(pairs)
    assert np.array_equal(by_batch, np.load(tmp_path / "m.npy"))


@pytest.mark.parametrize("more", [[], ["model.lora_rank=2", "model.precision=fp32"]])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(painted, small_clip, tmp_path, more):
    if more:
        pytest.importorskip("peft", reason="pip install 'noise-of-web[lora]'")
    own = read_settings("clip", [
        *SMALL, *more, f'model.encoder="{small_clip}"', f'data.captures="{painted / "captures"}"'
    ])  # fmt: skip
    whole = train_twice(painted / "release", tmp_path, own, 2)
    if more:  # what never changes is in the model's own folder
        assert all("lora_" in name for name in whole["networks"])
    else:
        every = load_file(small_clip / "model.safetensors")
        assert len(whole["networks"]) == len(every) - 1  # its own scale of the logits


def test_from_nothing_it_learns_colours_and_finds_shuffled_captions(
    write_painted, encoders, tmp_path
):
    sizes = {"train": 128, "dev": 32, "test": 8}
    folder = write_painted(tmp_path / "data", sizes, mismatch=0.4)
    words = [f"{kind}{number}" for number in range(8) for kind in "abc"]
    encoder = encoders.save(encoders.clip, tmp_path / "clip", words)
    own = read_settings("clip", [
        *SMALL, f'model.encoder="{encoder}"', f'data.captures="{folder / "captures"}"',
        "method.name=crossfit", "method.folds=2", "method.loss=info_nce", "train.lr=5e-3",
        "method.temperature=0.2", "train.batch=16", "train.warmup_epochs=8", "model.precision=fp32",
        f'data.truth="{folder / "truth.csv"}"', "model.chunk=0",
    ])  # fmt: skip
    done = train(folder / "release", tmp_path / "run", own)
    chance = 2 * 100 * (1 + 5 + 10) / 32
    assert done.best_rsum > 3 * chance
    last = json.loads((tmp_path / "run" / "log.jsonl").read_text().splitlines()[-1])
    assert last["figures"]["auroc"] > 0.7


def test_what_cannot_be_seen_or_read_is_refused_in_one_line(
    painted, small_clip, trained, easy, tmp_path, monkeypatch
):
    out = tmp_path / "run"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    failed(train_command(painted, out, "now/none"), "model 'now/none': not a usable dual encoder")
    sets = [
        word for value in (*SMALL, f'model.encoder="{small_clip}"') for word in ("--set", value)
    ]
    command = ["train", painted / "release", out, "--config", "clip", *sets]
    failed(call(*command), r"dual_encoder\" needs screenshots; set --captures CAPTURES")
    failed(call(*command, "--captures", tmp_path / "no"), "no such captures folder")
    for name in ("sgr", "ridge"):
        other = ["train", painted / "release", out, "--config", name, "--captures", tmp_path]
        failed(call(*other), "data.captures: expected model.similarity")
    failed(
        train_command(painted, out, small_clip, "--set", "method.name=ridge"),
        "method ridge needs features",
    )
    other = shutil.copytree(painted, tmp_path / "other")
    (other / "release" / "manifest.json").unlink()
    failed(train_command(other, out, small_clip), "no manifest.json and so no caption texts")
    command[1] = easy
    failed(call(*command, "--captures", painted / "captures"), "no screenshot of 160 of 160 pairs")
    make_round(easy, tmp_path / "round", RoundPlan(name="June"))
    with pytest.raises(FormatError, match="caption texts"):
        similarity(trained, "test", release=tmp_path / "round" / "participants")


def test_another_model_of_that_name_is_refused(painted, small_clip, encoders, tmp_path):
    encoder = shutil.copytree(small_clip, tmp_path / "clip")
    assert train_command(painted, tmp_path / "run", encoder).returncode == 0
    config = transformers.CLIPConfig.from_pretrained(encoder)
    transformers.CLIPModel(config).save_pretrained(encoder)
    done = train_command(painted, tmp_path / "run", encoder)
    failed(done, "a run on another content of model.encoder")
    failed(call("evaluate", tmp_path / "run"), "the model .*clip has changed since the training")
