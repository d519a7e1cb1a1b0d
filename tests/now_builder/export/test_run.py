"""What all exports share: kills, other inputs, what is refused; and those that OpenCLIP reads."""

import csv
import io
import json
import shutil
import signal
import tarfile
from argparse import Namespace
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from now_builder.errors import ConfigError, FormatError
from now_builder.export.pairs import Row, groups
from now_builder.export.run import export
from now_builder.export.settings import ExportSettings
from now_builder.formats.release import read_pairs, write_pairs
from now_builder.formats.shard import read_captures
from tests.kill_at_rename import run_until_rename
from tests.now_builder.export.test_parquet import contents

webdataset = pytest.importorskip("webdataset", reason="the extra export is not installed")

KILLED = """
from now_builder.export.run import export
from now_builder.export.settings import ExportSettings
_, release, out, captures, to = sys.argv
settings = ExportSettings(to=to, captures=pathlib.Path(captures), file_mb=1)
export(pathlib.Path(release), pathlib.Path(out), settings)
"""


@pytest.fixture(scope="module")
def exported(repeating_release, small_crawl, tmp_path_factory):
    """Return a folder with an export in a format, made once."""
    folder = tmp_path_factory.mktemp("exported")

    def made(to: str) -> Path:
        if not (folder / to).exists():
            settings = ExportSettings(to=to, captures=small_crawl, file_mb=1)
            export(repeating_release, folder / to, settings)
        return folder / to

    return made


@pytest.fixture(scope="module")
def train(repeating_release):
    return [pair for pair in read_pairs(repeating_release) if pair.split == "train"]


@pytest.fixture(scope="module")
def pictures(small_crawl):
    return {capture.key: capture.screenshot for capture in read_captures(small_crawl)}


def moved(folder: Path, name: str) -> dict[str, bytes]:
    """Return files, with the folder's own name in none of them."""
    return {
        path: content.replace(str(folder).encode(), name.encode())
        for path, content in contents(folder).items()
    }


@pytest.mark.parametrize(("to", "point"), [("webdataset", 4), ("openclip", 60), ("mteb", 12)])
def test_a_killed_run_goes_on_and_a_forced_one_writes_the_same(
    exported, repeating_release, small_crawl, tmp_path, to, point
):
    whole, hurt = exported(to), tmp_path / "hurt"
    done = run_until_rename(point, KILLED, repeating_release, hurt, small_crawl, to)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (hurt / "README.md").exists()
    kept = {path: path.stat().st_mtime_ns for path in hurt.glob("**/[!.]*-0*")}
    assert kept
    settings = ExportSettings(to=to, captures=small_crawl, file_mb=1)
    export(repeating_release, hurt, settings)
    assert moved(hurt, "here") == moved(whole, "here")
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())
    (hurt / "mine.txt").write_text("mine")
    other = ExportSettings(to="webdataset", captures=small_crawl, file_mb=9)
    with pytest.raises(ConfigError, match=r"hurt: exported from another .*--force replaces"):
        export(repeating_release, hurt, other)
    export(repeating_release, hurt, other, force=True)
    left = {path.split("/")[0] for path in contents(hurt)} - {"mine.txt"}
    shards = {f"{split}-00000.tar" for split in ("train", "dev", "test")}
    assert left == shards | {"sizes.json", "README.md", "export.json"}


def test_pandas_reads_every_row_of_the_csv(exported, train):
    found = pd.read_csv(exported("openclip") / "train.csv", sep="\t")
    assert [text.strip() for text in found["title"]] == [pair.caption for pair in train]


def test_a_picture_that_is_gone_is_written_again(exported, repeating_release, small_crawl):
    out = exported("openclip")
    whole = contents(out)
    next(out.glob("images/dev-*/*")).unlink()
    settings = ExportSettings(to="openclip", captures=small_crawl, file_mb=1)
    export(repeating_release, out, settings)
    assert contents(out) == whole


def test_a_folder_of_something_else_is_left_alone(small_release, small_crawl, tmp_path):
    settings = ExportSettings(to="webdataset", captures=small_crawl)
    (tmp_path / "sizes.json").write_text("mine")
    with pytest.raises(ConfigError, match=r"sizes.json: exists, and is of no export; name another"):
        export(small_release, tmp_path, settings, force=True)
    with pytest.raises(ConfigError, match=r"contains a release \(manifest.json\)"):
        export(small_release, small_release, settings, force=True)
    with pytest.raises(ConfigError, match=r"contains captures \(plan.parquet\)"):
        export(small_release, small_crawl, settings)
    stray = (tmp_path / "sizes.json").rename(tmp_path / "test-00009.tar")
    with pytest.raises(ConfigError, match=r"test-00009.tar: exists, and is of no export"):
        export(small_release, tmp_path, settings)
    stray.unlink()
    (tmp_path.parent / "victim").write_text("mine")
    for name in ("../victim", "."):
        record = {"to": "beir", "digest": "", "files": [name]}
        (tmp_path / "export.json").write_text(json.dumps(record))
        with pytest.raises(FormatError, match=rf"export.json: files: '{name}' lies outside"):
            export(small_release, tmp_path, settings, force=True)
    assert (tmp_path.parent / "victim").exists()


def test_an_export_with_a_torn_record_is_replaced_by_force(small_release, tmp_path):
    settings = ExportSettings(to="parquet")
    export(small_release, tmp_path, settings)
    whole = contents(tmp_path)
    (tmp_path / "export.json").write_text("{")
    for name in ("train-00000-of-00001", "dev-00007-of-00009"):
        (tmp_path / "data" / f"{name}.parquet").write_bytes(b"of another release")
    with pytest.raises(ConfigError, match=r"export.json: not JSON .*; --force replaces the export"):
        export(small_release, tmp_path, settings)
    export(small_release, tmp_path, settings, force=True)
    assert contents(tmp_path) == whole


def test_pairs_out_of_order_are_one_clear_line(small_release, tmp_path):
    pairs = [pair for pair in read_pairs(small_release) if pair.split != "dev"]
    for torn, told in ((pairs, r"dev is \[\], expected 0, 1, 2"), (pairs[1:], r"train is \[1, 2,")):
        write_pairs(tmp_path / "pairs.parquet", torn)
        with pytest.raises(FormatError, match=told):
            export(tmp_path, tmp_path / "out", ExportSettings(to="parquet"))


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("DATASET_CARD.md", "My card\n", "expected a head between lines ---"),
        ("DATASET_CARD.md", "---\nlicense: mit\n---\n# Title\n", "expected a head between lines"),
        ("DATASET_CARD.md", None, "file not found, expected a release made by"),
        ("croissant.json", "{}", "expected a list recordSet of nodes"),
        ("croissant.json", "[]", "expected a list recordSet of nodes"),
        ("croissant.json", '{"recordSet": [{}]}', "expected a list recordSet of nodes"),
        ("croissant.json", None, "no such file; package the release again"),
    ],
)
def test_a_description_that_was_edited_is_refused_before_anything_is_written(
    small_release, tmp_path, name, text, told
):
    release = shutil.copytree(small_release, tmp_path / "release")
    (release / name).unlink()
    if text is not None:
        (release / name).write_text(text)
    with pytest.raises(FormatError, match=rf"{name}: {told}"):
        export(release, tmp_path / "out", ExportSettings(to="parquet"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"to": "mteb"}, "--captures is not given, expected the folder .* --to mteb is about"),
        ({"to": "beir", "captures": Path("none"), "tokens": True}, "of --to parquet, found --to b"),
    ],
)
def test_settings_that_do_not_go_together_are_one_clear_line(
    small_release, tmp_path, settings, told
):
    with pytest.raises(ConfigError, match=told):
        export(small_release, tmp_path / "out", ExportSettings(**settings))
    assert not (tmp_path / "out").exists()


def test_row_groups_are_bounded_in_bytes_too(small_release):
    pair = read_pairs(small_release)[0]
    heavy, light = Row(pair, bytes(6 * 10**6)), Row(pair, b"")
    found = [len(group) for group in groups([light] * 150 + [heavy] * 90)]
    assert found == [100, 92, 42, 6]
    assert list(groups([])) == []


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
