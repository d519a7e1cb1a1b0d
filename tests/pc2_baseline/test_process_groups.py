"""Two processes train what one would: peers apart, or a similarity block split between them."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from pc2_baseline.process_groups import ALONE, join_process_groups

COMMAND = Path(sys.executable).with_name("pc2-baseline")
MODEL = [
    "model.embed_dim=32", "model.word_dim=24", "model.similarity_dim=16", "train.batch=9",
    "train.warmup_epochs=1", "train.epochs=1", "train.lr=1e-3", "train.device=cpu",
    "train.pictures=false", "train.tensorboard=false",
]  # fmt: skip


def torchrun(processes):
    return [sys.executable, "-m", "torch.distributed.run", "--standalone",
            f"--nproc-per-node={processes}", "--no-python"]  # fmt: skip


def run(release, folder, config, *overrides, processes=1):
    start = torchrun(processes) if processes > 1 else []
    sets = [part for value in (*MODEL, *overrides) for part in ("--set", value)]
    done = subprocess.run(
        [*start, COMMAND, "train", release, folder, "--config", config, *sets],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def tensors(folder, group):
    (file,) = (folder / "last").glob(f"{group}.*.safetensors")
    return load_file(file)


def log(folder):
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{**line, "seconds": 0} for line in lines]


def test_one_process_is_a_group_of_one():
    joined = join_process_groups(2)
    assert joined.mine == (0, 1)
    assert joined.groups == (ALONE, ALONE)
    assert joined.for_each_peer(lambda peer: peer * 10) == [0, 10]


@pytest.mark.parametrize(
    ("config", "method"),
    [("pc2-paper", ["method.classes=8", "method.class_hidden=16"]),
     ("crossfit", ["method.folds=2", "train.seed=1"]),
     ("crossfit-pooled-demo", ["method.folds=3", "data.tokenizer=jieba", "train.seed=1"]),
     ("ncr", []), ("bicro", ["method.warmup_share=1"])],
)  # fmt: skip
def test_peers_in_two_processes_equal_peers_in_one_bit_for_bit(tiny, tmp_path, config, method):
    run(tiny, tmp_path / "one", config, *method)
    done = run(tiny, tmp_path / "two", config, *method, processes=2)
    for group in ("networks", "training", "beliefs"):
        one, two = (tensors(tmp_path / name, group) for name in ("one", "two"))
        assert one.keys() == two.keys()
        assert all(np.array_equal(one[name], two[name]) for name in one), group
    assert log(tmp_path / "one") == log(tmp_path / "two")
    assert done.stderr.count("epoch 1/2") == 1
    assert done.stdout.count("dev rSum") == 1


def test_a_split_block_equals_a_whole_one_to_rounding():
    script = Path(__file__).with_name("split_block.py")
    done = subprocess.run(
        [*torchrun(2), sys.executable, script], capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("agrees") == 2


def test_a_training_split_between_two_processes_comes_to_the_same_scores(tiny, tmp_path):
    """Losses to 1e-4: float32 sums in another order, six steps of Adam."""
    run(tiny, tmp_path / "one", "sgr")
    run(tiny, tmp_path / "two", "sgr", processes=2)
    one, two = (log(tmp_path / name) for name in ("one", "two"))
    for alone, split in zip(one, two, strict=True):
        assert split["figures"]["loss"] == pytest.approx(alone["figures"]["loss"], rel=1e-4)
        assert split["dev"]["rsum"] == pytest.approx(alone["dev"]["rsum"])


def test_a_run_of_two_processes_goes_on_in_one(tiny, tmp_path):
    method = ["method.classes=8", "method.class_hidden=16", "train.epochs=2"]
    run(tiny, tmp_path / "one", "pc2-paper", *method)
    run(tiny, tmp_path / "two", "pc2-paper", *method, "train.patience=0", processes=2)
    again = run(tiny, tmp_path / "two", "pc2-paper", *method, "train.patience=0")
    assert "done, 3 epochs" in again.stderr
    one, two = (tensors(tmp_path / name, "networks") for name in ("one", "two"))
    assert all(np.array_equal(one[name], two[name]) for name in one)
