"""A release as a torch dataset: pairs, batches, workers, and files of every layout."""

import shutil
import subprocess
import sys

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader

from now_builder.errors import FormatError
from now_builder.formats.features import open_features
from now_builder.formats.release import (
    DATA_FOLDER,
    fingerprint,
    read_manifest,
    read_split_captions,
    write_manifest,
)
from pc2_baseline.config import DataSettings
from pc2_baseline.data.pairs import open_pairs
from pc2_baseline.data.torch_dataset import ReleaseDataset


@pytest.fixture
def data(tiny):
    return ReleaseDataset(tiny, "train")


def regions_of(release):
    with open_features(release / DATA_FOLDER / "train.h5") as features:
        return np.array(features.dataset)


def test_a_pair_is_the_one_that_the_trainer_reads(tiny, data):
    with open_pairs(tiny, "train", DataSettings(), torch.device("cpu")) as pairs:
        assert len(data) == len(pairs)
        for row in (3, 0, len(pairs) - 1):
            one, expected = data[row], pairs.batch(np.array([row]))
            assert torch.equal(one["regions"], expected.regions[0])
            assert torch.equal(one["tokens"], expected.tokens[0])
            assert int(one["length"]) == int(expected.lengths[0])
            assert int(one["pair_index"]) == row
    assert torch.equal(data[-1]["regions"], data[len(data) - 1]["regions"])
    with pytest.raises(IndexError):
        data[len(data)]


def test_a_loader_gives_every_pair_once_in_shuffled_batches(tiny, data):
    data[0]  # what is open here must not reach the workers
    loader = DataLoader(
        data, 7, shuffle=True, num_workers=2, collate_fn=ReleaseDataset.collate,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    expected, seen = regions_of(tiny), []
    for batch in loader:
        rows = batch["pair_index"].tolist()
        seen += rows
        assert np.array_equal(batch["regions"].numpy(), expected[rows])
        assert batch["tokens"].shape == (len(rows), int(batch["length"].max()))
    assert seen != sorted(seen)
    assert sorted(seen) == list(range(len(data)))


def test_a_loader_of_two_datasets_gives_batches_of_both(tiny, data, monkeypatch):
    monkeypatch.chdir(tiny.parent)
    both = ConcatDataset([data, ReleaseDataset(tiny.name, "train")])
    monkeypatch.chdir("/")  # a dataset is opened late
    (batch,) = DataLoader(both, len(both), collate_fn=ReleaseDataset.collate)
    expected = data.__getitems__([*range(len(data)), *range(len(data))])
    assert [*batch] == [*expected]
    assert all(torch.equal(batch[name], values) for name, values in expected.items())


def test_regions_come_as_stored_or_as_asked_for(tiny, data):
    assert data[0]["regions"].dtype == torch.float32
    half = ReleaseDataset(tiny, "train", dtype=torch.float16)
    assert torch.equal(half[0]["regions"], data[0]["regions"].half())


def test_a_file_in_chunks_is_read_too(tiny, data, tmp_path):
    copy = shutil.copytree(tiny, tmp_path / "copy")
    path = copy / DATA_FOLDER / "train.h5"
    with h5py.File(path, "a") as file:
        values = file["regions"][:]
        del file["regions"]
        file.create_dataset("regions", data=values, chunks=(4, *values.shape[1:]))
    found = ReleaseDataset(copy, "train").__getitems__([5, 2, 5])
    assert torch.equal(found["regions"], data.__getitems__([5, 2, 5])["regions"])


SCRIPT = """
import sys
from pc2_baseline import ReleaseDataset
data = ReleaseDataset(sys.argv[1], "train")
data[0]
"""


def test_a_script_ends_in_silence(tiny):
    """Its dataset is closed before the interpreter takes the modules apart."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, tiny], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")


def test_files_that_disagree_are_refused(tiny, tmp_path):
    copy = shutil.copytree(tiny, tmp_path / "copy")
    folder = copy / DATA_FOLDER
    shutil.copy(folder / "dev.h5", folder / "train.h5")
    with pytest.raises(FormatError, match=r"keys are not those of train_ids\.txt"):
        ReleaseDataset(copy, "train")[0]


@pytest.mark.parametrize("torn", ["order", "twice", "fingerprints", "counts"])
def test_a_release_that_disagrees_with_itself_is_not_trained_on(tiny, tmp_path, torn):
    copy = shutil.copytree(tiny, tmp_path / "copy")
    ids = copy / DATA_FOLDER / "train_ids.txt"
    keys, manifest = ids.read_text().split(), read_manifest(copy)
    if torn == "order":
        keys[:2] = keys[1::-1]
    elif torn == "twice":
        keys[1] = keys[0]
    elif torn == "counts":
        manifest.counts["train"] += 1
    if torn == "fingerprints":
        manifest.fingerprints["train"]["jieba"] = "0" * 64
    else:
        captions = read_split_captions(copy, "train", "jieba").captions
        manifest.fingerprints["train"]["jieba"] = fingerprint(keys, captions)
    ids.write_text("".join(f"{key}\n" for key in keys))
    write_manifest(copy, manifest)
    told = "not those of train_ids.txt" if torn in {"order", "twice"} else "those of manifest.json"
    with (
        pytest.raises(FormatError, match=told),
        open_pairs(copy, "train", DataSettings(), torch.device("cpu")),
    ):
        pass
