"""Reading releases: ours, the authors' archive, and files that must be refused."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from now_builder.errors import FormatError
from now_builder.formats.features import open_features
from now_builder.formats.release import DATA_FOLDER
from pc2_baseline.config import DataSettings
from pc2_baseline.data.pairs import cut, cycle_batches, open_pairs

CPU = torch.device("cpu")


def as_published(release, folder):
    """The same pairs in the layout of the authors' archive: no keys, no manifest, .npy."""
    data = folder / "h5100k_precomp"
    data.mkdir(parents=True)
    for split in ("train", "dev", "test"):
        with open_features(release / DATA_FOLDER / f"{split}.h5") as features:
            np.save(data / f"{split}_ims.npy", features.dataset[:].astype(np.float16))
        source = release / DATA_FOLDER / f"{split}_caps_jieba.txt"
        lines = source.read_text().splitlines()
        (data / source.name).write_text("".join(f",{line},\n" for line in lines))
    vocabulary = json.loads(
        (release / "vocab" / f"{DATA_FOLDER}_vocab_jieba.json").read_text(encoding="utf-8")
    )
    short = {key: vocabulary[key] for key in ("word2idx", "idx2word", "idx")}
    (folder / "vocab").mkdir()
    (folder / "vocab" / "now100k_precomp_vocab_jieba.json").write_text(json.dumps(short))
    return folder


@pytest.fixture
def copy(tiny, tmp_path):
    """A copy of the tiny release to be damaged."""
    return shutil.copytree(tiny, tmp_path / "copy")


def captions_of(release, split="train"):
    return release / DATA_FOLDER / f"{split}_caps_jieba.txt"


def test_a_batch_holds_the_pairs_asked_for_in_their_order(tiny):
    with open_pairs(tiny, "train", DataSettings(), CPU) as pairs:
        batch = pairs.batch(np.array([5, 2, 5]))
        with open_features(tiny / DATA_FOLDER / "train.h5") as features:
            expected = features.dataset[:][[5, 2, 5]]
        assert np.array_equal(batch.regions.numpy(), expected)
        assert batch.pair_index.tolist() == [5, 2, 5]
        for row, pair in zip(batch.tokens, (5, 2, 5), strict=True):
            length = len(pairs.captions[pair])
            assert row[:length].tolist() == pairs.captions[pair].tolist()
            assert not row[length:].any()
        assert (batch.tokens[:, 0] == 1).all(), "<start> is 1"
        ends = batch.tokens[torch.arange(3), batch.lengths - 1]
        assert (ends == 2).all(), "<end> is 2"


def test_captions_are_cut_only_when_asked(tiny):
    settings = DataSettings(max_tokens=2)
    with open_pairs(tiny, "train", settings, CPU) as pairs:
        assert {len(caption) for caption in pairs.captions} == {4}
    with open_pairs(tiny, "train", DataSettings(), CPU) as pairs:
        assert max(len(caption) for caption in pairs.captions) > 4


def test_the_authors_archive_gives_the_same_pairs(tiny, tmp_path):
    archive = as_published(tiny, tmp_path / "archive")
    with (
        open_pairs(tiny, "dev", DataSettings(), CPU) as ours,
        open_pairs(archive, "dev", DataSettings(name="h5100k_precomp"), CPU) as theirs,
    ):
        rows = np.arange(len(ours))
        assert torch.equal(ours.batch(rows).tokens, theirs.batch(rows).tokens)
        assert torch.allclose(ours.batch(rows).regions, theirs.batch(rows).regions, atol=1e-2)


@pytest.mark.parametrize("published", [False, True])
def test_regions_too_large_for_memory_are_read_by_the_batch(tiny, tmp_path, published):
    release = as_published(tiny, tmp_path / "archive") if published else tiny
    small = DataSettings(memory_gb=1e-6)
    with (
        open_pairs(release, "train", small, CPU) as on_disk,
        open_pairs(release, "train", DataSettings(), CPU) as in_memory,
    ):
        assert type(on_disk.regions) is not np.ndarray
        assert type(in_memory.regions) in (np.ndarray, np.memmap)
        rows = np.array([7, 0, 7, 3])
        assert torch.equal(on_disk.batch(rows).regions, in_memory.batch(rows).regions)


def refuse(release, pattern, settings=None, split="train"):
    with (
        pytest.raises(FormatError, match=pattern) as caught,
        open_pairs(release, split, settings or DataSettings(), CPU),
    ):
        pass
    assert "\n" not in str(caught.value)


def test_captions_and_vocabularies_that_do_not_fit_are_named(copy, tiny, tmp_path):
    whole = captions_of(copy).read_text().splitlines()
    for row, line, pattern in (
        (4, "5,9999", r"train_caps_jieba.txt: line 5: id 9999, but the vocabulary has 28 tokens"),
        (2, "", "line 3: an empty caption"),
    ):
        captions_of(copy).write_text("\n".join([*whole[:row], line, *whole[row + 1 :]]) + "\n")
        refuse(copy, pattern)
    path = copy / "vocab" / f"{DATA_FOLDER}_vocab_jieba.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"idx": 10**12}))
    refuse(copy, f"idx is {10**12}, expected")
    refuse(tiny, "no track bpe, it has jieba", DataSettings(tokenizer="bpe"))
    (tmp_path / "v.json").write_text(json.dumps({"word2idx": {"a": 0}, "idx2word": {}, "idx": 1}))
    refuse(tiny, "no token <start>", DataSettings(vocab_path=tmp_path / "v.json"))


def test_features_that_cannot_be_learned_from_are_refused(tiny, tmp_path):
    archive = as_published(tiny, tmp_path / "archive")
    path = archive / "h5100k_precomp" / "train_ims.npy"
    whole, zeros = np.load(path), DataSettings(allow_zero_rows=True)

    def spoiled(place, value):
        regions = whole.copy()
        regions[place] = value
        return regions

    for regions, settings, pattern in (
        (
            spoiled(np.s_[3, 30:], 0),
            None,
            "image 3: 6 of 36 regions are all zero; --set",
        ),
        (spoiled(5, 0), zeros, "image 5: 36 of 36 regions are all zero$"),
        (spoiled((9, 0, 0), np.nan), None, "image 9: features that are not finite"),
        (whole[:, :20], None, r"features of shape \(24, 20, 768\), expected \(images, 36, dim\)"),
        (np.concatenate([whole, whole]), None, "48 images"),
    ):
        np.save(path, regions)
        refuse(archive, pattern, settings)
    np.save(path, spoiled(np.s_[3, 30:], 0))
    with open_pairs(archive, "train", zeros, CPU) as pairs:
        assert len(pairs) == 24


@given(pairs=st.integers(1, 300), size=st.integers(2, 64))
def test_batches_cover_every_pair_once_and_none_is_left_alone(pairs, size):
    batches = cut(np.arange(pairs), size, np.random.default_rng(0))
    assert sorted(np.concatenate(batches)) == list(range(pairs))
    sizes = [len(batch) for batch in batches]
    assert max(sizes) <= max(size, 3)
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) > 1 or pairs == 1


def test_endless_batches_come_round_again_and_nothing_gives_nothing():
    batches = cycle_batches(np.arange(5), 3, np.random.default_rng(0))
    assert sorted([*next(batches), *next(batches)]) == list(range(5))
    assert len(next(batches)) in (2, 3)
    assert list(cycle_batches(np.array([], dtype=np.int64), 3, np.random.default_rng(0))) == []


def test_regions_held_as_a_tensor_give_the_same_batches(easy):
    rows = np.array([5, 0, 5, 17])
    with open_pairs(easy, "train", DataSettings(), CPU) as pairs:
        tensor = replace(pairs, regions=torch.from_numpy(np.asarray(pairs.regions)))
        assert torch.equal(tensor.batch(rows).regions, pairs.batch(rows).regions)
