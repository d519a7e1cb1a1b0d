"""What a user watches a training by: scalars, pictures, and the division against a truth."""

import json

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file
from sklearn.metrics import precision_score, recall_score, roc_auc_score

from now_builder.errors import FormatError
from pc2_baseline.analysis.pictures import draw_division
from pc2_baseline.analysis.truth import Truth, read_truth
from pc2_baseline.config import read_settings
from pc2_baseline.methods.pc2.paper import Pc2
from pc2_baseline.runs.train import train
from pc2_baseline.training.checkpoint import read_state

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
    disabled = [line for line in capsys.readouterr().err.splitlines() if "disabled (" in line]
    assert len(disabled) == 2, disabled
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


@pytest.mark.parametrize("kind", ["constant", "some known"])
def test_any_division_can_be_drawn(tmp_path, kind):
    statistics, truth = division(40), None
    if kind == "constant":
        statistics["a.oscillation"] = np.zeros(80)
    else:
        known = np.arange(80) % 3 > 0
        truth = Truth(known & (np.arange(80) < 40), known)
    before = np.random.get_state()[1].copy()  # noqa: NPY002 - the global one must not move
    draw_division(tmp_path / "a.svg", statistics, truth, "Epoch 1")
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002
    svg = (tmp_path / "a.svg").read_text()
    if kind == "some known":
        draw_division(tmp_path / "b.svg", statistics, truth, "Epoch 1")
        assert (tmp_path / "b.svg").read_text() == svg, "the same picture, the same bytes"
    expected = "not known" if kind == "some known" else "all pairs"
    assert f"<!-- {expected} -->" in svg
