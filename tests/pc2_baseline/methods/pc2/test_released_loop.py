"""The preset of PC2's released code, against a plain restatement of the authors' loop."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from pc2_baseline.config import read_settings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.methods.pc2.released import Pc2Released
from pc2_baseline.modules import division
from pc2_baseline.training.method import Sizes

PAIRS, FEATURES, VOCABULARY, EPOCHS = 28, 12, 40, 4
PLAIN = Path(__file__).parents[4] / "benchmarks" / "plain" / "pc2.py"
TINY = [
    "model.embed_dim=8", "model.word_dim=6", "model.similarity_dim=5", "model.dropout=0",
    "method.classes=6", "method.class_hidden=7", "method.division_batch=9", "train.batch=9",
    "train.warmup_epochs=1", "train.epochs=3", "train.lr_drop_epoch=1", "method.noisy_from_epoch=1",
]  # fmt: skip
"""28 pairs in batches of 9: the last one has a single pair. The rate drops, and drops again."""


class WidePairs(PairSet):
    """Pairs whose features come in float64."""

    def image_batch(self, images):
        return super().image_batch(images).double()


@pytest.fixture
def float64():
    """All that has no type of its own is float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def plain(monkeypatch):
    """The restatement; a posterior that falls with the statistic stands for the mixture."""
    spec = importlib.util.spec_from_file_location("plain_pc2", PLAIN)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "plain_pc2", module)
    spec.loader.exec_module(module)
    for place in (division, module):
        monkeypatch.setattr(place, "clean_posterior", falling)
    return module


def falling(statistic, *_, **__):
    """Return a posterior that is above one half for three pairs in five."""
    values = division.scaled(statistic.astype(np.float64))
    return 1 / (1 + np.exp(20 * (values - np.quantile(values, 0.6) - 1e-6)))


def drawn():
    draw = np.random.default_rng(0)
    captions = [draw.integers(4, VOCABULARY, length) for length in draw.integers(3, 45, PAIRS)]
    regions = draw.standard_normal((PAIRS, 36, FEATURES)).astype(np.float32)
    return WidePairs(regions, captions, "drawn", torch.device("cpu"), np.arange(PAIRS))


@pytest.mark.usefixtures("float64")
def test_epochs_are_those_of_the_authors_loop(plain):
    pairs, cpu = drawn(), torch.device("cpu")
    settings = read_settings("pc2-released", TINY)
    method = Pc2Released(settings, Sizes(PAIRS, FEATURES, VOCABULARY), cpu)
    loop = plain.PlainPc2(settings, method.nets, PAIRS)
    for epoch in range(EPOCHS):
        figures = method.fit_epoch(pairs, epoch)
        expected = loop.fit_epoch(pairs, epoch)
        assert [figures["loss_a"], figures["loss_b"]] == pytest.approx(expected, rel=1e-6)
        noisy = figures.get("loss_noisy_a", 0.0)
        assert (noisy > 0) == (epoch >= 2), "a warm-up, then an epoch of clean pairs alone"
    for own, theirs, net in zip(method.statistics, loop.divisions, method.nets, strict=True):
        assert np.array_equal(own.division.is_clean, theirs[0].is_clean)
        assert net.training is False
    for net, peer, bank in zip(method.nets, loop.peers, method.banks, strict=True):
        for name, value in peer.net.state_dict().items():
            if "num_batches" not in name:
                assert (net.state_dict()[name] - value).abs().max() < 5e-10, name
        assert (bank.predictions - peer.bank).abs().max() < 1e-7
    scores = 1 / (1 + np.exp(-method.similarity(pairs).astype(np.float64)))
    assert np.abs(scores - loop.similarity(pairs)).max() < 1e-6


def test_an_epoch_ends_before_a_single_pair_but_takes_a_step():
    settings = read_settings("pc2-released", TINY)
    method = Pc2Released(settings, Sizes(46, FEATURES, VOCABULARY), torch.device("cpu"))
    sizes = {}
    for clean in (28, 36, 45):
        found = division.Division(np.zeros(46), np.arange(46) < clean)
        batches = method._batches(found, 4, 0)
        sizes[clean] = [[len(rows) for rows in parts] for parts in batches]
    assert sizes == {28: [[9, 9]] * 3, 36: [[9, 9]], 45: [[9, 0]]}
