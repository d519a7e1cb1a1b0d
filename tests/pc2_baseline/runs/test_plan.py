"""A plan counts what a training would take on a GPU."""

import json

import pytest
import torch

from now_builder.errors import ConfigError
from pc2_baseline.cli import main
from pc2_baseline.config import read_settings
from pc2_baseline.runs.plan import GPUS, Data, plan

SMALL = ["model.embed_dim=64", "model.similarity_dim=32", "train.batch=16"]


def planned(*overrides, gpu="h100", clean=0.5, config="pc2-paper"):
    settings = read_settings(config, [*SMALL, *overrides])
    return plan(settings, Data.like_now(1600, 128), gpu, clean)


def test_hours_are_those_of_the_steps_and_grow_with_the_pairs_that_are_clean():
    noisy_from = "method.noisy_from_epoch=10"
    found = {clean: planned(noisy_from, clean=clean, config="pc2-pooled") for clean in (0.5, 1.0)}
    warm, clean, noisy, division, dev = found[0.5].phases
    assert [each.epochs for each in found[0.5].phases] == [10, 10, 40, 60, 60]
    # two peers, 1600 pairs in batches of 16, half of them clean
    assert warm.hours == pytest.approx(10 * 200 * warm.seconds / 3600)
    assert noisy.hours == pytest.approx(40 * 100 * noisy.seconds / 3600)
    assert division.hours == pytest.approx(60 * 200 * division.seconds / 3600)
    assert dev.hours == pytest.approx(60 * 2 * dev.seconds / 3600)
    assert clean.tflop < noisy.tflop < 2 * clean.tflop
    assert found[1.0].phases[2].hours == pytest.approx(2 * noisy.hours)
    assert found[0.5].memory_gib > found[0.5].held_gib > 1600 * 36 * 768 * 4 / 2**30


def test_each_operation_takes_what_it_is_short_of():
    gpu, start = GPUS["h100"], 45e-6
    product = {(torch.float32, 10**12, 1): 2.0}
    assert gpu.seconds(product, tf32=False) == pytest.approx(2 / (0.7 * 67) + 2 * start)
    assert gpu.seconds(product, tf32=True) == pytest.approx(2 / (0.7 * 495) + 2 * start)
    copy = {(None, 0, 10**12): 1.0}
    assert gpu.seconds(copy, tf32=True) == pytest.approx(1 / (0.8 * 3.35) + start)


def test_the_command_prints_json_and_names_the_gpus_it_knows(capsys, monkeypatch, tiny):
    sets = [word for value in SMALL for word in ("--set", value)]
    command = ["pc2-baseline", "plan", str(tiny), "--config", "sgr", "--gpu", "a100", "--json"]
    monkeypatch.setattr("sys.argv", [*command, *sets])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    found = json.loads(capsys.readouterr().out)
    assert [phase["name"] for phase in found["phases"]] == ["warm-up", "after it", "dev"]
    assert found["pairs"] == 24
    with pytest.raises(ConfigError, match="--gpu t4: not known, expected one of a100, h100"):
        planned(gpu="t4")
    with pytest.raises(ConfigError, match="method ridge: it trains on the CPU"):
        plan(read_settings("ridge", []), Data.like_now(100), "h100", 0.5)
