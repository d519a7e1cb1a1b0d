"""What tests of several methods share: methods on the tiny release, and what they do there."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from pc2_baseline.analysis.truth import report
from pc2_baseline.config import read_settings
from pc2_baseline.data.pairs import open_pairs
from pc2_baseline.methods import make_method
from pc2_baseline.methods.pc2.peers import PairStatistics
from pc2_baseline.modules.division import Division
from pc2_baseline.modules.learner import Learner
from pc2_baseline.runs.train import train
from pc2_baseline.training.method import Sizes
from pc2_baseline.training.run_folder import read_run

CPU = torch.device("cpu")
POOLED = [
    "data.tokenizer=jieba", "model.similarity=pooled", "model.embed_dim=32", "model.word_dim=32",
    "model.dropout=0.2", "model.feature_dropout=0", "train.batch=32", "train.lr=5e-3",
    "train.warmup_epochs=4", "train.epochs=1", "train.device=cpu", "train.pictures=false",
    "train.tensorboard=false",
]  # fmt: skip


def read_preset(preset, overrides):
    """Read the settings of a preset such as ``ncr``, or of ``ncr/demo`` on a data set."""
    config, _, on = preset.partition("/")
    return read_settings(config, overrides, on or None)


@pytest.fixture
def small(small_settings):
    """Overrides that make any preset of SGR without pseudo-classes small and quick."""
    kept = [value for value in small_settings if "method.class" not in value]
    return ["data.tokenizer=jieba", *kept]


@pytest.fixture
def on_tiny(tiny, small_settings):
    """Make a method of a preset on the tiny release, with its pairs.

    Two thirds of these are known to match.
    """

    def settings_of(preset, *overrides):
        chosen = [value for value in overrides if value.startswith("model.similarity=")]
        own = read_preset(preset, chosen)
        small = [
            value for value in small_settings
            if hasattr(getattr(own, value.split(".")[0]), re.split("[.=]", value)[1])
        ]  # fmt: skip
        return read_preset(preset, ["data.tokenizer=jieba", *small, *overrides])

    def make(preset, *overrides):
        settings = settings_of(preset, *overrides)
        with open_pairs(tiny, "train", settings.data, CPU) as opened:
            pairs = replace(opened, matched=np.arange(len(opened)) % 3 > 0)
            return make_method(settings, Sizes(len(pairs), pairs.features, 28), CPU), pairs

    make.settings = settings_of
    return make


@pytest.fixture
def warm(on_tiny):
    """The same in one batch an epoch, after a warm-up of one."""

    def make(preset, *overrides):
        method, pairs = on_tiny(preset, "train.warmup_epochs=1", "train.batch=24", *overrides)
        method.fit_epoch(pairs, 0)
        return method, pairs

    return make


@pytest.fixture
def divided(warm):
    """The same of two peers, which call different pairs clean: two thirds each."""

    def make(preset, *overrides):
        method, pairs = warm(preset, *overrides)
        make.divide(method, *(np.arange(24) % 3 != third for third in (0, 1)))
        return method, pairs

    def divide(method, *clean):
        """Let each peer call some pairs clean, with posteriors of its own; PC2's half stable."""
        method.statistics = []
        for peer, is_clean in enumerate(clean):
            number, zeros = np.arange(len(is_clean)), np.zeros(len(is_clean), np.float32)
            prob = 0.55 + 0.4 * number / len(is_clean) - 0.02 * peer
            more = {}
            if method.divided is PairStatistics:
                more = {"oscillation": zeros, "stable_prob": 0.9 - 0.5 * prob,
                        "is_stable": number % 2 == peer}  # fmt: skip
            own = method.divided(loss=zeros, division=Division(prob, is_clean), **more)
            method.statistics.append(own)

    make.divide = divide
    return make


@pytest.fixture
def steps(monkeypatch):
    """All steps that are taken: the loss, and what the step says of itself."""
    taken = []
    own = Learner.step
    monkeypatch.setattr(
        Learner,
        "step",
        lambda self, loss, step: (taken.append((loss.item(), step)), own(self, loss, step))[1],
    )
    return taken


@pytest.fixture
def spy(monkeypatch):
    """Note the calls of functions: the name of each, its arguments and what it returned."""

    def watch(owner, *names):
        calls = []
        for name in names:
            own = getattr(owner, name)

            def call(*args, own=own, name=name, **more):
                found = own(*args, **more)
                calls.append((name, args, found))
                return found

            monkeypatch.setattr(owner, name, call)
        return calls

    return watch


@pytest.fixture
def scored():
    """The similarities of some pairs, in evaluation mode unless asked otherwise."""

    @torch.no_grad()
    def score(net, pairs, rows=None, *, training=False):
        rows = np.arange(len(pairs)) if rows is None else rows
        return net.train(training).score_batch(pairs.batch(rows))

    return score


@pytest.fixture
def mean_losses():
    """The mean-negative losses of similarities at margin 0.2, straight from the equation."""

    def losses(matrix):
        own, off = matrix.diagonal(), 1 - torch.eye(len(matrix))
        i2t = ((0.2 + matrix - own[:, None]).clamp(min=0) * off).mean(1)
        return i2t + ((0.2 + matrix - own[None]).clamp(min=0) * off).mean(0)

    return losses


@pytest.fixture
def learned(easy, tmp_path):
    """Train a preset's method on pooled vectors, which takes a second, and judge it."""

    def outcome(preset, *overrides):
        run = tmp_path / "run"
        truth = f"data.truth={easy / 'truth.csv'}"
        done = train(easy, run, read_preset(preset, [*POOLED, truth, *overrides]))
        divides = (run / "divisions").exists()
        return done, report(run, read_run(run), easy, easy / "truth.csv") if divides else None

    return outcome
