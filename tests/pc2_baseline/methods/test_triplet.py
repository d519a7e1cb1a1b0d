"""One network of any kind: SGR* and SGR-C, what networks are made of, and several as one."""

import zipfile
from dataclasses import replace

import numpy as np
import pytest

from leaderboard.metrics import recalls
from leaderboard.submission.archive import open_submission
from leaderboard.submission.gallery import read_gallery
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.word_vectors import ROWS, WIDTH
from pc2_baseline.config import NETWORKS as ALL
from pc2_baseline.config import read_settings
from pc2_baseline.methods.one_network import make_network
from pc2_baseline.networks.attention import ImramSimilarity, ScanSimilarity
from pc2_baseline.runs.evaluate import evaluate
from pc2_baseline.runs.open_run import open_runs, similarity
from pc2_baseline.runs.predict import describe, predict
from pc2_baseline.runs.train import train
from pc2_baseline.training.method import Sizes

KINDS = [kind for kind in ALL if kind != "dual_encoder"]
"""All but the one that sees no features: networks/test_dual_encoder.py."""
SMALL = [
    "model.embed_dim=32", "model.word_dim=24", "model.similarity_dim=16", "train.batch=8",
    "train.device=cpu", "train.lr=3e-3", "train.tensorboard=false", "train.pictures=false",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_method_of_two_peers_takes_any_network(on_tiny, kind):
    method, pairs = on_tiny("pc2-paper/demo", f"model.similarity={kind}")
    if kind == "reading":  # which has sketches in place of tokens
        sketches = np.random.default_rng(0).standard_normal((len(pairs), ROWS * WIDTH), np.float32)
        pairs = replace(pairs, captions=list(sketches))
    assert np.isfinite([*method.fit_epoch(pairs, 0).values()]).all()
    assert np.isfinite(method.similarity(pairs)).all()


def test_networks_have_the_temperatures_of_their_papers():
    def made(kind, *sets):
        sets = [f"model.similarity={kind}", "model.embed_dim=8", "model.word_dim=4", *sets]
        return make_network(read_settings("sgr", sets).model, Sizes(2, 10, 28)).similarity

    t2i, i2t, imram = (made(kind) for kind in ("scan_t2i", "scan_i2t", "imram"))
    assert isinstance(t2i, ScanSimilarity)
    assert isinstance(imram, ImramSimilarity)
    assert (t2i.direction, t2i.temperature, t2i.sharpness) == ("t2i", 9, 6)
    assert (i2t.direction, i2t.temperature, i2t.sharpness) == ("i2t", 4, 5)
    assert (imram.steps, imram.temperature) == (3, 9)
    own = made("scan_i2t", "model.attention_temperature=7", "model.lse_sharpness=2")
    assert (own.temperature, own.sharpness) == (7, 2)


def test_a_network_has_settings_of_its_own_and_refuses_others():
    """Where a preset's network is changed, the settings that both have are kept."""
    pooled = read_settings("sgr", ["model.similarity=pooled", "model.image_pooling=gpo"]).model
    assert (pooled.image_pooling, pooled.embed_dim) == ("gpo", 1024)
    assert not hasattr(pooled, "graph_layers")
    for sets, problem in (
        (["model.similarity=pooled", "model.graph_layers=2"], "graph_layers: no such field"),
        (["model.image_pooling=gpo"], r"model\.image_pooling: no such field"),
        (["model.similarity=poled"], r"similarity to be one of .* .did you mean pooled"),
    ):
        with pytest.raises(ConfigError, match=problem):
            read_settings("sgr", sets)


def matched_rows(release):
    lines = (release / "truth.csv").read_text().splitlines()
    cells = [line.split(",") for line in lines if ",train_" in line]
    return [int(key[6:]) for _, key, right, *_ in cells if right == "True"]


def test_negatives_never_soften():
    with pytest.raises(ConfigError, match="mean_epochs is 2, expected 0 with warm_up"):
        read_settings("sgr-hardest", ["method.mean_epochs=2"])


def test_sgr_c_is_trained_on_the_matched_pairs_alone_and_says_so(
    tiny, small, tmp_path, steps, capsys
):
    truth = f"data.truth={tiny / 'truth.csv'}"
    train(tiny, tmp_path / "run", read_settings("sgr-c", [*small, truth]))
    matched = matched_rows(tiny)
    for epoch in range(4):
        rows = np.concatenate([step.pair_index for _, step in steps if step.epoch == epoch])
        assert sorted(rows) == sorted(matched)
    said = " ".join(capsys.readouterr().err.split())
    assert "trains on the 15 of 24 pairs that the truth calls matched" in said
    predict(tmp_path / "run", "test", tmp_path / "x.zip")
    assert b"SGR-C" in zipfile.ZipFile(tmp_path / "x.zip").read("submission.json")
    titled = describe(open_runs(tmp_path / "run"), "test", "mine")
    assert titled.method.name == "mine (trained on matched pairs alone)", "in a table too"


def test_sgr_c_leaves_out_what_a_noise_file_moved_though_the_page_matches(
    tiny, small, tmp_path, steps
):
    matched = matched_rows(tiny)
    one, other, *kept = matched
    image_of = np.arange(24)
    image_of[[one, other]] = [other, one]
    np.save(tmp_path / "noise.npy", image_of)
    both = [f"data.noise_file={tmp_path / 'noise.npy'}", f"data.truth={tiny / 'truth.csv'}"]
    train(tiny, tmp_path / "run", read_settings("sgr-c", [*small, *both]))
    assert sorted({row for _, step in steps for row in step.pair_index}) == sorted(kept)


def test_sgr_c_without_a_truth_is_refused_before_anything_is_written(tiny, small, tmp_path):
    with pytest.raises(ConfigError, match=r"matched_only: .* set data.truth or data.noise"):
        train(tiny, tmp_path / "run", read_settings("sgr-c", small))
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def runs(tiny, tmp_path_factory):
    """SGR and SAF."""
    folder = tmp_path_factory.mktemp("runs")
    small = [*SMALL, "train.warmup_epochs=1", "train.epochs=0"]
    for name in ("sgr", "saf"):
        train(tiny, folder / name, read_settings(name, small))
    return folder


def sigmoid(logits):
    return 1 / (1 + np.exp(-logits.astype(np.float64)))


def test_several_runs_are_predicted_as_one_with_their_networks_counted(runs, tiny, tmp_path):
    out = tmp_path / "sgraf.zip"
    predict([runs / "sgr", runs / "saf"], "test", out)
    with open_submission(out) as submission:
        matrix = submission.read(read_gallery(tiny, "test", "jieba"))
        meta = submission.meta
    own = [sigmoid(similarity(runs / name)) for name in ("sgr", "saf")]
    assert np.allclose(sigmoid(matrix), (own[0] + own[1]) / 2, atol=1e-6)
    assert (meta.training.ensemble_size, meta.training.seeds) == (2, (0,))
    assert meta.method.name == "SGR + SAF"
    assert np.array_equal(similarity([runs / "sgr", runs / "saf"]), matrix)
    found = evaluate([runs / "sgr", runs / "saf"], "test")
    assert found.scores["rsum"] == pytest.approx(recalls(matrix).rsum)


def test_runs_of_different_data_are_not_averaged(runs, tiny, planted, tmp_path):
    small = [*SMALL, "train.warmup_epochs=1", "train.epochs=0"]
    out = tmp_path / "x.zip"
    with pytest.raises(ConfigError, match="no run"):
        predict([], "test", out)
    with pytest.raises(FormatError, match="file not found"):
        predict([runs / "sgr", tmp_path], "test", out)
    plan = planted.Plan(train=24, dev=8, test=8, topics=4, details=0, vocabulary=0, seed=5)
    release = planted.plant(tmp_path / "release", plan)
    train(release, tmp_path / "elsewhere", read_settings("sgr", small))
    with pytest.raises(ConfigError, match=r"elsewhere: a release of fingerprints .*, but .* has"):
        predict([runs / "sgr", tmp_path / "elsewhere"], "test", out)
    np.save(tmp_path / "noise.npy", np.roll(np.arange(24), 1))
    noisy = read_settings("sgr", [*small, f"data.noise_file={tmp_path / 'noise.npy'}"])
    train(tiny, tmp_path / "noisy", noisy)
    with pytest.raises(ConfigError, match=r"noisy: the noise file \w{12}, but .* has none"):
        predict([runs / "sgr", tmp_path / "noisy"], "test", out)
    assert not out.exists()
