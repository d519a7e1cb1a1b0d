"""Two processes train what one would: peers apart, or a similarity block split between them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from now_builder.errors import ConfigError
from pc2_baseline.cli import app
from pc2_baseline.config import read_settings
from pc2_baseline.process_groups import ALONE, join_process_groups, start
from pc2_baseline.runs.train import train

MODEL = [
    "model.embed_dim=8", "model.word_dim=8", "model.similarity_dim=8", "train.batch=12",
    "train.warmup_epochs=1", "train.epochs=1", "train.lr=1e-3", "train.device=cpu",
    "train.pictures=false", "train.tensorboard=false",
]  # fmt: skip


METHODS = {
    "pc2-paper": ["method.classes=8", "method.class_hidden=8"],
    "crossfit-pooled": ["method.folds=3", "data.tokenizer=jieba", "train.seed=1"],
    "in2r": ["data.tokenizer=jieba", "method.neighbours=1", "train.epochs=3"],
    "bicro": ["method.warmup_share=1"],
}
LONGER = [*MODEL, *METHODS["pc2-paper"], "train.epochs=2"]
"""What is run by the command."""
SPLIT = "sgr"
"""One network: its similarity block is split between the ranks."""


def model_of(preset):
    """The small model, without settings that the network of a preset does not have."""
    own = read_settings(preset, []).model
    names = [value.partition("=")[0] for value in MODEL]
    return [value for value, name in zip(MODEL, names, strict=True)
            if not name.startswith("model.") or hasattr(own, name[6:])]  # fmt: skip


def alone(release, folder, preset, overrides):
    """Train in this process."""
    train(release, folder, read_settings(preset, overrides))
    return folder


def tensors(folder, group):
    (file,) = (folder / "last").glob(f"{group}.*.safetensors")
    return load_file(file)


def log(folder):
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{**line, "seconds": 0} for line in lines]


@pytest.fixture(scope="module")
def pixels(painted, small_clip):
    """Release and settings of a dual encoder, whose batches ranks that share it encode in parts."""
    own = [*model_of("clip"), "data.tokenizer=jieba", "model.precision=fp32", "model.chunk=2",
           f'model.encoder="{small_clip}"', f'data.captures="{painted / "captures"}"']  # fmt: skip
    return painted / "release", own


@pytest.fixture(scope="module")
def two_ranks(tiny, pixels, tmp_path_factory):
    """What two ranks made and said: a command, the split block, all trainings in one launch."""
    folder = tmp_path_factory.mktemp("two")
    sets = [part for value in (*LONGER, "train.patience=0") for part in ("--set", value)]
    jobs = [(str(tiny), str(folder / preset), preset, [*model_of(preset), *METHODS.get(preset, [])])
            for preset in (*METHODS, SPLIT)]  # fmt: skip
    jobs.append((str(pixels[0]), str(folder / "clip"), "clip", pixels[1]))
    (folder / "jobs.json").write_text(json.dumps(jobs))
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
         Path(__file__).with_name("two_ranks.py"), folder / "jobs.json",
         "train", tiny, folder / "command", "--config", "pc2-paper", *sets],
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder, done


def test_one_process_is_a_group_of_one():
    joined = join_process_groups(2)
    assert joined.mine == (0, 1)
    assert joined.groups == (ALONE, ALONE)
    assert joined.for_each_peer(lambda peer: peer * 10) == [0, 10]


@pytest.mark.parametrize("preset", METHODS)
def test_peers_in_two_processes_equal_peers_in_one_bit_for_bit(tiny, tmp_path, two_ranks, preset):
    one = alone(tiny, tmp_path / "one", preset, [*model_of(preset), *METHODS[preset]])
    two = two_ranks[0] / preset
    for group in ("networks", "training", "statistics"):
        expected, found = (tensors(run, group) for run in (one, two))
        assert expected.keys() == found.keys()
        assert all(np.array_equal(expected[name], found[name]) for name in expected), group
    assert log(one) == log(two)


def test_a_split_block_equals_a_whole_one_to_rounding(two_ranks):
    assert two_ranks[1].stdout.count("agrees") == 2


@pytest.mark.parametrize("preset", [SPLIT, "clip"])
def test_a_training_split_between_two_processes_comes_to_the_same_scores(
    tiny, pixels, tmp_path, two_ranks, preset
):
    """Losses to 1e-4: float32 sums in another order, six steps of Adam."""
    release, own = pixels if preset == "clip" else (tiny, MODEL)
    one = alone(release, tmp_path / "one", preset, own)
    for whole, split in zip(log(one), log(two_ranks[0] / preset), strict=True):
        assert split["figures"]["loss"] == pytest.approx(whole["figures"]["loss"], rel=1e-4)
        assert split["dev"]["rsum"] == pytest.approx(whole["dev"]["rsum"])


def test_a_run_of_two_processes_goes_on_in_one(tiny, tmp_path, two_ranks, capsys):
    """By the command, which speaks once however many processes it has."""
    one = alone(tiny, tmp_path / "one", "pc2-paper", LONGER)
    folder, done = two_ranks
    assert done.stderr.count("epoch 1/3") == 1
    assert done.stdout.count("dev rSum") == 1
    capsys.readouterr()
    again = alone(tiny, folder / "command", "pc2-paper", [*LONGER, "train.patience=0"])
    assert "done, 3 epochs" in capsys.readouterr().err
    expected, found = (tensors(run, "networks") for run in (one, again))
    assert all(np.array_equal(expected[name], found[name]) for name in expected)


def test_processes_share_the_only_gpu_and_have_one_each_of_several(monkeypatch):
    """NCCL takes a GPU once, so Gloo carries what processes on one card tell each other."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    taken = []
    monkeypatch.setattr("torch.cuda.set_device", taken.append)
    monkeypatch.setattr("torch.distributed.init_process_group", taken.append)
    for gpus, expected in ((1, [0, "gloo"]), (2, [1, "nccl"])):
        monkeypatch.setattr("torch.cuda.device_count", lambda gpus=gpus: gpus)
        start("cuda")
        assert taken == expected
        taken.clear()
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ConfigError, match="process 3 on this machine, which has 2 GPUs"):
        start("cuda")


def test_a_command_starts_its_processes(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    started = []
    monkeypatch.setattr(os, "execv", lambda *given: started.append(given) or sys.exit())
    asked = ["train", "release", "run", "--processes", "2"]
    monkeypatch.setattr(sys, "argv", ["pc2-baseline", *asked])
    CliRunner().invoke(app, asked)
    ((program, arguments),) = started
    assert program == sys.executable
    assert "--nproc-per-node=2" in arguments
    assert arguments[-len(asked) :] == asked
