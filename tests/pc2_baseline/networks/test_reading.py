"""The network that begins with words: against slow loops, on pages it never saw, and in a run."""

import shutil
from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch

from leaderboard.metrics import recalls
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.release import read_manifest, read_pairs, write_manifest, write_pairs
from pc2_baseline.config import read_settings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.data.words import SeenWords
from pc2_baseline.methods import make_method
from pc2_baseline.methods.one_network import make_network
from pc2_baseline.modules.reading import cache_whitened, fit_word_sides
from pc2_baseline.runs.open_run import open_run, similarity
from pc2_baseline.runs.train import train
from pc2_baseline.training.method import Sizes

CPU = torch.device("cpu")
COLUMNS = slice(3, 259)
PAIRS = 60
QUICK = ["data.tokenizer=jieba", "train.warmup_epochs=1", "train.epochs=1", "train.device=cpu",
         "train.tensorboard=false", "train.pictures=false"]  # fmt: skip


def drawn(letters, seed, noise=0.3):
    """Pages that show the words of their captions, in vectors with some noise."""
    generator = np.random.default_rng(seed)
    words = ["".join(generator.choice(list(letters), 6)) for _ in range(4 * PAIRS)]
    texts = [" ".join(generator.choice(words, 5, replace=False)) for _ in range(PAIRS)]
    seen = SeenWords(COLUMNS, lambda: texts)
    read = seen.sketches.reshape(PAIRS, 36, 256) + noise * generator.normal(size=(PAIRS, 36, 256))
    other = generator.normal(size=(PAIRS, 36, 3))
    regions = np.concatenate([other, read], 2).astype(np.float32)
    return PairSet(regions, list(seen.sketches), "", CPU, np.arange(PAIRS), None, seen)


def settings(*changes):
    return read_settings("contrastive", ["model.similarity=reading", *changes], on="demo")


def network(pairs, *changes):
    sizes = Sizes(PAIRS, 259, 1, fit_word_sides(pairs))
    return make_network(settings(*changes).model, sizes), sizes


def test_a_fresh_network_compares_what_was_read_with_what_is_written():
    pairs = drawn("abcdef", 0)
    net, sizes = network(pairs)
    for layer in (net.images.project, net.captions.turn):
        torch.nn.init.zeros_(layer.weight)
    scores = net.eval().score_batch(pairs.batch(np.arange(PAIRS))).detach()
    maps = sizes.words
    read = torch.from_numpy(pairs.regions[:, :, COLUMNS]).double()
    written = torch.from_numpy(pairs.words.sketches).double().reshape(-1, 36, 256)
    weights = maps.weights
    for image in range(0, PAIRS, 7):
        page, shown = maps.pages(read[image].mean(0)), read[image] * weights
        for caption in range(0, PAIRS, 7):
            own = written[caption] * weights
            cosine = float((shown * own).sum() / (shown.norm() * own.norm()))
            pooled = float(page @ maps.captions(written[caption].mean(0)))
            assert float(scores[image, caption]) == pytest.approx(pooled + 4 * cosine, abs=2e-3)


def test_a_page_without_words_has_zero_local_vectors():
    pairs = drawn("abcdef", 0)
    pairs.regions[0, :, COLUMNS] = 0
    net, _ = network(pairs)
    codes = net.encode_images(pairs.image_batch(np.arange(2)))
    assert not codes.regions[0].any()
    assert float(codes.regions[1].norm()) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("method", ["contrastive", "pc2-pooled"])
def test_methods_find_captions_of_words_that_training_never_saw(method):
    learned, unseen = drawn("abcdef", 0, noise=1.0), drawn("mnopqr", 1)
    chosen = read_settings(method, ["model.similarity=reading", "train.warmup_epochs=2"], on="demo")
    sizes = Sizes(PAIRS, 259, 1, fit_word_sides(learned))
    found = make_method(chosen, sizes, CPU)
    for epoch in range(2):
        found.fit_epoch(learned, epoch)
    assert recalls(found.similarity(unseen), np.arange(PAIRS)).rsum > 400


@pytest.fixture(scope="module")
def with_words(tiny, tmp_path_factory):
    """A release whose features are said to hold words; what they say is drawn."""
    copy = tmp_path_factory.mktemp("with-words") / "release"
    shutil.copytree(tiny, copy)
    for path in copy.rglob("*.h5"):
        with h5py.File(path, "r+") as file:
            file.attrs["words"] = "now-words/2 512:768"
    return copy


def changed(release, folder, **column):
    """Copy a release whose ``pairs.parquet`` has other texts."""
    copy = shutil.copytree(release, folder)
    rows = [
        replace(row, **{n: make(row) for n, make in column.items()}) for row in read_pairs(copy)
    ]
    write_pairs(copy / "pairs.parquet", rows)
    return copy


def test_tokens_count_for_nothing_where_there_are_texts(with_words, tmp_path):
    """Every token but the first of a caption may be unknown; a noise file moves images alone."""
    unknown = shutil.copytree(with_words, tmp_path / "unknown")
    for path in unknown.rglob("*_caps_jieba.txt"):
        rows = path.read_text().splitlines()
        path.write_text("".join(f"{row.split(',')[0]},3\n" for row in rows))
    write_manifest(unknown, read_manifest(unknown).model_copy(update={"fingerprints": {}}))
    noise = np.random.default_rng(0).permutation(24)
    np.save(tmp_path / "noise.npy", noise)
    chosen = settings(*QUICK, f"data.noise_file={tmp_path / 'noise.npy'}")
    found = []
    for release in (with_words, unknown):
        run = tmp_path / f"run-{release.name}"
        train(release, run, chosen)
        found.append(similarity(run, "test"))
    assert np.array_equal(*found)
    with open_run(run).open("train") as pairs:
        assert list(pairs.image_of) == list(noise)
        assert pairs.words.texts == [
            row.caption for row in read_pairs(unknown) if row.split == "train"
        ]


def test_a_run_of_other_texts_or_of_tokens_is_refused(with_words, tmp_path):
    run, chosen = tmp_path / "run", settings(*QUICK)
    train(with_words, run, chosen)
    other = changed(with_words, tmp_path / "other", caption=lambda row: f"of {row.key}")
    with pytest.raises(ConfigError, match="a run on other texts of the captions"):
        train(other, run, chosen)
    with pytest.raises(FormatError, match="test split has texts of hash"):
        similarity(run, "test", release=other)


def test_a_release_without_words_is_refused(tiny, tmp_path):
    with pytest.raises(ConfigError, match=r"model\.similarity=reading: .*hold no words"):
        train(tiny, tmp_path / "run", settings("data.tokenizer=jieba", "train.device=cpu"))


def test_pages_whitened_once_train_as_if_whitened_at_every_step():
    pairs = drawn("abcdef", 0)
    pairs = replace(pairs, regions=pairs.regions.astype(np.float16))
    pairs.regions[3, :5, COLUMNS] = 0
    _, sizes = network(pairs)
    chosen = settings("train.warmup_epochs=2", "model.feature_dropout=0.3")
    each, once = (make_method(chosen, sizes, CPU) for _ in range(2))
    whitened = cache_whitened(once, pairs, 1.0)
    assert whitened.regions.shape == (PAIRS, 36 + 1 + 2, 256), "259 values fill two rows"
    for epoch in range(2):
        left, right = each.fit_epoch(pairs, epoch), once.fit_epoch(whitened, epoch)
        assert left["loss"] == pytest.approx(right["loss"], rel=1e-5)
    for one, other in zip(each.net.parameters(), once.net.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(each.similarity(pairs), once.similarity(whitened), atol=1e-5)
