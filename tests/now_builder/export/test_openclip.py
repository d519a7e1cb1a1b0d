"""The exports that OpenCLIP reads: shards of webdataset, and pictures named in a CSV."""

import csv
import io
import json
import tarfile
from argparse import Namespace
from pathlib import Path

import pytest
from PIL import Image

from now_builder.export.run import export
from now_builder.export.settings import ExportSettings
from now_builder.formats.release import read_pairs
from now_builder.formats.shard import read_captures

webdataset = pytest.importorskip("webdataset", reason="the extra export is not installed")


@pytest.fixture(scope="module")
def exported(repeating_release, small_crawl, tmp_path_factory, small_files):
    """Return a folder with an export in a format, made once."""
    folder = tmp_path_factory.mktemp("exported")

    def made(to: str) -> Path:
        if not (folder / to).exists():
            settings = ExportSettings(to=to, captures=small_crawl)
            export(repeating_release, folder / to, settings)
        return folder / to

    return made


@pytest.fixture(scope="module")
def train(repeating_release):
    return [pair for pair in read_pairs(repeating_release) if pair.split == "train"]


@pytest.fixture(scope="module")
def pictures(small_crawl):
    return {capture.key: capture.screenshot for capture in read_captures(small_crawl)}


@pytest.mark.filterwarnings("ignore")  # of its own libraries
def test_webdataset_reads_every_pair_back(exported, train, pictures):
    out = exported("webdataset")
    sizes = json.loads((out / "sizes.json").read_text())
    shards = sorted(name for name in sizes if name.startswith("train"))
    assert len(shards) > 1
    files = [str(out / name) for name in shards]
    found = list(webdataset.WebDataset(files, shardshuffle=False))
    assert [sample["__key__"] for sample in found] == [pair.key for pair in train]
    for pair, sample in zip(train, found, strict=True):
        assert sample["png"] == pictures[pair.key]
        assert sample["txt"].decode() == pair.caption
        about = json.loads(sample["json"])
        assert (about["url"], about["pair_index"]) == (pair.url, pair.pair_index)
    with tarfile.open(files[0]) as tar:
        assert sizes[shards[0]] * 3 == len(tar.getnames())


def open_clip_arguments(out: Path, **more) -> Namespace:
    return Namespace(
        batch_size=1, workers=0, world_size=1, seed=0, distributed=False, val_num_samples=None,
        train_num_samples=None, train_data_upsampling_factors=None, dataset_resampled=False,
        csv_img_key="filepath", csv_caption_key="title", csv_separator="\t", **more,
    )  # fmt: skip


def as_size_and_text(picture: Image.Image):
    return picture.size


@pytest.mark.filterwarnings("ignore")  # of its own libraries
def test_open_clip_reads_the_shards_and_counts_their_pairs(exported, train):
    data = pytest.importorskip("open_clip_train.data")
    out = exported("webdataset")
    count = len([*out.glob("train-*.tar")])
    pattern = str(out / f"train-{{00000..{count - 1:05d}}}.tar")
    assert f"{{00000..{count - 1:05d}}}" in (out / "README.md").read_text(encoding="utf-8")
    for is_train in (True, False):
        arguments = open_clip_arguments(out, train_data=pattern, val_data=pattern)
        found = data.get_wds_dataset(
            arguments, as_size_and_text, is_train, tokenizer=lambda text: [text]
        )
        texts = [text for _, batch in found.dataloader for text in batch]
        assert sorted(texts) == sorted(pair.caption for pair in train)
    assert data.get_dataset_size(pattern) == (len(train), count)


@pytest.mark.filterwarnings("ignore")  # of its own libraries
def test_open_clip_reads_the_csv_also_a_caption_that_pandas_takes_for_nothing(
    exported, train, pictures
):
    data = pytest.importorskip("open_clip_train.data")
    path = exported("openclip") / "train.csv"
    found = data.CsvDataset(str(path), lambda image: image.tobytes(), "filepath", "title",
                            tokenizer=lambda texts: [texts[0].strip()])  # fmt: skip
    assert len(found) == len(train)
    for pair, (picture, text) in zip(train, found, strict=False):
        assert text == pair.caption
        assert picture == Image.open(io.BytesIO(pictures[pair.key])).tobytes()
    assert train[0].caption == "None"
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert Path(rows[0]["filepath"]).read_bytes() == pictures[train[0].key]
