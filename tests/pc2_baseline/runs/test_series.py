"""Several seeds of one training."""

import json
from statistics import stdev

import pytest

from now_builder.errors import ConfigError
from pc2_baseline.config import read_settings
from pc2_baseline.runs.train import in_words, read_seeds, train_seeds
from pc2_baseline.training.checkpoint import read_state
from pc2_baseline.training.run_folder import read_run


@pytest.fixture
def settings(small_settings):
    quick = [*small_settings, "train.warmup_epochs=1", "train.epochs=0"]
    return read_settings("pc2-paper", quick, on="demo")


def test_seeds_are_ordinary_runs_with_a_mean_and_a_spread(tiny, tmp_path, settings, monkeypatch):
    series = train_seeds(tiny, tmp_path / "three", settings, [0, 3])
    rsums = []
    for seed in (0, 3):
        run = tmp_path / "three" / f"seed-{seed}"
        assert read_run(run).settings.train.seed == seed
        rsums.append(read_state(run / "best").best_rsum)
    assert series["dev"]["rsum"]["mean"] == pytest.approx(sum(rsums) / 2)
    assert series["dev"]["rsum"]["sd"] == pytest.approx(stdev(rsums))
    assert series["dev"]["rsum"]["values"] == rsums
    assert in_words(series).startswith("2 seeds, dev rsum ")
    assert json.loads((tmp_path / "three" / "seeds.json").read_text()) == series
    monkeypatch.setattr("pc2_baseline.runs.train.open_split", lambda *_: pytest.fail("opened"))
    again = train_seeds(tiny, tmp_path / "three", settings, [0, 3])
    assert [trained["fresh"] for trained in again["runs"]] == [0, 0]
    assert again["dev"] == series["dev"]


def test_seeds_that_are_none_are_refused():
    for text in ("", "a", "0,,1", "-1", "0,0", "1.5"):
        with pytest.raises(ConfigError, match="--seeds"):
            read_seeds(text)


def test_a_seed_among_the_settings_is_refused_where_seeds_are_given():
    assert read_seeds("0,1", ["train.lr=1"]) == [0, 1]
    with pytest.raises(ConfigError, match=r"train\.seed is set, but --seeds 0,1"):
        read_seeds("0,1", ["train.lr=1", " train.seed = 7"])
