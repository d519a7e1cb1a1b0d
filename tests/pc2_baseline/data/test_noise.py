"""Noise files: read as they are, made only on request, told in the run and the submission."""

import hashlib
import json

import numpy as np
import pytest
import torch

from leaderboard.cli import main as judge
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.noise import describe, images_of_captions, matched, read_noise
from now_builder.formats.release import Pair
from pc2_baseline.config import DataSettings, read_settings
from pc2_baseline.data.make_noise import Draw, draw_noise, exchange_captions, find_name
from pc2_baseline.data.pairs import open_pairs
from pc2_baseline.runs.train import train
from pc2_baseline.training.run_folder import read_run
from tests.pc2_baseline.commands import call, failed, run

CPU = torch.device("cpu")


@pytest.mark.parametrize("protocol", ["captions", "images"])
def test_a_share_of_the_images_changes_hands_and_none_is_lost(protocol):
    noise = draw_noise(1000, 200, Draw(0.4, protocol, 0))
    assert noise.dtype == np.int64
    assert np.bincount(noise).tolist() == [5] * 200, "a permutation: five captions an image"
    wrong = ~matched(noise, 200)
    assert 0.36 < wrong.mean() <= 0.4, "a few land on their own image again"
    all_wrong = wrong.reshape(200, 5).all(1).mean()
    some_wrong = wrong.reshape(200, 5).any(1).mean()
    if protocol == "images":
        assert all_wrong == some_wrong == wrong.mean()
    else:
        assert all_wrong < 0.05
        assert some_wrong > 0.8
    assert np.array_equal(noise, draw_noise(1000, 200, Draw(0.4, protocol, 0)))
    assert not np.array_equal(noise, draw_noise(1000, 200, Draw(0.4, protocol, 1)))


def test_no_noise_and_all_noise_are_shares_too():
    for protocol in ("captions", "images"):
        assert matched(draw_noise(100, 20, Draw(0.0, protocol, 0)), 20).all()
        assert matched(draw_noise(100, 20, Draw(1.0, protocol, 0)), 20).mean() < 0.3
        moved = draw_noise(100, 100, Draw(0.29, protocol, 0)) != np.arange(100)
        assert moved.sum() == 29, "0.29 * 100 is 28.999…"
    with pytest.raises(ConfigError, match=r"--mismatch 1\.5: expected 0 to 1"):
        draw_noise(100, 20, Draw(1.5, "captions", 0))


@pytest.mark.parametrize("protocol", ["site", "language"])
def test_neither_language_nor_copies_tell_which_captions_were_exchanged(protocol):
    rng = np.random.default_rng(0)
    pairs = [
        Pair(f"k{row}", "train", row, "", f"site{row % 30}", str(rng.integers(250)), None,
             ("de", "zh")[row % 30 % 7 % 2 if row % 11 else 0], None, "")
        for row in range(900)
    ]  # fmt: skip
    for share in (0.0, 0.4, 0.9):
        images = exchange_captions(pairs, Draw(share, protocol, 0))
        assert sorted(images) == list(range(900)), "each image keeps one caption"
        assert (images != np.arange(900)).mean() == pytest.approx(share, abs=1 / 900)
        for pair, image in zip(pairs, images, strict=True):
            own = pairs[image]
            assert pair.lang == own.lang
            assert protocol == "language" or pair.site == own.site
            assert own is pair or own.caption != pair.caption
    assert np.array_equal(images, exchange_captions(pairs, Draw(0.9, protocol, 0)))
    assert not np.array_equal(images, exchange_captions(pairs, Draw(0.9, protocol, 1)))


def test_a_caption_of_most_pages_is_exchanged_as_often_as_there_are_others():
    pairs = [Pair(str(row), "train", row, "", "s", "slogan" if row < 7 else str(row), None, "de",
                  None, "") for row in range(10)]  # fmt: skip
    images = exchange_captions(pairs, Draw(0.6, "site", 0))
    assert (images != np.arange(10)).sum() == 6
    assert all(images[row] < 7 for row in (7, 8, 9))
    with pytest.raises(ConfigError, match=r"only 0\.600 of the training pairs have a partner"):
        exchange_captions(pairs, Draw(0.7, "site", 0))


def test_the_protocol_of_a_file_is_seen_in_it(tmp_path):
    for each, draw, protocol in (
        (5, Draw(0.4, "captions", 0), "captions"),
        (5, Draw(0.4, "images", 0), "images"),
        (5, Draw(0.0, "captions", 0), "either"),
        (1, Draw(0.4, "captions", 0), "either"),
    ):
        noise = draw_noise(20 * each, 20, draw)
        np.save(tmp_path / "n.npy", noise)
        found = describe(tmp_path / "n.npy", noise, 20)
        assert found.protocol == protocol
        assert found.mismatch == (noise != np.arange(20 * each) // each).mean()
        assert found.sha256 == hashlib.sha256((tmp_path / "n.npy").read_bytes()).hexdigest()


def test_a_noise_file_moves_images_of_the_training_split_alone(flickr, tmp_path):
    noise = draw_noise(100, 20, Draw(0.5, "captions", 3))
    np.save(tmp_path / "n.npy", noise)
    before = (tmp_path / "n.npy").read_bytes()
    data = DataSettings(name="f30k_precomp", sentences=False, noise_file=tmp_path / "n.npy")
    stored = np.load(flickr / "f30k_precomp" / "train_ims.npy")
    with open_pairs(flickr, "train", data, CPU) as pairs:
        assert np.array_equal(pairs.image_of, noise)
        assert pairs.matched.tolist() == (noise == np.arange(100) // 5).tolist()
        assert np.array_equal(pairs.batch(np.arange(100)).regions.numpy(), stored[noise])
    with open_pairs(flickr, "dev", data, CPU) as pairs:
        assert pairs.matched is None
        assert np.array_equal(pairs.image_of, images_of_captions(40, 8))
    assert (tmp_path / "n.npy").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["n.npy"]


def test_a_file_that_is_none_of_this_split_is_refused(tmp_path):
    path = tmp_path / "n.npy"
    for noise, pattern in (
        (np.zeros(99, np.int64), "99 entries for 100 training captions, expected as many"),
        (np.zeros(100), r"found float64 \(100,\), expected integers \(100,\)"),
        (np.zeros((100, 1), np.int64), r"found int64 \(100, 1\)"),
        (np.r_[np.zeros(99, np.int64), 20], "entry 99 is 20, expected an image from 0 to 19"),
        (np.r_[-1, np.zeros(99, np.int64)], "entry 0 is -1"),
        (np.array(["a"] * 100, dtype=object), "not a readable .npy array"),
    ):
        np.save(path, noise)
        with pytest.raises(FormatError, match=pattern):
            read_noise(path, 100, 20)
    np.lib.format.open_memmap(path, "w+", "<i8", shape=(np.int64(100),))[:] = 0
    with pytest.raises(FormatError, match=r"numpy's own numbers in its header, .*shape=\(int\(n\)"):
        read_noise(path, 100, 20)


def test_a_missing_or_torn_file_is_an_error_and_is_never_made(tmp_path):
    path = tmp_path / "f30k_precomp_0.4"
    with pytest.raises(FormatError, match="no such noise file; `pc2-baseline make-noise`"):
        read_noise(path, 100, 20)
    assert list(tmp_path.iterdir()) == []
    np.save(tmp_path / "torn.npy", np.arange(100) // 5)
    content = (tmp_path / "torn.npy").read_bytes()
    (tmp_path / "torn.npy").write_bytes(content[:-9])
    with pytest.raises(FormatError, match=r"not a readable \.npy array"):
        read_noise(tmp_path / "torn.npy", 100, 20)


def test_make_noise_writes_exactly_what_was_asked_and_never_twice(flickr, tmp_path):
    path = tmp_path / "f30k_precomp_0.4"  # without .npy, as in the README of the authors' code
    arguments = ["make-noise", flickr, path, "--mismatch", 0.4, "--protocol", "images"]
    done = call(*arguments)
    assert done.returncode == 0
    assert [file.name for file in tmp_path.iterdir()] == ["f30k_precomp_0.4"]
    noise = read_noise(path, 100, 20)
    assert hashlib.sha256(path.read_bytes()).hexdigest() in done.stdout
    assert f"{(noise != np.arange(100) // 5).mean():.4%}" in done.stdout
    content = path.read_bytes()
    failed(call(*arguments, "--seed", 1), r"f30k_precomp_0\.4: exists; .*--force")
    assert path.read_bytes() == content
    assert call(*arguments, "--seed", 1, "--force").returncode == 0
    assert path.read_bytes() != content
    assert call(*arguments, "--force").returncode == 0
    assert path.read_bytes() == content, "the same seed, the same bytes"


def test_make_noise_finds_the_layout_by_the_folders_name(flickr, tiny, tmp_path):
    assert find_name(flickr) == find_name(flickr / "f30k_precomp") == "f30k_precomp"
    assert find_name(tiny) == find_name(tiny / "now100k_precomp") == "now100k_precomp"
    for name in ("coco_precomp", "f30k_precomp"):
        (tmp_path / "both" / name).mkdir(parents=True)
    with pytest.raises(ConfigError, match="f30k_precomp and coco_precomp; choose one with --name"):
        find_name(tmp_path / "both")
    common = ["--mismatch", 0.5, "--protocol", "captions"]
    assert call("make-noise", tiny, tmp_path / "now.npy", *common).returncode == 0
    assert len(np.load(tmp_path / "now.npy")) == 24
    failed(call("make-noise", tiny, tmp_path / "x.npy", *common, "--name", "mine"), "--name: name")
    failed(call("make-noise", tmp_path, tmp_path / "x.npy", *common), "no folder now100k_precomp")


@pytest.fixture(scope="module")
def trained(flickr, tmp_path_factory):
    """Two epochs of SGR and two of PC2 on five captions an image, some of them shuffled."""
    folder = tmp_path_factory.mktemp("trained")
    np.save(folder / "n.npy", draw_noise(100, 20, Draw(0.4, "captions", 0)))
    common = [
        "data.name=f30k_precomp", "data.sentences=false", f'data.noise_file="{folder}/n.npy"',
        "model.embed_dim=8", "model.word_dim=8", "model.similarity_dim=8", "train.batch=50",
        "train.device=cpu", "train.warmup_epochs=1", "train.epochs=1", "train.lr=3e-3",
        "train.pictures=false", "train.tensorboard=false",
    ]  # fmt: skip
    small = ["method.classes=8", "method.class_hidden=8"]
    train(flickr, folder / "sgr", read_settings("sgr", common))
    train(flickr, folder / "pc2", read_settings("pc2-paper", [*common, *small], on="demo"))
    return folder


def test_a_run_on_five_captions_evaluates_to_what_it_was_selected_by(trained, tmp_path):
    run, path = trained / "sgr", tmp_path / "m.npy"
    done = call("evaluate", run, "--split", "dev", "--json", "-o", path)
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert (found["images"], found["captions"], found["fold"]) == (8, 40, None)
    state = json.loads((run / "best" / "state.json").read_text())
    assert found["scores"] == pytest.approx(state["history"][state["best_epoch"]]["dev"])
    matrix = np.load(path)
    first = [matrix[:, caption].argmax() == caption // 5 for caption in range(40)]
    assert found["scores"]["t2i_R@1"] == pytest.approx(100 * np.mean(first))
    best_five = [set(np.argsort(-row)[:5] // 5) for row in matrix]
    hits = [image in best_five[image] for image in range(8)]
    assert found["scores"]["i2t_R@5"] == pytest.approx(100 * np.mean(hits))
    done = call("evaluate", run, "--fold", 3)
    assert "\nmean of 2 folds of 3 images: rSum " in done.stdout
    failed(call("evaluate", run, "--fold", 4), "test has 6 images, no multiple")
    failed(call("evaluate", run, "--split", "train"), "expected dev or test")


def test_noise_is_in_the_run_and_in_the_divisions_truth(trained, tmp_path):
    noise = np.load(trained / "n.npy")
    record = read_run(trained / "pc2").release.noise
    assert record.protocol == "captions"
    assert record.mismatch == (noise != np.arange(100) // 5).mean()
    assert record.sha256 == hashlib.sha256((trained / "n.npy").read_bytes()).hexdigest()
    done = call("division", trained / "pc2", "--json")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert found["known"] == found["pairs"] == 100
    assert found["matched"] == int((noise == np.arange(100) // 5).sum())
    lines = [f"{row},{image == row // 5}" for row, image in enumerate(noise)]
    (tmp_path / "truth.csv").write_text("\n".join(["key,matched", *lines]) + "\n")
    done = call("division", trained / "pc2", "--truth", tmp_path / "truth.csv", "--json")
    assert json.loads(done.stdout) == found, "a key is the row of the caption"


def test_a_truth_of_pages_is_joined_with_what_noise_moved(trained, tmp_path):
    own = np.load(trained / "n.npy") == np.arange(100) // 5
    verdicts = np.array(["match", "mismatch", "unsure"])[np.arange(100) % 3]
    lines = [f"{row},{verdict}" for row, verdict in enumerate(verdicts)]
    (tmp_path / "truth.csv").write_text("\n".join(["key,matched", *lines]) + "\n")
    done = call("division", trained / "pc2", "--truth", tmp_path / "truth.csv", "--json")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert found["matched"] == int((own & (verdicts == "match")).sum())
    assert found["known"] == int((~own | (verdicts != "unsure")).sum())


def test_another_content_of_the_noise_file_is_another_run(trained, flickr):
    path = trained / "n.npy"
    content = path.read_bytes()
    settings = read_run(trained / "sgr").settings
    try:
        np.save(path, draw_noise(100, 20, Draw(0.4, "captions", 1)))
        with pytest.raises(ConfigError, match=r"another content of .*n\.npy"):
            train(flickr, trained / "sgr", settings)
        failed(call("division", trained / "pc2"), "another content than at training")
    finally:
        path.write_bytes(content)
    assert train(flickr, trained / "sgr", settings).fresh == 0


def agree(run_folder, release, split, out):
    """Predict, score, and compare with what evaluate says."""
    assert call("predict", run_folder, "--split", split, "-o", out).returncode == 0
    found = json.loads(call("evaluate", run_folder, "--split", split, "--json").stdout)
    done = run(judge, "now-leaderboard", "score", out, "--release", release, "--json")
    assert done.returncode == 0
    result = json.loads(done.stdout)
    assert (result["n_images"], result["n_pairs"]) == (found["images"], found["captions"])
    assert result["rsum"] == pytest.approx(found["scores"]["rsum"])
    for way in ("i2t", "t2i"):
        for cutoff in ("R@1", "R@5", "R@10"):
            assert result[way][cutoff] == pytest.approx(found["scores"][f"{way}_{cutoff}"])
    return result


def test_the_board_scores_five_captions_an_image_as_evaluate_does(trained, flickr, tmp_path):
    result = agree(trained / "pc2", flickr, "dev", tmp_path / "x.zip")
    assert (result["track"], result["release"]["origin"]) == ("flickr30k", "field")
    assert result["training"]["noise"]["protocol"] == "captions"


def test_cocos_splits_are_scored_whole_and_test_by_folds_as_the_board_does(
    fields, tmp_path, monkeypatch
):
    release = fields.make_field(tmp_path, fields.Field(name="coco_precomp"))
    settings = [
        "data.name=coco_precomp", "data.sentences=false", "data.dev_images=4", "train.device=cpu",
        "model.embed_dim=8", "model.word_dim=8", "model.similarity_dim=8",
        "train.warmup_epochs=1", "train.epochs=0",
    ]  # fmt: skip
    own, x = tmp_path / "run", tmp_path / "x.zip"
    train(release, own, read_settings("sgr", settings))
    assert agree(own, release, "test", x)["track"] == "coco"
    assert call("predict", own, "--split", "dev", "-o", x).returncode == 0
    done = run(judge, "now-leaderboard", "score", x, "--release", release, "--json")
    assert (done.returncode, json.loads(done.stdout)["n_images"]) == (0, 8), "all of dev, not four"
    done = call("evaluate", own, "--json")
    assert (done.returncode, json.loads(done.stdout)["fold"]) == (0, None), (
        "six images make no fold of a thousand"
    )
    monkeypatch.setattr("pc2_baseline.runs.evaluate.FOLD", 2)
    found = json.loads(call("evaluate", own, "--json").stdout)
    assert (found["images"], found["fold"]) == (6, 2)
    assert found["fold_scores"]["rsum"] > found["scores"]["rsum"]
    done = call("evaluate", own, "--split", "dev", "--json")
    assert json.loads(done.stdout)["fold"] is None, "only test has folds"


def test_a_data_set_without_sites_has_the_fields_protocols_alone(flickr, tmp_path):
    words = ("make-noise", flickr, tmp_path / "n.npy", "--mismatch", "0.2", "--protocol", "site")
    failed(call(*words), "does not name the site and language of a pair")
    assert not (tmp_path / "n.npy").exists()
