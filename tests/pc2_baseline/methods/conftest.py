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


@pytest.fixture
def small(small_settings):
    """Overrides that make any preset without pseudo-classes small and quick."""
    kept = [value for value in small_settings if "classes" not in value and "hidden" not in value]
    return ["data.tokenizer=jieba", "model.graph_layers=1", *kept]


@pytest.fixture
def on_tiny(tiny, small):
    """Make a method of a preset on the tiny release, with its pairs beside it."""

    def make(preset, *overrides):
        settings = read_settings(preset, [*small, *overrides])
        with open_pairs(tiny, "train", settings.data, CPU) as pairs:
            return make_method(settings, Sizes(len(pairs), pairs.features, 28), CPU), pairs

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
def resumes(on_tiny):
    """Check that an epoch more from a state is that of a method which never stopped."""

    def check(preset, *overrides):
        whole, pairs = on_tiny(preset, "train.warmup_epochs=1", *overrides)
        for epoch in range(2):
            whole.fit_epoch(pairs, epoch)
        state = {
            group: {name: value.clone() for name, value in tensors.items()}
            for group, tensors in whole.state_dict().items()
        }
        again, _ = on_tiny(preset, "train.warmup_epochs=1", *overrides)
        again.load_state_dict(state)
        assert again.fit_epoch(pairs, 2) == whole.fit_epoch(pairs, 2)
        first, second = whole.state_dict(), again.state_dict()
        assert first.keys() == second.keys()
        for group, tensors in first.items():
            assert tensors.keys() == second[group].keys()
            assert all(torch.equal(tensors[name], second[group][name]) for name in tensors)
        assert (again.similarity(pairs) == whole.similarity(pairs)).all()

    return check


@pytest.fixture
def learned(easy, tmp_path):
    """Train a preset's method on pooled vectors, which takes a second, and judge it."""

    def outcome(preset, *overrides):
        run = tmp_path / "run"
        done = train(easy, run, read_settings(preset, [*POOLED, *overrides]))
        return done, report(run, read_run(run), easy, easy / "truth.csv")

    return outcome
