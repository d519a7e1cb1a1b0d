"""The life of a run: resume, kills, selection, refusals."""

import json
import multiprocessing
import os
import re
import shutil
import signal
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from now_builder.errors import ConfigError, FormatError, NowError, TrainingError
from now_builder.formats.io import sha256_of
from pc2_baseline.config import TrainSettings, read_settings
from pc2_baseline.methods.pc2 import paper
from pc2_baseline.methods.pc2.paper import Pc2
from pc2_baseline.networks import sgr
from pc2_baseline.runs.evaluate import evaluate
from pc2_baseline.runs.train import train
from pc2_baseline.training.checkpoint import EpochRecord, read_state, read_tensors
from pc2_baseline.training.run_folder import read_run
from pc2_baseline.training.trainer import next_state

FORK = multiprocessing.get_context("fork")  # has torch, which takes seconds to import


@pytest.fixture(scope="module")
def small_settings(small_settings):
    """The same at a weight at which dev and test, eight pairs each, have other recalls."""
    return [*small_settings, "method.lambda_noisy=1"]


@pytest.fixture(scope="module")
def settings(small_settings):
    return read_settings("pc2-paper", small_settings, on="demo")


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory, settings):
    """A run that never stopped; tests that change it take a copy."""
    run = tmp_path_factory.mktemp("whole") / "run"
    train(tiny, run, settings)
    return run


@pytest.fixture
def finished(whole, tmp_path):
    """A copy of the run, to be changed."""
    return shutil.copytree(whole, tmp_path / "run")


def same_tensors(first, second):
    assert first.keys() == second.keys()
    for group, tensors in first.items():
        assert tensors.keys() == second[group].keys()
        for name, value in tensors.items():
            assert torch.equal(value, second[group][name]), f"{group}: {name}"


def same_runs(first, second):
    """Every tensor bit for bit; every figure but the seconds."""
    for part in ("last", "best"):
        same_tensors(read_tensors(first / part), read_tensors(second / part))
        states = [read_state(run / part).model_dump() for run in (first, second)]
        for state in states:
            for record in state["history"]:
                record.pop("seconds")
        assert states[0] == states[1]
    for file in (first / "divisions").iterdir():
        same_tensors({"": load_file(file)}, {"": load_file(second / "divisions" / file.name)})
    logs = [
        [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
        for run in (first, second)
    ]
    assert all(line.pop("seconds") > 0 for log in logs for line in log)
    assert logs[0] == logs[1]


def same_pictures_and_scalars(first, second):
    """Every scalar by epoch but the speed, and every picture."""
    scalars = [read_scalars(run / "tensorboard") for run in (first, second)]
    for found in scalars:
        assert len(found.pop("train/pairs_per_second")) == len(found["dev/rsum"])
    assert scalars[0] == scalars[1]
    pictures = [path.relative_to(first) for path in first.rglob("*.png")]
    assert sorted(path.relative_to(second) for path in second.rglob("*.png")) == sorted(pictures)
    assert len(pictures) > len(scalars[0]["dev/rsum"])
    for path in pictures:
        assert (first / path).read_bytes() == (second / path).read_bytes(), path


def read_scalars(folder):
    """Read every scalar as TensorBoard does: by tag, epochs and values."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def killed_training(*work):
    """Train in a process that dies when one peer has learned the third epoch, the other not."""
    fit = Pc2.fit_epoch

    def killed(self, pairs, epoch):
        if epoch == 2:
            self._learn(pairs, epoch, 0)
            os.kill(os.getpid(), signal.SIGKILL)
        return fit(self, pairs, epoch)

    Pc2.fit_epoch = killed
    train(*work)


def test_a_run_killed_in_the_middle_of_an_epoch_comes_to_the_same_end(
    tiny, tmp_path, small_settings
):
    watched = ["train.tensorboard=true", "train.pictures=true", f"data.truth={tiny / 'truth.csv'}"]
    overrides = [*small_settings, *watched]
    cut = tmp_path / "cut"
    settings = read_settings("pc2-paper", overrides, on="demo")
    process = FORK.Process(target=killed_training, args=(tiny, cut, settings))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert train(tiny, cut, settings).fresh == 2
    train(tiny, tmp_path / "whole", settings)
    same_runs(tmp_path / "whole", cut)
    same_pictures_and_scalars(tmp_path / "whole", cut)
    assert len((cut / "log.jsonl").read_text().splitlines()) == 4
    assert not [path for path in cut.rglob("*") if path.name.endswith(".tmp")]


def test_the_divisions_precision_is_chosen_once_and_kept_on_another_machine(
    tiny, tmp_path, small_settings, monkeypatch
):
    """The first machine multiplies in bf16; the run ends on one that does not."""
    monkeypatch.setattr(sgr, "NARROWEST", 8)
    monkeypatch.setattr(sgr, "multiplies_in_bf16", lambda: True)
    settings = read_settings("pc2-paper", small_settings, on="demo")
    train(tiny, tmp_path / "whole", settings)
    fit = Pc2.fit_epoch
    monkeypatch.setattr(Pc2, "fit_epoch", lambda *given: {0: fit}[given[2]](*given))
    with pytest.raises(KeyError):
        train(tiny, tmp_path / "moved", settings)
    monkeypatch.setattr(Pc2, "fit_epoch", fit)
    monkeypatch.setattr(sgr, "multiplies_in_bf16", lambda: False)
    train(tiny, tmp_path / "moved", settings)
    same_runs(tmp_path / "whole", tmp_path / "moved")
    record = read_run(tmp_path / "moved")
    assert (record.settings.model.division_precision, record.division_precision) == ("auto", "bf16")
    assert train(tiny, tmp_path / "moved", settings).fresh == 0

    monkeypatch.setattr(sgr, "multiplies_in_bf16", lambda: True)
    off = read_settings("pc2-paper", [*small_settings, "model.division_precision=fp32"], on="demo")
    train(tiny, tmp_path / "off", off)
    losses = [
        load_file(tmp_path / run / "divisions" / "00000.safetensors")["a.loss"]
        for run in ("whole", "off")
    ]
    assert 0 < (losses[0] - losses[1]).abs().max() < 0.01


def test_the_same_command_on_a_finished_run_says_so_and_changes_nothing(
    whole, tiny, settings, capsys, monkeypatch
):
    monkeypatch.setattr("pc2_baseline.runs.train.open_split", lambda *_: pytest.fail("opened"))
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    for left in ("last/networks.00002.safetensors", "best/.state.json.1.999999999.tmp"):
        (whole / left).touch()  # of kills after the last epoch
    done, state = train(tiny, whole, settings), read_state(whole / "last")
    assert "done, 4 epochs" in capsys.readouterr().err
    assert (done.best_epoch, done.best_rsum, done.fresh) == (state.best_epoch, state.best_rsum, 0)
    assert before == {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"best_epoch": 99}, "best_epoch 99, 4 epochs"),
        ({"best_rsum": float("nan")}, "best_rsum: expected a finite number"),
        ({"files": {}}, "files is {}, expected file names"),
        ({"files": {"networks": "../run.toml"}}, "files is .*, expected file names"),
    ],
)
def test_a_state_whose_fields_do_not_go_together_is_one_line(
    finished, tiny, settings, fields, problem
):
    path = finished / "last" / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    with pytest.raises(NowError, match=problem):
        train(tiny, finished, settings)


@pytest.mark.parametrize("group", ["networks", "training"])
def test_a_tensor_file_that_was_changed_or_is_another_runs_is_one_line(
    whole, tiny, tmp_path, settings, group
):
    run = shutil.copytree(whole, tmp_path / "run")
    path, tree = run / "last" / "state.json", json.loads((run / "last" / "state.json").read_text())
    tree["epoch"] = tree["best_epoch"] = 0
    file, tree["history"] = run / "last" / tree["files"][group], tree["history"][:1]
    path.write_text(json.dumps(tree))
    content = file.read_bytes()
    file.write_bytes(content[:-9] + bytes([content[-9] ^ 64]) + content[-8:])
    with pytest.raises(FormatError, match=f"{group}.*sha256 differs"):
        train(tiny, run, settings)
    save_file({"x": torch.zeros(3)}, file)
    path.write_text(json.dumps({**tree, "sha256": tree["sha256"] | {group: sha256_of(file)}}))
    with pytest.raises(FormatError, match="last: not of this run's network"):
        train(tiny, run, settings)


def test_other_settings_in_a_runs_folder_are_refused_and_named(finished, tiny, small_settings):
    changed = ["train.seed=1", "train.warmup_epochs=1", "train.epochs=0"]
    other = read_settings("pc2-paper", [*small_settings, *changed], on="demo")
    with pytest.raises(ConfigError, match=r"train\.seed: 0 there, 1 now"):
        train(tiny, finished, other)
    assert train(tiny, finished, other, force=True).fresh == 1
    assert read_run(finished).settings.train.seed == 1
    assert [file.name for file in (finished / "divisions").iterdir()] == ["00000.safetensors"]


def test_a_folder_that_is_no_run_is_left_alone(tiny, tmp_path, settings):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(ConfigError, match="not empty and not a run"):
        train(tiny, tmp_path, settings, force=True)
    assert (tmp_path / "thesis.txt").read_text() == "precious"


def test_two_trainings_never_share_a_folder(tiny, tmp_path, settings, monkeypatch):
    def second(self, train_, epoch):
        with pytest.raises(ConfigError, match="another command"):
            train(tiny, tmp_path / "run", settings)
        raise KeyboardInterrupt

    monkeypatch.setattr(Pc2, "fit_epoch", second)
    with pytest.raises(KeyboardInterrupt):
        train(tiny, tmp_path / "run", settings)


def test_a_step_that_breaks_leaves_its_batch_and_the_last_checkpoint_whole(
    whole, tiny, tmp_path, settings
):
    real, steps = paper.training_step, []

    def breaks(method, own, batch, clean, step):
        steps.append(step.pair_index[:clean].tolist())

        def triplet(*args):
            costs = own.triplet(*args)
            return (costs * 0).sqrt() + costs

        given = own if len(steps) < 2 else replace(own, triplet=triplet)
        return real(method, given, batch, clean, step)

    run = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paper, "training_step", breaks)
        where = r"^epoch 2, batch (\d), peer ([ab])"
        with pytest.raises(TrainingError, match=rf"{where}: the gradient norm.*failure") as caught:
            train(tiny, run, settings)
    told = json.loads((run / "failure.json").read_text())
    named = re.search(where, str(caught.value))
    assert (told["epoch"], str(told["batch"]), told["peer"]) == (2, *named.groups())
    assert told["pair_index"][: len(steps[1])] == steps[1]
    assert told["keys"] == [f"train_{row:05d}" for row in told["pair_index"]]
    assert told["loss"] != "nan"
    assert told["parts"].keys() == {"noisy"}
    assert read_state(run / "last").epoch == 1
    assert train(tiny, run, settings).fresh == 2
    same_runs(whole, run)
    assert not (run / "failure.json").exists()


def test_epochs_are_scored_on_dev_and_never_on_test(whole, tiny):
    """The scores of the best epoch are those of its networks on dev, which test's are not."""
    state = read_state(whole / "best")
    dev, test = (evaluate(whole, split, release=tiny).scores for split in ("dev", "test"))
    kept = state.history[state.best_epoch].dev
    assert kept == pytest.approx(dev)
    assert kept != pytest.approx(test)


def record(epoch, rsum):
    return EpochRecord(epoch=epoch, seconds=1.0, dev={"rsum": rsum}, figures={})


def ends(settings, rsums):
    """Return the best epoch and the last one of a training with such dev rSums."""
    state = None
    for epoch, rsum in enumerate(rsums):
        state = next_state(state, record(epoch, float(rsum)), settings)
        if state.stopped:
            break
    return state.best_epoch, state.epoch


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({}, (1, 6)),
        ({"patience": 2}, (1, 3)),
        ({"select_from_epoch": 1}, (5, 6)),
        ({"select_from_epoch": 1, "patience": 1}, (3, 4)),
        ({"select_from_epoch": 4}, (6, 6)),
    ],
)
def test_the_best_and_the_last_epoch_follow_from_patience_and_where_selection_starts(
    overrides, expected
):
    settings = TrainSettings(warmup_epochs=2, epochs=5, **overrides)
    assert ends(settings, [5, 9, 1, 3, 3, 7, 6]) == expected


def test_too_few_pairs_end_in_one_line(planted, tmp_path, settings):
    plan = planted.Plan(train=3, dev=2, test=2, topics=2)
    release = planted.plant(tmp_path / "release", plan)
    with pytest.raises(TrainingError, match=r": 3 training pairs, expected at least 4$"):
        train(release, tmp_path / "run", settings)


def test_an_unknown_device_is_a_setting_mistake(tiny, tmp_path, small_settings):
    for name in ("gpu0", "cuda:99"):
        settings = read_settings(
            "pc2-paper", [*small_settings, f'train.device="{name}"'], on="demo"
        )
        with pytest.raises(ConfigError, match=r"train\.device"):
            train(tiny, tmp_path / "run", settings)
