"""The planted release, for every test of the baseline."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from pc2_baseline.config import Plan
from pc2_baseline.data import planted as planted_module


def _beside(name):
    """Load a module that lies in this folder."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(name, module)
    spec.loader.exec_module(module)
    return module


fields_module = _beside("fields")
painted_module = _beside("painted")

torch.set_num_threads(1)  # two tests' threads that wait for each other on two cores are slow


@pytest.fixture(scope="session")
def planted():
    """The module that plants releases."""
    return planted_module


def topics_alone(**fields):
    """A plan of pages that have a topic and no details."""
    return Plan(**{"details": 0, "vocabulary": 0, "words": 6, "noise": 0.3, **fields})


@pytest.fixture(scope="session")
def easy(tmp_path_factory):
    """A release on which a division must find the shuffled pairs."""
    plan = topics_alone(train=160, dev=40, test=40)
    return planted_module.plant(tmp_path_factory.mktemp("easy") / "release", plan)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A release for tests of mechanics: seconds, not minutes."""
    plan = topics_alone(train=24, dev=8, test=8, topics=4)
    return planted_module.plant(tmp_path_factory.mktemp("tiny") / "release", plan)


@pytest.fixture(scope="session")
def fields():
    """The module that makes data sets in the field's own layout."""
    return fields_module


@pytest.fixture(scope="session")
def punkt(tmp_path_factory):
    """A small sentence splitter where NLTK looks first."""
    import nltk

    before = list(nltk.data.path)
    fields_module.make_punkt(tmp_path_factory.mktemp("nltk_data"))
    yield
    nltk.data.path[:] = before


@pytest.fixture(scope="session")
def flickr(tmp_path_factory):
    """A made-up Flickr30K: 20, 8 and 6 images with five captions each."""
    return fields_module.make_field(tmp_path_factory.mktemp("flickr"), fields_module.Field())


@pytest.fixture(scope="session")
def small_settings():
    """Overrides that make any preset small and quick."""
    return [
        "model.embed_dim=8", "model.word_dim=8", "model.similarity_dim=8",
        "model.graph_layers=1", "method.classes=8", "method.class_hidden=8", "train.batch=12",
        "train.warmup_epochs=2", "train.epochs=2", "train.device=cpu", "train.lr=1e-3",
        "train.tensorboard=false", "train.pictures=false",
    ]  # fmt: skip


@pytest.fixture(scope="session")
def write_painted():
    """The function that writes captures of painted pages and their release."""
    return painted_module.write_painted


@pytest.fixture(scope="session")
def painted(tmp_path_factory):
    """A folder with captures, release and truth.csv: 24, 8 and 8 painted pages."""
    return painted_module.write_painted(tmp_path_factory.mktemp("painted"))


@pytest.fixture(scope="session")
def small_clip(encoders, tmp_path_factory):
    """The folder of a CLIP of random weights that knows the words of painted pages."""
    folder = tmp_path_factory.mktemp("small") / "clip"
    return encoders.save(encoders.clip, folder, painted_module.WORDS)
