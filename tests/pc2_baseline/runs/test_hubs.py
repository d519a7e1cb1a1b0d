"""Hubs corrected by a bank of training pairs: against a slow loop, and query by query."""

import zipfile
from dataclasses import replace

import numpy as np
import pytest

from pc2_baseline.config import read_settings
from pc2_baseline.runs.measured_run import measure
from pc2_baseline.runs.open_run import (
    NEAREST,
    draw_bank,
    open_run,
    similarity,
    with_bank,
    without_hubs,
)
from pc2_baseline.runs.train import train
from tests.pc2_baseline.commands import call

QUICK = ["train.epochs=1", "train.warmup_epochs=1", "train.device=cpu", "data.tokenizer=jieba",
         "train.tensorboard=false", "train.pictures=false"]  # fmt: skip


@pytest.fixture(scope="module", params=["ridge", "contrastive"])
def run(request, tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hubs") / "run"
    own = ["method.dim=4"] if request.param == "ridge" else []
    train(tiny, folder, read_settings(request.param, [*QUICK, *own], on="demo"))
    return folder


def test_an_image_and_a_caption_lose_half_their_mean_similarity_to_the_nearest_in_the_bank(run):
    opened = open_run(run)
    with opened.open("test") as split, opened.open("train") as whole:
        score = opened.method.similarity
        bank = draw_bank(whole, 10)
        found = without_hubs(*map(opened.method.similarity, with_bank(split, bank)))
        nothing = np.zeros(10, dtype=int)
        of_images = score(replace(split, captions=bank.captions, image_of=nothing))
        of_captions = score(replace(bank, captions=split.captions, image_of=nothing[:8]))
        plain = score(split)
    assert NEAREST > 5, "of ten, half are the nearest"
    for image in range(8):
        for caption in range(8):
            near = np.sort(of_images[image])[-5:], np.sort(of_captions[:, caption])[-5:]
            expected = plain[image, caption] - np.mean(near)
            assert found[image, caption] == pytest.approx(expected, abs=1e-5)


def test_a_query_is_answered_alike_whichever_others_there_are(run):
    opened = open_run(run)
    with opened.open("test") as split, opened.open("train") as whole:
        bank = draw_bank(whole, 100)
        assert len(bank) == 24
        every = without_hubs(*map(opened.method.similarity, with_bank(split, bank)))
        one = replace(split, captions=split.captions[3:4], image_of=np.zeros(1, dtype=int))
        alone = without_hubs(*map(opened.method.similarity, with_bank(one, bank)))
    np.testing.assert_allclose(alone[:, 0], every[:, 3], atol=1e-5)


def packed_in(path):
    with zipfile.ZipFile(path) as archive, archive.open("similarity.npy") as file:
        return np.load(file)


def test_predict_and_evaluate_take_the_corrected_matrix(run, tmp_path):
    call("predict", run, "-o", tmp_path / "x.zip", "--bank", "16")
    packed = packed_in(tmp_path / "x.zip")
    np.testing.assert_array_equal(packed, similarity(run, bank=16))
    assert not np.array_equal(packed, similarity(run))
    np.testing.assert_array_equal(similarity([run], bank=16), packed)
    call("evaluate", run, "--bank", "16", "-o", tmp_path / "x.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), packed)


def test_a_run_of_a_table_is_scored_by_its_own_setting(tiny, tmp_path):
    chosen = [*QUICK, "data.bank=10", "model.embed_dim=8"]
    settings = read_settings("pc2-pooled", chosen, on="demo")
    measure(tiny, tmp_path / "seed-0", settings, "Ours")
    packed = packed_in(tmp_path / "seed-0.zip")
    np.testing.assert_array_equal(packed, similarity(tmp_path / "seed-0"))
    assert not np.array_equal(packed, similarity(tmp_path / "seed-0", bank=0))
