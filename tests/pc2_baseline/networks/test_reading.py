"""The network that begins with words: against slow loops, on pages it never saw, and in a run."""

import shutil
from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch

from leaderboard.metrics import recalls
from now_builder.errors import ConfigError
from now_builder.formats.word_vectors import count_units, unit_vector
from pc2_baseline.config import read_settings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.data.seen_words import SeenWords
from pc2_baseline.methods import make_method
from pc2_baseline.methods.gsc import network_structures
from pc2_baseline.methods.networks import make_network
from pc2_baseline.modules.reading import fit_word_sides, whiten_once
from pc2_baseline.networks.codes import CaptionCodes, ImageCodes
from pc2_baseline.networks.reading import letter_sums, nearest_regions
from pc2_baseline.runs.open_run import open_run
from pc2_baseline.runs.train import train
from pc2_baseline.training.method import Sizes

CPU = torch.device("cpu")
COLUMNS = slice(3, 259)
PAIRS = 60


def drawn(letters, seed, noise=0.3):
    """Pages that show the words of their captions, in vectors with some noise."""
    generator = np.random.default_rng(seed)
    words = ["".join(generator.choice(list(letters), 6)) for _ in range(4 * PAIRS)]
    tokens = {str(number + 4): word for number, word in enumerate(words)}
    rows = [generator.choice(len(words), 5, replace=False) + 4 for _ in range(PAIRS)]
    captions = [np.array([2, *row, 3]) for row in rows]
    named = {"0": "<pad>", "1": "<unk>", "2": "<start>", "3": "<end>", **tokens}
    seen = SeenWords(COLUMNS, named, "jieba")
    read = seen.vectors(captions).numpy()[:, None] + noise * generator.normal(size=(PAIRS, 36, 256))
    other = generator.normal(size=(PAIRS, 36, 3))
    regions = np.concatenate([other, read], 2).astype(np.float32)
    return PairSet(regions, captions, "", CPU, np.arange(PAIRS), None, seen)


def settings(*changes):
    return read_settings("contrastive", ["model.similarity=reading", *changes], on="demo")


def network(pairs, *changes):
    sizes = Sizes(PAIRS, 259, 4 + 4 * PAIRS, fit_word_sides(pairs, 4 + 4 * PAIRS))
    return make_network(settings(*changes).model, sizes), sizes


def lines(values):
    return values / np.linalg.norm(values, axis=-1, keepdims=True)


def test_a_captions_letters_are_the_sum_of_its_tokens():
    words = SeenWords(COLUMNS, {"0": "<start>", "1": "beta", "2": "東京", "3": "##ta"}, "bert")
    letters = words.letters(range(4))
    slow = {
        token: sum(n * unit_vector(u) for u, n in count_units(text).items())
        for token, text in ((1, "beta"), (2, "東京"), (3, "ta"))
    }
    np.testing.assert_allclose(letters[1:], np.stack([slow[1], slow[2], slow[3]]), atol=1e-6)
    assert not letters[0].any(), "a token that frames a caption has no letters"
    tokens, lengths = torch.tensor([[0, 1, 3, 3], [2, 1, 1, 1]]), torch.tensor([4, 1])
    found = letter_sums(letters, tokens, lengths)
    np.testing.assert_allclose(found, lines(np.stack([slow[1] + 2 * slow[3], slow[2]])), atol=1e-6)


def test_a_fresh_network_compares_what_was_read_with_what_is_written():
    pairs = drawn("abcdef", 0)
    net, sizes = network(pairs)
    for layer in (net.images.project, net.captions.turn):
        torch.nn.init.zeros_(layer.weight)
    found = net.eval().score_batch(pairs.batch(np.arange(PAIRS))).detach()
    known = sizes.words
    read = torch.from_numpy(pairs.regions[:, :, COLUMNS]).double()
    letters = known.captions(pairs.words.vectors(pairs.captions))  # words are whole tokens here
    for image in range(0, PAIRS, 7):
        page = known.pages(read[image].mean(0))
        regions = [known.regions(row / row.norm()) for row in read[image]]
        for caption in range(0, PAIRS, 7):
            nearest = max(float(region @ letters[caption]) for region in regions)
            expected = float(page @ letters[caption]) + nearest
            assert float(found[image, caption]) == pytest.approx(expected, abs=2e-3)


def test_a_region_without_words_is_near_no_caption():
    pairs = drawn("abcdef", 0)
    pairs.regions[0, :, COLUMNS] = 0
    net, _ = network(pairs)
    codes = net.encode_images(pairs.image_batch(np.arange(2)))
    assert not codes.regions[0].any()
    assert codes.regions[1].norm(dim=1).allclose(torch.ones(36))


def test_the_nearest_region_is_that_of_the_slow_loop_and_padding_is_none():
    torch.manual_seed(0)
    images = ImageCodes(torch.randn(3, 36, 5), torch.zeros(3, 5))
    lengths = torch.tensor([1, 3])
    captions = CaptionCodes(torch.randn(2, 3, 5), torch.zeros(2, 5), lengths)
    found = nearest_regions(images, captions)
    for image in range(3):
        for caption, length in enumerate(lengths):
            slow = images.regions[image] @ captions.words[caption, :length].T
            assert float(found[image, caption]) == pytest.approx(float(slow.max()), abs=1e-6)


def test_images_and_captions_are_compared_among_themselves_too():
    pairs = drawn("abcdef", 0)
    net, _ = network(pairs)
    batch = pairs.batch(np.arange(4))
    images, captions = (
        net.encode_images(batch.regions),
        net.encode_captions(batch.tokens, batch.lengths),
    )
    for structure in network_structures(net.eval(), images, captions):
        assert structure.diagonal().allclose(torch.full((4,), 2.0), atol=1e-4)


def test_words_are_left_out_in_training_alone():
    pairs = drawn("abcdef", 0)
    net, _ = network(pairs, "model.word_dropout=0.5")
    tokens, lengths = pairs.caption_batch(np.arange(8))
    torch.manual_seed(0)
    one, other = (net.encode_captions(tokens, lengths).words for _ in range(2))
    assert not torch.equal(one, other)
    net.eval()
    one, other = (net.encode_captions(tokens, lengths).words for _ in range(2))
    assert torch.equal(one, other)


@pytest.mark.parametrize("method", ["contrastive", "ncr", "pc2-pooled", "gsc"])
def test_methods_find_captions_of_words_that_training_never_saw(method):
    learned, unseen = drawn("abcdef", 0, noise=1.0), drawn("mnopqr", 1)
    chosen = read_settings(method, ["model.similarity=reading", "train.warmup_epochs=2"], on="demo")
    sizes = Sizes(PAIRS, 259, 4 + 4 * PAIRS, fit_word_sides(learned, 4 + 4 * PAIRS))
    found = make_method(chosen, sizes, CPU)
    # the unseen words have letters of their own, which a user's one vocabulary would hold
    for epoch in range(2):
        found.fit_epoch(learned, epoch)
    for net in _networks(found):
        net.captions.letters.copy_(unseen.words.letters(range(4 + 4 * PAIRS)))
    assert recalls(found.similarity(unseen), np.arange(PAIRS)).rsum > 400


def _networks(method):
    nets = [getattr(method, "net", None), *getattr(method, "nets", [])]
    return [getattr(net, "matching", net) for net in nets if net is not None]


@pytest.fixture(scope="module")
def with_words(tiny, tmp_path_factory):
    """A release whose features are said to hold words; what they say is drawn."""
    copy = tmp_path_factory.mktemp("with-words") / "release"
    shutil.copytree(tiny, copy)
    for path in copy.rglob("*.h5"):
        with h5py.File(path, "r+") as file:
            file.attrs["words"] = "now-words/1 512:768"
    return copy


def test_a_run_trains_and_is_read_back_with_what_it_knows_of_words(with_words, tmp_path):
    quick = ["data.tokenizer=jieba", "train.warmup_epochs=1", "train.epochs=1", "train.device=cpu",
             "train.tensorboard=false", "train.pictures=false"]  # fmt: skip
    train(with_words, tmp_path / "run", settings(*quick))
    opened = open_run(tmp_path / "run")
    with opened.open("test") as split:
        found = opened.method.similarity(split)
        other = settings(*quick)
        sizes = Sizes(24, 768, opened.record.release.vocabulary, fit_word_sides(split, 28))
        fresh = make_method(other, sizes, CPU)
        state = opened.method.state_dict()
        fresh.load_state_dict(state)
        assert np.array_equal(fresh.similarity(split), found)
    assert np.isfinite(found).all()
    assert state["networks"]["captions.letters"].any(), "the letters are kept with the weights"


def test_a_release_without_words_is_refused(tiny, tmp_path):
    with pytest.raises(ConfigError, match=r"model\.similarity=reading: .*hold no words"):
        train(tiny, tmp_path / "run", settings("data.tokenizer=jieba", "train.device=cpu"))


@pytest.mark.parametrize("stored", [np.float32, np.float16])
def test_pages_whitened_once_train_as_if_whitened_at_every_step(stored):
    pairs = drawn("abcdef", 0)
    pairs = replace(pairs, regions=pairs.regions.astype(stored))
    pairs.regions[3, :5, COLUMNS] = 0
    _, sizes = network(pairs)
    chosen = settings("train.warmup_epochs=2", "model.feature_dropout=0.3")
    each, once = (make_method(chosen, sizes, CPU) for _ in range(2))
    whitened = whiten_once(once, pairs, 1.0)
    assert whitened.regions.shape == (PAIRS, 36 + 1 + 2, 256), "259 values fill two rows"
    for epoch in range(2):
        left, right = each.fit_epoch(pairs, epoch), once.fit_epoch(whitened, epoch)
        assert left["loss"] == pytest.approx(right["loss"], rel=1e-5)
    for one, other in zip(each.net.parameters(), once.net.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(each.similarity(pairs), once.similarity(whitened), atol=1e-5)


def test_pages_stay_as_they_are_where_both_do_not_fit_or_nothing_reads(tmp_path):
    pairs = drawn("abcdef", 0)
    _, sizes = network(pairs)
    reads = make_method(settings(), sizes, CPU)
    both = (pairs.regions.nbytes + PAIRS * 39 * 256 * 4) / 2**30
    assert whiten_once(reads, pairs, both) is not pairs
    assert whiten_once(reads, pairs, both * 0.999) is pairs
    pooled = make_method(read_settings("contrastive", [], on="demo"), sizes, CPU)
    assert whiten_once(pooled, pairs, 1.0) is pairs
    np.save(tmp_path / "regions.npy", pairs.regions)
    on_disk = replace(pairs, regions=np.load(tmp_path / "regions.npy", mmap_mode="r"))
    assert whiten_once(reads, on_disk, 1.0) is on_disk
