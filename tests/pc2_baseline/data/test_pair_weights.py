"""Weights of another model: OSA's function, the files, and what learns by them."""

import json
import zipfile
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from now_builder.errors import ConfigError, FormatError
from pc2_baseline.config import RankSettings, read_settings
from pc2_baseline.data.pair_weights import osa_weights, read_weights
from pc2_baseline.data.pairs import open_pairs, open_split
from pc2_baseline.data.readers import make_reader
from pc2_baseline.methods import make_method
from pc2_baseline.modules.contrastive import complementary, info_nce
from pc2_baseline.modules.losses import triplet_mean
from pc2_baseline.runs.predict import predict
from pc2_baseline.runs.rank_pairs import rank_pairs
from pc2_baseline.runs.train import train
from pc2_baseline.training.method import Sizes
from tests.pc2_baseline.commands import call, failed

CPU = torch.device("cpu")
SMALL = [
    "data.tokenizer=jieba", "model.similarity=pooled", "model.embed_dim=16", "model.word_dim=16",
    "model.dropout=0", "model.word_dropout=0", "model.feature_dropout=0", "train.batch=24",
    "train.warmup_epochs=1", "train.epochs=1", "train.device=cpu", "train.pictures=false",
    "train.tensorboard=false",
]  # fmt: skip
METHODS = ("contrastive", "rcl", "triplet")
LOSSES = {
    "contrastive": lambda s, w: (w * info_nce(s, 0.05)).mean(),
    "rcl": lambda s, w: (w * 2 * complementary(s, 0.05)).mean(),
    "triplet": lambda s, w: (w * triplet_mean(s, torch.full((24,), 0.2))).sum(),
}


@pytest.fixture
def table(tiny, tmp_path):
    """A table of the training pairs, as rank-pairs writes it, in another order."""
    rows = pd.read_csv(tiny / "truth.csv", usecols=["key", "url"])
    rows = rows[rows.key.str.startswith("train")].iloc[::-1]
    rows["clean_prob"] = np.linspace(0, 1, 24)
    rows["cosine"] = np.linspace(0.3, -0.2, 24)
    return rows


def weights(release, path, *overrides):
    settings = read_settings("contrastive", [f'data.weights_from="{path}"', *SMALL, *overrides])
    reader = make_reader(release, settings.data)
    with open_split(reader, "train", CPU) as pairs:
        return read_weights(reader, pairs)


def written(rows, path):
    rows.to_csv(path, index=False)
    return path


def test_osa_by_hand():
    """A quarter at most, where s² is a half; nothing up to the mean, and nothing for the best."""
    found = osa_weights(np.array([0.4, 0.2, 0.4 / 2**0.5, 0.0, -0.3]))
    assert found == pytest.approx([0, 0.1875, 0.25, 0, 0])
    assert not osa_weights(np.array([-0.1, 0.0])).any()


@pytest.mark.parametrize("scale", [1, 100])
@pytest.mark.parametrize("shift", [0, -7])
def test_a_matrix_is_weighed_as_osa_does_whatever_its_scale(tiny, tmp_path, scale, shift):
    matrix = np.random.default_rng(0).normal(size=(24, 24))
    np.save(tmp_path / "m.npy", (scale * matrix + shift).astype(np.float32))
    own = [matrix[row][row] for row in range(24)]
    above = [max(value - matrix.mean(), 0) for value in own]
    slow = [(one / max(above)) ** 2 - (one / max(above)) ** 4 for one in above]
    assert weights(tiny, tmp_path / "m.npy") == pytest.approx(slow, abs=1e-4)


def test_a_matrix_weighs_the_pairs_that_a_noise_file_made(tiny, tmp_path):
    matrix = np.random.default_rng(0).normal(size=(24, 24))
    np.save(tmp_path / "m.npy", matrix)
    image_of = np.roll(np.arange(24), 5)
    np.save(tmp_path / "noise.npy", image_of)
    found = weights(tiny, tmp_path / "m.npy", f'data.noise_file="{tmp_path / "noise.npy"}"')
    own = np.array([matrix[image, row] for row, image in enumerate(image_of)])
    assert found == pytest.approx(osa_weights(own - matrix.mean()))


def test_a_table_is_joined_by_key(tiny, table, tmp_path):
    path = written(table, tmp_path / "pairs.csv")
    assert weights(tiny, path) == pytest.approx(np.linspace(1, 0, 24))
    found = weights(tiny, path, "data.weights_by=cosine")
    assert found == pytest.approx(osa_weights(np.linspace(-0.2, 0.3, 24)))


def test_mistakes_in_the_file_are_told(tiny, table, tmp_path):
    path, matrix = tmp_path / "pairs.csv", tmp_path / "m.npy"
    with pytest.raises(FormatError, match="no such"):
        weights(tiny, path)
    with pytest.raises(FormatError, match="no such"):
        weights(tiny, matrix)
    written(table.iloc[2:], path)
    with pytest.raises(FormatError, match="2 of 24 training pairs are not in it, such as train"):
        weights(tiny, path)
    written(table.assign(url="https://other.test/"), path)
    with pytest.raises(FormatError, match="of another crawl"):
        weights(tiny, path)
    written(table.drop(columns="cosine"), path)
    with pytest.raises(FormatError, match=r"missing columns \['cosine'\]"):
        weights(tiny, path, "data.weights_by=cosine")
    written(table.assign(clean_prob=0), path)
    with pytest.raises(FormatError, match="no training pair has a weight above 0"):
        weights(tiny, path)
    for value, problem in ((1.5, "expected 0 to 1"), (np.nan, "expected 0 to 1|not of numbers")):
        written(table.assign(clean_prob=value), path)
        with pytest.raises(FormatError, match=problem):
            weights(tiny, path)
    for wrong, problem in (
        (np.zeros((24, 8)), r"float64 \(24, 8\), expected floats \(24, 24\)"),
        (np.zeros((24, 24), dtype=int), "int64"),
        (np.full((24, 24), np.nan), "not finite"),
        (np.ones((24, 24)), "no training pair has a weight"),
    ):
        np.save(matrix, wrong)
        with pytest.raises(FormatError, match=problem):
            weights(tiny, matrix)


def test_a_table_beside_a_noise_file_is_refused(tiny, table, tmp_path):
    path = written(table, tmp_path / "pairs.csv")
    np.save(tmp_path / "noise.npy", np.roll(np.arange(24), 5))
    with pytest.raises(ConfigError, match=r"a table is of the release's own pairs.*expected a mat"):
        weights(tiny, path, f'data.noise_file="{tmp_path / "noise.npy"}"')
    np.save(tmp_path / "noise.npy", np.arange(24))
    assert len(weights(tiny, path, f'data.noise_file="{tmp_path / "noise.npy"}"')) == 24


@pytest.fixture
def made(tiny):
    """A method of a preset on the tiny release, and its pairs."""

    def make(preset):
        config = {"triplet": "sgr"}.get(preset, preset)
        settings = read_settings(config, SMALL)
        with open_pairs(tiny, "train", settings.data, CPU) as pairs:
            return make_method(settings, Sizes(len(pairs), pairs.features, 28), CPU), pairs

    return make


@pytest.mark.parametrize("name", METHODS)
def test_a_pairs_loss_is_multiplied_by_its_weight(made, name):
    method, pairs = made(name)
    own = np.random.default_rng(0).random(24)
    with torch.no_grad():
        batch = pairs.batch(np.arange(24))
        expected = LOSSES[name](method.net.train().score_batch(batch), torch.from_numpy(own))
    found = method.fit_epoch(replace(pairs, weights=own), 0)
    assert found["loss"] == pytest.approx(expected.item(), rel=1e-4)


@pytest.mark.parametrize("name", METHODS)
def test_without_weights_all_weigh_one_to_the_bit(made, name):
    states = []
    for own in (None, np.ones(24)):
        method, pairs = made(name)
        method.fit_epoch(replace(pairs, weights=own), 0)
        states.append(method.state_dict()["networks"])
    assert all(value.equal(states[1][key]) for key, value in states[0].items())


def test_a_run_tells_its_weights_and_goes_on_with_no_others(tiny, table, tmp_path):
    path, run = written(table, tmp_path / "pairs.csv"), tmp_path / "run"
    small = [part for value in SMALL for part in ("--set", value)]
    command = ("train", tiny, run, "--config", "osa", "--weights-from", path, *small)
    done = call(*command)
    assert done.returncode == 0, done.stderr
    assert call(*command).returncode == 0, "done already"
    predict(run, "test", tmp_path / "x.zip")
    told = json.loads(zipfile.ZipFile(tmp_path / "x.zip").read("submission.json"))
    assert told["method"]["name"].endswith("(pairs weighed by another model)")
    written(table.assign(cosine=table.cosine.to_numpy()[::-1]), path)
    failed(call(*command), "a run with another content of .*pairs.csv; give another folder")


def test_osa_without_a_file_and_methods_without_weights_are_refused(tiny, table, tmp_path):
    path, run = written(table, tmp_path / "pairs.csv"), tmp_path / "run"
    with pytest.raises(ConfigError, match="no cosines, expected --weights-from FILE"):
        train(tiny, run, read_settings("osa", SMALL))
    assert not run.exists()
    done = call("train", tiny, run, "--config", "ncr", "--weights-from", path)
    failed(done, "method ncr weighs pairs by itself, expected contrastive, rcl or triplet")
    assert not run.exists()


def test_osa_learns_by_what_rank_pairs_says(easy, tmp_path):
    """160 pairs, 40 % of them shuffled: most of the weight is on those that match."""
    path = tmp_path / "pairs.csv"
    rank_pairs(easy, path, RankSettings())
    truth = pd.read_csv(easy / "truth.csv")
    matched = truth[truth.key.str.startswith("train")].matched.to_numpy()
    found = weights(easy, path, "data.weights_by=cosine")
    assert found[matched].sum() > 0.9 * found.sum()
    overrides = [
        f'data.weights_from="{path}"', "data.tokenizer=jieba", "train.device=cpu",
        "train.pictures=false", "train.tensorboard=false",
    ]  # fmt: skip
    done = train(easy, tmp_path / "run", read_settings("osa", overrides, "demo"))
    assert done.best_rsum > 4 * 2 * 100 * (1 + 5 + 10) / 40
