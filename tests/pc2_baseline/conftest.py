"""The planted release, for every test of the baseline."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

_PATH = Path(__file__).with_name("planted.py")
_SPEC = importlib.util.spec_from_file_location("planted", _PATH)
planted_module = importlib.util.module_from_spec(_SPEC)
sys.modules.setdefault("planted", planted_module)
_SPEC.loader.exec_module(planted_module)


torch.set_num_threads(1)  # two tests' threads that wait for each other on two cores are slow


@pytest.fixture(scope="session")
def planted():
    """The module that plants releases."""
    return planted_module


@pytest.fixture(scope="session")
def easy(tmp_path_factory):
    """A release on which a division must find the shuffled pairs."""
    plan = planted_module.Plan(noise=0.3, topical=(16, 24))
    return planted_module.plant(tmp_path_factory.mktemp("easy") / "release", plan)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A release for tests of mechanics: seconds, not minutes."""
    plan = planted_module.Plan(train=24, dev=8, test=8, topics=4, noise=0.3)
    return planted_module.plant(tmp_path_factory.mktemp("tiny") / "release", plan)


@pytest.fixture
def small_settings():
    """Overrides that make any preset small and quick."""
    return [
        "model.embed_dim=32", "model.word_dim=24", "model.similarity_dim=16",
        "method.classes=8", "method.class_hidden=16", "train.batch=8",
        "train.warmup_epochs=2", "train.epochs=2", "train.device=cpu", "train.lr=1e-3",
        "train.tensorboard=false", "train.pictures=false",
    ]  # fmt: skip
