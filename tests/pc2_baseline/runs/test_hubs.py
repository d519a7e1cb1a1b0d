"""Hubs corrected by a bank of training pairs: against a slow loop, and query by query."""

import zipfile
from dataclasses import replace

import numpy as np
import pytest

from pc2_baseline.config import read_settings
from pc2_baseline.runs.hubs import NEAREST, draw_bank, without_hubs
from pc2_baseline.runs.open_run import open_run, similarity
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
        found = without_hubs(opened.method, split, bank)
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
        every = without_hubs(opened.method, split, bank)
        one = replace(split, captions=split.captions[3:4], image_of=np.zeros(1, dtype=int))
        alone = without_hubs(opened.method, one, bank)
    np.testing.assert_allclose(alone[:, 0], every[:, 3], atol=1e-5)


def test_predict_packs_the_corrected_matrix(run, tmp_path):
    call("predict", run, "-o", tmp_path / "x.zip", "--bank", "16")
    with zipfile.ZipFile(tmp_path / "x.zip") as archive, archive.open("similarity.npy") as file:
        packed = np.load(file)
    np.testing.assert_array_equal(packed, similarity(run, bank=16))
    assert not np.array_equal(packed, similarity(run))
    two = similarity([run], bank=16)
    np.testing.assert_array_equal(two, packed)
