"""One network of any kind: SGR* and SGR-C, what networks are made of, and several as one."""

import json
import shutil
import zipfile
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch

from leaderboard.metrics import recalls
from leaderboard.submission.archive import open_submission
from leaderboard.submission.gallery import read_gallery
from now_builder.errors import ConfigError, FormatError, TrainingError
from now_builder.formats.word_vectors import WIDTH
from pc2_baseline.config import ModelSettings, read_settings
from pc2_baseline.data.pairs import open_pairs
from pc2_baseline.methods.networks import make_network
from pc2_baseline.modules.losses import triplet_hardest, triplet_mean
from pc2_baseline.networks.attention import ImramSimilarity, ScanSimilarity
from pc2_baseline.runs.evaluate import evaluate
from pc2_baseline.runs.open_run import open_run, open_runs, similarity
from pc2_baseline.runs.predict import describe, predict
from pc2_baseline.runs.train import train
from pc2_baseline.training.method import Sizes

CPU = torch.device("cpu")
KINDS = [
    kind for kind in get_args(ModelSettings.model_fields["similarity"].annotation)
    if kind != "dual_encoder"  # which sees no features: networks/test_dual_encoder.py
]  # fmt: skip
NETWORKS = ("scan-t2i", "scan-i2t", "imram", "maxsim", "vsrn")
SMALL = [
    "model.embed_dim=32", "model.word_dim=24", "model.similarity_dim=16", "train.batch=8",
    "train.device=cpu", "train.lr=3e-3", "train.tensorboard=false", "train.pictures=false",
]  # fmt: skip


@pytest.mark.parametrize("preset", NETWORKS)
@pytest.mark.parametrize("triplet", [triplet_mean, triplet_hardest])
def test_losses_are_finite_for_a_batch_of_two_that_are_alike(preset, triplet):
    model = read_settings(preset, SMALL).model
    net = make_network(model, Sizes(2, 10, 28))
    regions, tokens = torch.ones(2, 36, 10), torch.ones(2, 4, dtype=torch.long)
    matrix = net.score(
        net.encode_images(regions), net.encode_captions(tokens, torch.tensor([4, 4]))
    )
    costs = triplet(matrix, torch.full((2,), 0.2))
    expected = 0.2 if triplet is triplet_mean else 0.4
    assert torch.allclose(costs, torch.full((2,), expected), atol=1e-4)
    costs.sum().backward()
    assert all(
        torch.isfinite(parameter.grad).all()
        for parameter in net.parameters()
        if parameter.grad is not None
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_method_of_two_peers_takes_any_network(on_tiny, kind):
    method, pairs = on_tiny("pc2-paper/demo", f"model.similarity={kind}")
    if kind == "reading":  # which has letters in place of tokens
        letters = np.random.default_rng(0).standard_normal((len(pairs), WIDTH), np.float32)
        pairs = replace(pairs, captions=list(letters))
    assert np.isfinite([*method.fit_epoch(pairs, 0).values()]).all()
    assert np.isfinite(method.similarity(pairs)).all()


def test_networks_have_the_temperatures_and_the_pooling_of_their_papers():
    def made(**fields):
        model = ModelSettings(embed_dim=8, word_dim=4, **fields)
        return make_network(model, Sizes(2, 10, 28)).similarity

    t2i, i2t, imram = (made(similarity=kind) for kind in ("scan_t2i", "scan_i2t", "imram"))
    assert isinstance(t2i, ScanSimilarity)
    assert isinstance(imram, ImramSimilarity)
    assert (t2i.direction, t2i.temperature, t2i.sharpness, t2i.pooling) == ("t2i", 9, 6, "lse")
    assert (i2t.direction, i2t.temperature, i2t.sharpness, i2t.pooling) == ("i2t", 4, 5, "lse")
    assert (imram.steps, imram.temperature) == (3, 9)
    own = made(similarity="scan_i2t", attention_temperature=7, lse_sharpness=2)
    assert (own.temperature, own.sharpness) == (7, 2)
    assert made(similarity="scan_t2i", cosine_pooling="mean").pooling == "mean"
    assert made(similarity="imram", matching_steps=2).steps == 2


def test_networks_that_compare_words_and_regions_alone_have_no_pooling_to_learn():
    for kind in KINDS:
        net = make_network(ModelSettings(similarity=kind, embed_dim=8), Sizes(2, 10, 28))
        names = {name.split(".")[1] for name, _ in net.named_parameters()}
        assert ("pool" in names) == (kind in {"sgr", "saf"}), kind


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


def test_sgr_c_needs_no_mismatched_pair(tiny, small, tmp_path, steps):
    """A list of pairs that were judged to match is enough; other methods ask for both kinds."""
    rows = matched_rows(tiny)
    lines = ["key,matched", *(f"train_{row:05d},true" for row in rows)]
    (tmp_path / "truth.csv").write_text("\n".join(lines))
    truth = f"data.truth={tmp_path / 'truth.csv'}"
    train(tiny, tmp_path / "run", read_settings("sgr-c", [*small, truth]))
    assert sorted({row for _, step in steps for row in step.pair_index}) == rows
    with pytest.raises(FormatError, match=r"15 training .*all matched.*expected both kinds"):
        train(tiny, tmp_path / "other", read_settings("sgr", [*small, truth]))


def test_sgr_c_goes_on_with_the_same_truth_alone(tiny, small, tmp_path):
    truth, run = tmp_path / "truth.csv", tmp_path / "run"
    truth.write_bytes((tiny / "truth.csv").read_bytes())
    settings = read_settings("sgr-c", [*small, f"data.truth={truth}"])
    train(tiny, run, settings)
    assert train(tiny, run, settings).fresh == 0
    lines = truth.read_text().splitlines()
    truth.write_text("\n".join([lines[0], *reversed(lines[1:])]))
    with pytest.raises(ConfigError, match=r"taught by another content of .*truth.csv"):
        train(tiny, run, settings)
    assert train(tiny, run, settings, force=True).fresh > 0


def test_sgr_c_takes_what_a_noise_file_knows(tiny, small, tmp_path):
    image_of = np.arange(24)
    image_of[[3, 5]] = [5, 3]
    np.save(tmp_path / "noise.npy", image_of)
    settings = read_settings("sgr-c", [*small, f"data.noise_file={tmp_path / 'noise.npy'}"])
    with open_pairs(tiny, "train", settings.data, CPU) as pairs:
        assert pairs.matched_rows().tolist() == [row for row in range(24) if row not in (3, 5)]


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
    with pytest.raises(ConfigError, match=r"matched_only: .* expected data.truth or data.noise"):
        train(tiny, tmp_path / "run", read_settings("sgr-c", small))
    assert not (tmp_path / "run").exists()


def test_sgr_c_with_too_few_matched_pairs_is_refused(tiny, small, tmp_path):
    release = shutil.copytree(tiny, tmp_path / "release")
    lines = ["key,matched", "train_00000,true", "train_00001,false"]
    (tmp_path / "truth.csv").write_text("\n".join(lines))
    settings = read_settings("sgr-c", [*small, f"data.truth={tmp_path / 'truth.csv'}"])
    with pytest.raises(TrainingError, match="1 training pairs match, expected at least 4"):
        train(release, tmp_path / "run", settings)


@pytest.fixture(scope="module")
def runs(tiny, tmp_path_factory):
    """SGR with two seeds, SAF, and SCAN with two."""
    folder = tmp_path_factory.mktemp("runs")
    small = [*SMALL, "train.warmup_epochs=1", "train.epochs=0"]
    for name, config, *more in (
        ("sgr", "sgr"), ("sgr-1", "sgr", "train.seed=1"), ("saf", "saf"),
        ("scan", "scan-t2i"), ("scan-1", "scan-t2i", "train.seed=1"),
    ):  # fmt: skip
        train(tiny, folder / name, read_settings(config, [*small, *more]))
    return folder


def sigmoid(logits):
    return 1 / (1 + np.exp(-logits.astype(np.float64)))


def test_several_runs_are_predicted_as_one_with_their_networks_counted(runs, tiny, tmp_path):
    out = tmp_path / "sgraf.zip"
    predict([runs / "sgr", runs / "saf"], "test", out)
    with open_submission(out) as submission:
        matrix = submission.read(read_gallery(tiny, "test", "jieba")).arrays
        meta = submission.meta
    own = [sigmoid(similarity(runs / name)) for name in ("sgr", "saf")]
    assert np.allclose(sigmoid(matrix), (own[0] + own[1]) / 2, atol=1e-6)
    assert (meta.training.ensemble_size, meta.training.seeds) == (2, (0,))
    assert meta.method.name == "SGR + SAF"
    assert np.array_equal(similarity([runs / "sgr", runs / "saf"]), matrix)
    found = evaluate([runs / "sgr", runs / "saf"], "test")
    assert found.scores["rsum"] == pytest.approx(recalls(matrix).rsum)


def test_two_seeds_are_one_method_twice(runs, tmp_path):
    predict([runs / "scan", runs / "scan-1"], "test", tmp_path / "twice.zip")
    predict([runs / "scan"], "test", tmp_path / "list.zip")
    predict(runs / "scan", "test", tmp_path / "one.zip")
    assert (tmp_path / "list.zip").read_bytes() == (tmp_path / "one.zip").read_bytes()
    twice, one = (
        json.loads(zipfile.ZipFile(tmp_path / f"{name}.zip").read("submission.json"))
        for name in ("twice", "one")
    )
    assert twice["method"]["name"] == one["method"]["name"] == "SCAN T2I"
    assert (one["training"]["ensemble_size"], one["training"]["seeds"]) == (1, [0])
    assert (twice["training"]["ensemble_size"], twice["training"]["seeds"]) == (2, [0, 1])
    size = one["compute"]["params_m"]
    assert twice["compute"]["params_m"] == pytest.approx(2 * size, abs=0.002)


def test_cosines_are_averaged_themselves(runs):
    own = []
    for name in ("scan", "scan-1"):
        run = open_run(runs / name)
        net = run.method.net.eval()
        with run.open("test") as pairs, torch.no_grad():
            batch = pairs.batch(np.arange(8))
            images = net.encode_images(batch.regions)
            own.append(net.score(images, net.encode_captions(batch.tokens, batch.lengths)).numpy())
    both = similarity([runs / "scan", runs / "scan-1"])
    mean = net.similarity.bound * np.tanh(both / 2)
    assert np.allclose(mean, (own[0] + own[1]) / 2, atol=1e-5)


def test_runs_of_different_data_are_not_averaged(runs, tiny, planted, tmp_path):
    small = [*SMALL, "train.warmup_epochs=1", "train.epochs=0"]
    out = tmp_path / "x.zip"
    with pytest.raises(ConfigError, match="a run is there twice"):
        predict([runs / "sgr", runs / "saf", runs / "sgr"], "test", out)
    with pytest.raises(ConfigError, match="no run"):
        predict([], "test", out)
    with pytest.raises(FormatError, match="no such file"):
        predict([runs / "sgr", tmp_path], "test", out)
    plan = planted.Plan(train=24, dev=8, test=8, topics=4, details=0, vocabulary=0, seed=5)
    release = planted.plant(tmp_path / "release", plan)
    train(release, tmp_path / "elsewhere", read_settings("sgr", small))
    with pytest.raises(ConfigError, match=r"elsewhere: a release of fingerprints .*, expected"):
        predict([runs / "sgr", tmp_path / "elsewhere"], "test", out)
    np.save(tmp_path / "noise.npy", np.roll(np.arange(24), 1))
    noisy = read_settings("sgr", [*small, f"data.noise_file={tmp_path / 'noise.npy'}"])
    train(tiny, tmp_path / "noisy", noisy)
    with pytest.raises(ConfigError, match=r"noisy: the noise file \w{12}, expected .* none"):
        predict([runs / "sgr", tmp_path / "noisy"], "test", out)
    assert not out.exists()
