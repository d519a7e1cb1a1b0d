"""One network of any kind: SCAN, IMRAM and VSRN learn, resume, and are averaged with others."""

import json
import tomllib
import zipfile

import numpy as np
import pytest
import torch

from leaderboard.metrics import recalls
from leaderboard.submission.archive import open_submission
from leaderboard.submission.gallery import read_gallery
from now_builder.errors import ConfigError, FormatError
from pc2_baseline.config import ModelSettings, read_settings, with_method
from pc2_baseline.data.pairs import open_pairs, read_vocabulary
from pc2_baseline.methods import make_method
from pc2_baseline.methods.networks import KINDS, make_network
from pc2_baseline.modules.losses import triplet_hardest, triplet_mean
from pc2_baseline.networks.attention import ImramSimilarity, ScanSimilarity
from pc2_baseline.runs.evaluate import evaluate
from pc2_baseline.runs.open_run import open_run, similarity
from pc2_baseline.runs.predict import predict
from pc2_baseline.runs.train import train
from pc2_baseline.training.method import Sizes
from pc2_baseline.training.run_folder import read_run

CPU = torch.device("cpu")
CHANCE = 2 * 100 * (1 + 5 + 10) / 40
"""rSum of a random matrix over 40 pairs; knowing the topic gives about 440."""

NETWORKS = {"scan-t2i": "scan_t2i", "scan-i2t": "scan_i2t", "imram": "imram", "vsrn": "vsrn"}
"""Network of each preset."""

SMALL = [
    "model.embed_dim=32", "model.word_dim=24", "model.similarity_dim=16", "train.batch=8",
    "train.device=cpu", "train.lr=3e-3", "train.tensorboard=false", "train.pictures=false",
]  # fmt: skip


@pytest.mark.parametrize("preset", NETWORKS)
def test_it_learns_although_many_captions_are_shuffled(easy, preset):
    settings = read_settings(
        f"{preset}-demo",
        [*SMALL, "data.tokenizer=jieba", "train.batch=16", "train.lr=1e-2", "model.dropout=0",
         "model.feature_dropout=0", "train.weight_decay=0", "train.warmup_epochs=3"],
    )  # fmt: skip
    with (
        open_pairs(easy, "train", settings.data, CPU) as pairs,
        open_pairs(easy, "dev", settings.data, CPU) as dev,
    ):
        words = read_vocabulary(easy, settings.data).idx
        method = make_method(settings, Sizes(len(pairs), pairs.features, words), CPU)
        for epoch in range(3):
            method.fit_epoch(pairs, epoch)
        assert recalls(method.similarity(dev), dev.image_of).rsum > 3 * CHANCE


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
def test_a_method_of_two_peers_takes_any_network(tiny, small_settings, kind):
    settings = read_settings("pc2-paper", [*small_settings, f"model.similarity={kind}"], on="demo")
    with open_pairs(tiny, "train", settings.data, CPU) as pairs:
        method = make_method(settings, Sizes(len(pairs), pairs.features, 28), CPU)
        figures = method.fit_epoch(pairs, 0)
        matrix = method.similarity(pairs)
    assert np.isfinite([*figures.values()]).all()
    assert np.isfinite(matrix).all()


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


@pytest.mark.parametrize(
    ("preset", "lr", "epochs", "full_rate"),
    [("scan-t2i", 2e-4, 40, 25), ("scan-i2t", 2e-4, 40, 25), ("imram", 2e-4, 40, 25),
     ("scan-t2i/f30k", 2e-4, 30, 15), ("scan-i2t/f30k", 2e-4, 30, 15),
     ("imram/f30k", 2e-4, 30, 15), ("scan-t2i/coco", 5e-4, 20, 10),
     ("scan-i2t/coco", 5e-4, 20, 10), ("imram/coco", 5e-4, 20, 10),
     ("vsrn", 2e-4, 40, 25), ("vsrn/coco", 2e-4, 30, 15), ("vsrn/f30k", 2e-4, 30, 10)],
)  # fmt: skip
def test_presets_have_the_schedules_of_their_papers(preset, lr, epochs, full_rate):
    config, _, on = preset.partition("/")
    settings = read_settings(config, [], on or None)
    found = settings.train
    assert (found.lr, found.total_epochs, found.batch, found.clip) == (lr, epochs, 128, 2.0)
    assert found.warmup_epochs + found.lr_drop_epoch == full_rate
    assert settings.model.embed_dim == (2048 if "vsrn" in preset else 1024)
    assert settings.model.similarity == NETWORKS[config]
    assert (settings.method.name, settings.method.margin, settings.model.dropout) == (
        "triplet", 0.2, 0.0,
    )  # fmt: skip


def test_what_was_called_sgr_is_read_as_triplet_and_a_run_of_it_goes_on(tiny, tmp_path):
    small = [*SMALL, "train.warmup_epochs=1", "train.epochs=1"]
    new = read_settings("sgr", small)
    pc2 = read_settings("pc2-paper", [], on="demo").model_dump()
    assert read_settings("sgr", [*small, "method.name=sgr"]) == new
    assert new.method.name == "triplet"
    assert with_method(pc2, "triplet")["method"] == {
        "name": "triplet", "margin": 0.2, "mean_epochs": 12,
    }  # fmt: skip
    train(tiny, tmp_path / "run", new)
    path = tmp_path / "run" / "run.toml"
    path.write_text(path.read_text().replace('name = "triplet"', 'name = "sgr"'))
    assert tomllib.loads(path.read_text())["settings"]["method"]["name"] == "sgr"
    assert read_run(tmp_path / "run").settings == new
    assert train(tiny, tmp_path / "run", new).fresh == 0
    assert similarity(tmp_path / "run").shape == (8, 8)


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
        (matrix,) = submission.read(read_gallery(tiny, "test", "jieba")).matrices
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
