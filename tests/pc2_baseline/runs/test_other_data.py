"""A run belongs to its data: pages, captions, features and vocabulary."""

import json
import shutil

import h5py
import pytest

from now_builder.errors import ConfigError, FormatError
from now_builder.formats.io import sha256_of
from pc2_baseline.config import read_settings
from pc2_baseline.runs.predict import predict
from pc2_baseline.runs.train import train

VOCABULARY = "vocab/now100k_precomp_vocab_jieba.json"
SETTINGS = [
    "data.tokenizer=jieba", "method.dim=4", "train.epochs=2", "train.tensorboard=false",
    "train.pictures=false",
]  # fmt: skip


@pytest.fixture
def release(tiny, tmp_path):
    return shutil.copytree(tiny, tmp_path / "release")


def learn(release, run):
    return train(release, run, read_settings("ridge", SETTINGS))


def detect_again(release, split):
    """Write other features of the same pages, as another detector would."""
    path, manifest = release / f"now100k_precomp/{split}.h5", release / "manifest.json"
    with h5py.File(path, "a") as file:
        file["regions"][:] = file["regions"][:][..., ::-1]
    tree = json.loads(manifest.read_text())
    tree["files"][f"now100k_precomp/{split}.h5"]["sha256"] = sha256_of(path)
    manifest.write_text(json.dumps(tree))


def test_a_run_on_other_features_of_the_same_pages_is_not_gone_on_with(release, tmp_path):
    assert learn(release, tmp_path / "run").fresh == 3
    assert learn(release, tmp_path / "run").fresh == 0
    detect_again(release, "train")
    with pytest.raises(ConfigError, match=r"run\.toml: a run on other features of train; give"):
        learn(release, tmp_path / "run")
    predict(tmp_path / "run", "test", tmp_path / "x.zip")  # of test nothing has changed


def test_a_run_does_not_predict_from_other_features(release, tmp_path):
    learn(release, tmp_path / "run")
    detect_again(release, "test")
    with pytest.raises(FormatError, match=r"test split has features of hash .*than at training"):
        predict(tmp_path / "run", "test", tmp_path / "x.zip")


def test_a_run_of_before_features_were_noted_is_still_read(release, tmp_path):
    learn(release, tmp_path / "run")
    path = tmp_path / "run" / "run.toml"
    kept, _, rest = path.read_text().partition("[release.features_sha256]\n")
    path.write_text(kept + rest[rest.index("[") :])
    predict(tmp_path / "run", "test", tmp_path / "x.zip")
    assert learn(release, tmp_path / "run").fresh == 0


def test_a_run_with_another_vocabulary_of_the_same_ids_is_not_gone_on_with(release, tmp_path):
    learn(release, tmp_path / "run")
    tree = json.loads((release / VOCABULARY).read_text())
    ids, names = tree["word2idx"], tree["idx2word"]
    one, other = (word for word, index in ids.items() if index in (7, 8))
    ids[one], ids[other] = ids[other], ids[one]
    names["7"], names["8"] = names["8"], names["7"]
    (release / VOCABULARY).write_text(json.dumps(tree))
    with pytest.raises(ConfigError, match="a run on another vocabulary"):
        learn(release, tmp_path / "run")
