"""A run at a tracker: each epoch once, in one run also after stops; with the real libraries."""

import json
import struct

import pytest

from now_builder.errors import ConfigError
from pc2_baseline.config import read_settings
from pc2_baseline.methods.pc2.paper import Pc2
from pc2_baseline.runs.train import train
from tests.pc2_baseline.commands import call, failed


def settings_of(small_settings, track, **more):
    sets = ["train.warmup_epochs=1", "train.pictures=true", f'train.track="{track}"']
    sets += [f"{name}={value}" for name, value in more.items()]
    return read_settings("pc2-paper", [*small_settings, *sets], on="demo")


def stopped(release, run, settings, epoch):
    """Train up to an epoch, and stop as a kill would."""
    fit = Pc2.fit_epoch

    def broken(self, pairs, number):
        if number == epoch:
            raise KeyboardInterrupt
        return fit(self, pairs, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pc2, "fit_epoch", broken)
        with pytest.raises(KeyboardInterrupt):
            train(release, run, settings)


def stopped_and_resumed(release, run, settings):
    """Three epochs, each by a call of its own; the second is shown but not counted at first."""
    stopped(release, run, settings, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pc2_baseline.training.trainer.write_checkpoint", _killed)
        with pytest.raises(KeyboardInterrupt):
            train(release, run, settings)
    train(release, run, settings)
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def _killed(*_):
    raise KeyboardInterrupt


def figures(line):
    """What TensorBoard and the trackers show of an epoch."""
    return {
        **{f"dev/{name}".replace("@", ""): value for name, value in line["dev"].items()},
        **{f"figures/{name}": value for name, value in line["figures"].items()},
    }


def test_mlflow_has_one_run_with_every_epoch_once(tiny, tmp_path, small_settings, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="needs the extra track")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/mlruns")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    settings = settings_of(small_settings, "mlflow:pages")
    log = stopped_and_resumed(tiny, tmp_path / "run", settings)
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("pages").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "run"
    assert run.data.params["model.embed_dim"] == "32"
    for name in figures(log[-1]):
        history = client.get_metric_history(run.info.run_id, name)
        expected = {n: figures(line)[name] for n, line in enumerate(log) if name in figures(line)}
        assert len(history) == len(expected)
        assert {one.step: one.value for one in history} == pytest.approx(expected)
    pictures = {item.path for item in client.list_artifacts(run.info.run_id, "pictures")}
    assert pictures == {f"pictures/{name}.png" for name in ("00000", "00001", "00002", "curves")}


def test_trackio_has_one_run_with_every_epoch_once(tiny, tmp_path, small_settings, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    trackio = pytest.importorskip("trackio", reason="needs the extra track")
    monkeypatch.setattr("trackio.utils.TRACKIO_DIR", tmp_path / "trackio")
    log = stopped_and_resumed(tiny, tmp_path / "run", settings_of(small_settings, "trackio:pages"))
    (run,) = trackio.Api().runs("pages")
    storage = trackio.sqlite_storage.SQLiteStorage
    rows = storage.get_logs("pages", run.name)
    assert [row["step"] for row in rows] == [0, 1, 2]
    for row, line in zip(rows, log, strict=True):
        assert {name: row[name] for name in figures(line)} == pytest.approx(figures(line))
        assert row["division"]["_type"] == "trackio.image"
    assert storage.get_run_config("pages", run.name)["model"]["embed_dim"] == 32


def test_wandb_writes_one_run_offline(tiny, tmp_path, small_settings, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="needs the extra track")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    run = tmp_path / "run"
    log = stopped_and_resumed(tiny, run, settings_of(small_settings, "wandb:pages"))
    wandb.teardown()  # the files are whole when its own process has ended
    kept = json.loads((run / "track.json").read_text())
    files = sorted((tmp_path / "wandb").glob(f"offline-run-*/run-{kept['id']}.wandb"))
    assert len(files) == 3, "one a call, all of one run"
    rows = [row for file in files for row in history(file)]
    assert [int(row["_step"]) for row in rows] == [0, 1, 2]
    for row, line in zip(rows, log, strict=True):
        assert {name: row[name] for name in figures(line)} == pytest.approx(figures(line))
        assert row["curves/_type"] == "image-file"


def history(file):
    """Yield the rows of an offline run: records as LevelDB's log has them, in blocks of 32 KiB."""
    from wandb.proto import wandb_internal_pb2

    content, place, data = file.read_bytes(), 7, b""
    while place + 7 <= len(content):
        if (room := 2**15 - place % 2**15) < 7:
            place += room
            continue
        _, size, kind = struct.unpack("<IHB", content[place : place + 7])
        data += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in {1, 4}:  # whole, or the last part
            record = wandb_internal_pb2.Record.FromString(data)
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                yield {one.key or "/".join(one.nested_key): json.loads(one.value_json)
                       for one in items}  # fmt: skip
            data = b""


def test_a_run_that_is_started_over_is_another_run(tiny, tmp_path, small_settings, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="needs the extra track")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/mlruns")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    settings = settings_of(small_settings, "mlflow", **{"train.epochs": 0})
    train(tiny, tmp_path / "run", settings)
    train(tiny, tmp_path / "run", settings, force=True)
    experiment = mlflow.MlflowClient().get_experiment_by_name("noise-of-web")
    assert len(mlflow.MlflowClient().search_runs([experiment.experiment_id])) == 2


def test_the_option_is_the_setting_and_a_library_that_is_not_there_stops_at_once(
    tiny, tmp_path, small_settings, monkeypatch
):
    monkeypatch.setattr("pc2_baseline.training.trackers.find_spec", lambda _: None)
    for track in ("trackio", "wandb:a project", "mlflow"):
        with pytest.raises(ConfigError, match=r"pip install 'noise-of-web\[track\]"):
            train(tiny, tmp_path / "run", settings_of(small_settings, track))
    start = ("train", tiny, tmp_path / "run", "--config", "sgr", "--set", "data.tokenizer=jieba")
    failed(call(*start, "--track", "mlflow:a b"), "mlflow is not installed")
    failed(call(*start, "--track", "neptune"), "train.track")
    assert not (tmp_path / "run").exists()


def test_a_tracker_that_fails_costs_no_epoch(tiny, tmp_path, small_settings, monkeypatch, capsys):
    monkeypatch.setattr("pc2_baseline.runs.train.check_tracker", lambda _: None)
    monkeypatch.setattr("pc2_baseline.training.trackers.import_module", _unreachable)
    settings = settings_of(small_settings, "wandb")
    assert train(tiny, tmp_path / "run", settings).epochs == 3
    assert capsys.readouterr().err.count("wandb: left out from here on") == 1


def _unreachable(_):
    raise OSError("no network")
