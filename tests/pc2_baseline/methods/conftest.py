"""What tests of several methods share: methods on the tiny release, and the steps they take."""

import pytest
import torch

from pc2_baseline.analysis.truth import report
from pc2_baseline.config import read_settings
from pc2_baseline.data.pairs import open_pairs
from pc2_baseline.methods import make_method
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
    """Overrides that make any preset without pseudo-classes small and quick."""
    kept = [value for value in small_settings if "method.class" not in value]
    return ["data.tokenizer=jieba", *kept]


@pytest.fixture
def on_tiny(tiny, small_settings):
    """Make a method of a preset on the tiny release, with its pairs beside it."""

    def settings_of(preset, *overrides):
        has_classes = hasattr(read_preset(preset, []).method, "classes")
        small = [value for value in small_settings if has_classes or "method.class" not in value]
        return read_preset(preset, ["data.tokenizer=jieba", *small, *overrides])

    def make(preset, *overrides):
        settings = settings_of(preset, *overrides)
        with open_pairs(tiny, "train", settings.data, CPU) as pairs:
            return make_method(settings, Sizes(len(pairs), pairs.features, 28), CPU), pairs

    make.settings = settings_of
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
def learned(easy, tmp_path):
    """Train a preset's method on pooled vectors, which takes a second, and judge it."""

    def outcome(preset, *overrides):
        run = tmp_path / "run"
        done = train(easy, run, read_preset(preset, [*POOLED, *overrides]))
        return done, report(run, read_run(run), easy, easy / "truth.csv")

    return outcome
