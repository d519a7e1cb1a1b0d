"""SGR: every pair is taken as matched; SGR* and SGR-C by their names."""

import shutil
import zipfile

import numpy as np
import pytest
import torch

from now_builder.errors import ConfigError, TrainingError
from pc2_baseline.config import read_settings
from pc2_baseline.data.pairs import open_pairs
from pc2_baseline.methods import triplet
from pc2_baseline.runs.open_run import open_runs
from pc2_baseline.runs.predict import describe, predict
from pc2_baseline.runs.train import train
from pc2_baseline.training.method import Sizes

CPU = torch.device("cpu")
CHANCE = 2 * 100 * (1 + 5 + 10) / 40
"""rSum of a random matrix over 40 pairs; knowing the topic gives about 440."""


def test_sgr_learns(easy, tmp_path):
    settings = read_settings(
        "sgr",
        ["model.embed_dim=32", "model.word_dim=32", "model.similarity_dim=16", "train.batch=32",
         "train.lr=5e-3", "train.device=cpu", "train.warmup_epochs=6", "train.epochs=0",
         "train.pictures=false", "train.tensorboard=false"],
    )  # fmt: skip
    assert train(easy, tmp_path / "run", settings).best_rsum > 3 * CHANCE


@pytest.mark.parametrize(
    ("preset", "mean_epochs", "expected"),
    [("sgr", 1, ["mean", "mean", "hardest"]), ("sgr", 0, ["mean", "hardest", "hardest"]),
     ("sgr-hardest", 0, ["hardest"] * 3)],
)  # fmt: skip
def test_sgr_turns_to_hardest_negatives_as_late_as_it_is_set_to(
    tiny, small, monkeypatch, preset, mean_epochs, expected
):
    asked = []
    for kind in ("mean", "hardest"):
        name = f"triplet_{kind}"
        own = getattr(triplet, name)
        monkeypatch.setattr(
            triplet, name, lambda *a, own=own, k=kind: (asked.append(k), own(*a))[1]
        )
    settings = read_settings(
        preset,
        [*small, "train.warmup_epochs=1", f"method.mean_epochs={mean_epochs}", "train.batch=24"],
    )
    with open_pairs(tiny, "train", settings.data, CPU) as pairs:
        method = triplet.Triplet(settings, Sizes(len(pairs), pairs.features, 28), CPU)
        for epoch in range(3):
            method.fit_epoch(pairs, epoch)
    assert asked == expected


def test_negatives_never_soften():
    with pytest.raises(ConfigError, match="mean_epochs is 2, expected 0 with warm_up"):
        read_settings("sgr-hardest", ["method.mean_epochs=2"])


def test_sgr_c_is_trained_on_the_matched_pairs_alone_and_says_so(
    tiny, small, tmp_path, steps, capsys
):
    truth = f"data.truth={tiny / 'truth.csv'}"
    train(tiny, tmp_path / "run", read_settings("sgr-c", [*small, truth]))
    text = (tiny / "truth.csv").read_text()
    lines = [line.split(",") for line in text.splitlines() if ",train_" in line]
    matched = [int(key[6:]) for _, key, right, *_ in lines if right == "True"]
    for epoch in range(4):
        rows = np.concatenate([step.pair_index for _, step in steps if step.epoch == epoch])
        assert sorted(rows) == sorted(matched)
    said = " ".join(capsys.readouterr().err.split())
    assert "trains on the 15 of 24 pairs that the truth calls matched" in said
    predict(tmp_path / "run", "test", tmp_path / "x.zip")
    assert b"SGR-C" in zipfile.ZipFile(tmp_path / "x.zip").read("submission.json")
    titled = describe(open_runs(tmp_path / "run"), "test", "mine")
    assert titled.method.name == "mine (trained on matched pairs alone)", "in a table too"


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
    text = (tiny / "truth.csv").read_text()
    lines = [line.split(",") for line in text.splitlines() if ",train_" in line]
    matched = [int(key[6:]) for _, key, right, *_ in lines if right == "True"]
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
