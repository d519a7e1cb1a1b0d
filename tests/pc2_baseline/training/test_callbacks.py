"""What a user watches a training by: scalars, pictures, and the division against a truth."""

import json
import time

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import load_file
from sklearn.metrics import precision_score, recall_score, roc_auc_score

from now_builder.errors import FormatError
from pc2_baseline.analysis.pictures import draw_division
from pc2_baseline.analysis.truth import Truth, read_truth
from pc2_baseline.config import read_settings
from pc2_baseline.methods.pc2.paper import Pc2
from pc2_baseline.runs.train import judge_division, train
from pc2_baseline.training.checkpoint import read_state, read_tensors
from pc2_baseline.training.tensorboard import open_writer

WATCHED = ["train.tensorboard=true", "train.pictures=true"]


@pytest.fixture(scope="module")
def settings(tiny, small_settings):
    """A run that is watched and judged."""
    sets = ["train.warmup_epochs=1", "train.lr_drop_epoch=1", f"data.truth={tiny / 'truth.csv'}"]
    return read_settings("pc2-paper", [*small_settings, *sets, *WATCHED], on="demo")


@pytest.fixture(scope="module")
def run(tiny, tmp_path_factory, settings):
    """A run that was stopped and went on twice."""
    run = tmp_path_factory.mktemp("watched") / "run"
    fit = Pc2.fit_epoch
    for stop in (1, 2):

        def broken(self, train, epoch, stop=stop):
            if epoch == stop:
                raise KeyboardInterrupt
            return fit(self, train, epoch)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Pc2, "fit_epoch", broken)
            with pytest.raises(KeyboardInterrupt):
                train(tiny, run, settings)
    train(tiny, run, settings)
    return run


def scalars(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    return {
        tag: {event.step: event.value for event in events.Scalars(tag)}
        for tag in events.Tags()["scalars"]
        if len({event.step for event in events.Scalars(tag)}) == len(events.Scalars(tag))
    }


def test_tensorboard_has_every_epoch_once_with_what_the_log_says(run):
    found = scalars(run)
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert len(list((run / "tensorboard").iterdir())) == 3, "one file a call"
    for line in log:
        epoch = line["epoch"]
        for name, value in line["dev"].items():
            assert found[f"dev/{name.replace('@', '')}"][epoch] == pytest.approx(value)
        for name, value in line["figures"].items():
            assert found[f"figures/{name}"][epoch] == pytest.approx(value)
        assert found["train/pairs_per_second"][epoch] == pytest.approx(24 / line["seconds"])
    assert list(found["dev/rsum"]) == [0, 1, 2]
    assert list(found["figures/loss_noisy_a"]) == [1, 2]


def test_no_two_files_are_of_one_second(tmp_path):
    """TensorBoard reads them by name, so that those of one second may change places."""
    for first in range(3):
        open_writer(tmp_path, first).close()
    assert len({path.name.split(".")[3] for path in tmp_path.iterdir()}) == 3


def test_an_epoch_that_was_written_but_never_counted_stands_once(
    tiny, tmp_path, small_settings, monkeypatch
):
    quick = ["train.warmup_epochs=1", "train.epochs=1", "train.tensorboard=true"]
    settings = read_settings("pc2-paper", [*small_settings, *quick], on="demo")

    def killed(*_):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pc2_baseline.training.trainer.write_checkpoint", killed)
        with pytest.raises(KeyboardInterrupt):
            train(tiny, tmp_path / "run", settings)
    assert list(scalars(tmp_path / "run")["dev/rsum"]) == [0]
    train(tiny, tmp_path / "run", settings)
    assert list(scalars(tmp_path / "run")["dev/rsum"]) == [0, 1]


def test_each_epochs_figures_judge_the_division_by_the_truth(run, tiny):
    truth = pd.read_csv(tiny / "truth.csv")
    matched = truth.matched[truth.key.str.startswith("train_")].to_numpy()
    state = read_state(run / "last")
    for record in state.history:
        beliefs = load_file(run / "divisions" / f"{record.epoch:05d}.safetensors")["clean_prob"]
        clean = beliefs > 0.5
        assert record.figures["auroc"] == pytest.approx(roc_auc_score(matched, beliefs))
        assert record.figures["clean_recall"] == pytest.approx(recall_score(matched, clean))
        assert record.figures.get("clean_precision", 0.0) == pytest.approx(
            precision_score(matched, clean, zero_division=0.0)
        )


@pytest.mark.parametrize(("threshold", "precision"), [(0.5, 2 / 3), (0.7, 1.0)])
def test_a_pair_counts_as_clean_above_the_threshold_of_the_method(threshold, precision):
    truth = Truth(np.array([False, False, True, True]), np.ones(4, dtype=bool))
    outputs = {"divisions": {"clean_prob": torch.tensor([0.3, 0.6, 0.8, 0.9])}}
    found = judge_division(truth, threshold, outputs)["clean_precision"]
    assert found == pytest.approx(precision)
    settings = read_settings("pc2-paper", [f"method.division_threshold={threshold}"])
    assert settings.division_threshold == threshold
    assert read_settings("ncr", []).division_threshold == 0.5


def test_watching_and_judging_change_no_number(run, tiny, tmp_path, settings):
    blind = settings.model_copy(
        update={
            "data": settings.data.model_copy(update={"truth": None}),
            "train": settings.train.model_copy(update={"tensorboard": False, "pictures": False}),
        }
    )
    train(tiny, tmp_path / "blind", blind)
    for part in ("last", "best"):
        first, second = read_tensors(run / part), read_tensors(tmp_path / "blind" / part)
        for group, tensors in first.items():
            assert all(torch.equal(value, second[group][name]) for name, value in tensors.items())
    names = {path.name for path in (tmp_path / "blind").iterdir()}
    assert not names & {"tensorboard", "pictures", "curves.png"}


def test_every_epoch_has_a_picture(run):
    names = sorted(path.name for path in (run / "pictures").iterdir())
    assert names == [f"{epoch:05d}.png" for epoch in range(3)]
    for path in (*(run / "pictures").iterdir(), run / "curves.png"):
        assert path.read_bytes().startswith(b"\x89PNG")


def test_a_truth_that_cannot_be_used_stops_before_the_run_is_there(tiny, tmp_path, small_settings):
    (tmp_path / "truth.csv").write_text("key,matched\ntrain_00000,true\n")
    settings = read_settings(
        "pc2-paper", [*small_settings, f"data.truth={tmp_path / 'truth.csv'}"], on="demo"
    )
    with pytest.raises(FormatError, match="1 training pairs known"):
        train(tiny, tmp_path / "run", settings)
    assert not (tmp_path / "run").exists()


def test_a_verdict_is_on_the_pair_that_has_its_key_and_its_url(tmp_path):
    path, names = tmp_path / "truth.csv", {"key": ["a", "b", "c", "d"], "url": ["/a", "/b", "", ""]}
    path.write_text("key,url,matched\na,/elsewhere,false\na,/a,true\n,/b,true\n c,,false\n")
    truth = read_truth(path, names)
    assert truth.known.tolist() == [True, True, True, False]
    assert truth.matched.tolist() == [True, True, False, False]
    path.write_text("key,url,matched\na,/elsewhere,false\nb,/other,true\n")
    with pytest.raises(FormatError, match="none of its 2 lines names a key and url of the"):
        read_truth(path, names)


def test_what_fails_to_be_shown_is_told_once_and_stops_nothing(
    tiny, tmp_path, small_settings, capsys
):
    quick = ["train.warmup_epochs=1", "train.epochs=1"]
    settings = read_settings("pc2-paper", [*small_settings, *quick, *WATCHED], on="demo")
    run = tmp_path / "run"
    run.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pc2_baseline.analysis.pictures.Figure", None)
        patch.setattr("pc2_baseline.runs.train.TENSORBOARD", "run.toml")
        assert train(tiny, run, settings).epochs == 2
    told = [line for line in capsys.readouterr().err.splitlines() if "left out" in line]
    assert len(told) == 2, told
    assert not (run / "curves.png").exists()


def division(pairs, seed=0):
    rng = np.random.default_rng(seed)
    losses = np.concatenate([rng.normal(0.1, 0.02, pairs), rng.normal(0.5, 0.1, pairs)])
    clean_prob = (losses < 0.3).astype(np.float64)
    own = {
        "loss": losses,
        "clean_prob": clean_prob,
        "oscillation": rng.exponential(0.01, 2 * pairs),
    }
    return {
        "clean_prob": clean_prob,
        **{f"{peer}.{name}": value for peer in "ab" for name, value in own.items()},
    }


@pytest.mark.parametrize(
    ("left_out", "missing"),
    [({"oscillation"}, "Oscillation"), ({"oscillation", "loss"}, "Loss of the pair")],
)
def test_a_division_that_peers_share_has_one_row_of_what_there_is(tmp_path, left_out, missing):
    shared = {
        name.removeprefix("a."): values
        for name, values in division(40).items()
        if name.startswith("a.") and name.removeprefix("a.") not in left_out
    }
    draw_division(tmp_path / "a.svg", shared, None, "Epoch 1")
    svg = (tmp_path / "a.svg").read_text()
    assert "<!-- Clean probability -->" in svg
    assert svg.count("<!-- Pairs -->") == 1
    assert missing not in svg


def test_losses_are_drawn_on_the_scale_of_their_mixture(tmp_path):
    settings = read_settings("pc2-paper", ["method.division_scale=log"])
    assert (settings.division_scale, read_settings("ncr", []).division_scale) == ("log", "linear")
    for scale, expected in [
        ("linear", "Loss of the pair"),
        ("log", "log(0.1 + loss / mean loss), from the lowest"),
    ]:
        draw_division(tmp_path / "a.svg", division(40), None, "Epoch 1", scale=scale)
        assert f"<!-- {expected} -->" in (tmp_path / "a.svg").read_text()


@pytest.mark.parametrize("kind", ["plain", "constant", "certain", "all known", "some known"])
def test_any_division_can_be_drawn(tmp_path, kind):
    statistics, truth = division(40), None
    if kind == "constant":
        statistics["a.oscillation"] = np.zeros(80)
    if kind == "certain":
        statistics["a.clean_prob"] = np.ones(80)
    if "known" in kind:
        known = np.ones(80, dtype=bool)
        known[::3] = kind == "all known"
        truth = Truth(known & (np.arange(80) < 40), known)
    before = np.random.get_state()[1].copy()  # noqa: NPY002 - the global one must not move
    draw_division(tmp_path / "a.svg", statistics, truth, "Epoch 1")
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002
    svg = (tmp_path / "a.svg").read_text()
    if kind == "some known":
        draw_division(tmp_path / "b.svg", statistics, truth, "Epoch 1")
        assert (tmp_path / "b.svg").read_text() == svg, "the same picture, the same bytes"
    expected = {"all known": "mismatched", "some known": "not known"}.get(kind, "all pairs")
    assert f"<!-- {expected} -->" in svg


def test_a_torn_event_file_costs_no_other_epoch(tmp_path):
    folder = tmp_path / "tensorboard"
    for first, torn in ((0, 5), (2, 0)):
        board = open_writer(folder, first)
        for epoch in (first, first + 1, first + 2):
            board.add_scalar("dev/rsum", 10.0 * first + epoch, epoch)
        board.close()
        time.sleep(1.1)  # files are read in the order of their names, which tell the second
        if torn:
            file = next(folder.iterdir())
            file.write_bytes(file.read_bytes()[:-torn])
    assert scalars(tmp_path)["dev/rsum"] == {0: 0.0, 1: 1.0, 2: 22.0, 3: 23.0, 4: 24.0}
