"""The export as Parquet, as datasets loads it; and what all exports share: kills, other inputs."""

import io
import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image

from now_builder.errors import ConfigError, FormatError
from now_builder.export.pairs import Row, groups
from now_builder.export.run import export
from now_builder.export.settings import ExportSettings
from now_builder.formats.captions import TOKENIZERS
from now_builder.formats.features import open_features
from now_builder.formats.release import (
    read_pairs,
    read_split_captions,
)
from now_builder.formats.shard import read_captures
from now_builder.package.run import package
from now_builder.package.settings import PackageSettings
from tests.kill_at_rename import run_until_rename

datasets = pytest.importorskip("datasets")

SPLITS = ("train", "dev", "test")

KILLED = """
from now_builder.export.run import export
from now_builder.export import pairs
from now_builder.export.settings import ExportSettings
pairs.FILE_BYTES = 10**6
settings = ExportSettings(to="parquet", captures=pathlib.Path(sys.argv[3]))
export(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), settings)
"""


@pytest.fixture(scope="module")
def release(small_release: Path) -> Path:
    return small_release


@pytest.fixture(scope="module")
def out(release: Path, small_crawl: Path, tmp_path_factory, small_files: None) -> Path:
    out = tmp_path_factory.mktemp("exported") / "out"
    settings = ExportSettings(to="parquet", captures=small_crawl, tokens=True, regions=True)
    export(release, out, settings)
    return out


@pytest.fixture(scope="module")
def loaded(out: Path):
    return datasets.load_dataset(str(out), cache_dir=str(out.parent / "cache"))


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_one_line_loads_every_pair_in_order(loaded, release: Path) -> None:
    pairs = read_pairs(release)
    assert {*loaded} == {*SPLITS}
    for split in SPLITS:
        own = [pair for pair in pairs if pair.split == split]
        for name in ("key", "pair_index", "url", "site", "lang", "caption", "caption_source"):
            assert loaded[split][name][:] == [getattr(pair, name) for pair in own]
        assert [",".join(flags) for flags in loaded[split]["flags"]] == [p.flags for p in own]


def test_a_picture_is_the_screenshot_as_it_was_taken(loaded, small_crawl: Path) -> None:
    captures = {capture.key: capture for capture in read_captures(small_crawl)}
    assert isinstance(loaded["dev"].features["image"], datasets.Image)
    for row in loaded["dev"]:
        expected = Image.open(io.BytesIO(captures[row["key"]].screenshot))
        assert row["image"].size == (720, 1280)
        assert row["image"].tobytes() == expected.tobytes()
    raw = loaded["dev"].cast_column("image", datasets.Image(decode=False))[0]
    assert raw["image"]["bytes"] == captures[raw["key"]].screenshot
    assert raw["image"]["path"] == f"{raw['key']}.png"


def test_regions_boxes_and_tokens_are_those_of_the_release(loaded, release: Path) -> None:
    data = loaded["test"].with_format("numpy").remove_columns("image")[:]
    with open_features(release / "now100k_precomp" / "test.h5") as features:
        pages = features.read(slice(None))
    for name in ("boxes", "scores", "classes", "regions"):
        assert np.array_equal(data[name], getattr(pages, name)), name
    for name in TOKENIZERS:
        expected = read_split_captions(release, "test", name).captions
        assert [list(line) for line in data[f"tokens_{name}"]] == expected


def test_files_are_cut_by_size_and_split(out: Path, loaded) -> None:
    names = sorted(path.name for path in (out / "data").iterdir())
    train = [name for name in names if name.startswith("train")]
    assert len(train) > 3
    assert train[1] == f"train-00001-of-{len(train):05d}.parquet"
    sizes = [(out / "data" / name).stat().st_size for name in train]
    assert max(sizes) < 1.5e6
    group = pq.ParquetFile(out / "data" / train[0]).metadata.row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert columns["image.bytes"].compression == "UNCOMPRESSED"
    assert columns["caption"].compression == "ZSTD"
    assert not columns["image.bytes"].is_stats_set
    schema = pq.read_schema(out / "data" / train[0])
    assert datasets.Features.from_arrow_schema(schema) == loaded["dev"].features


def test_the_card_is_the_releases_with_the_files_in_its_head(out: Path, release: Path) -> None:
    card = (out / "README.md").read_text(encoding="utf-8")
    head = yaml.safe_load(card.split("---")[1])
    assert head["pretty_name"] == 'A "name": odd'
    (config,) = head["configs"]
    assert config["data_files"] == [
        {"split": split, "path": f"data/{split}-*.parquet"} for split in SPLITS
    ]
    original = (release / "DATASET_CARD.md").read_text(encoding="utf-8")
    assert original[original.index("## Provenance") :] in card
    assert "load_dataset" in card
    schema = pq.read_schema(next((out / "data").iterdir()))
    assert all(f"| `{name}` |" in card for name in schema.names)


def test_a_killed_run_goes_on_where_it_was(
    release: Path, small_crawl: Path, tmp_path: Path, small_files: None
) -> None:
    whole, hurt = tmp_path / "whole", tmp_path / "hurt"
    settings = ExportSettings(to="parquet", captures=small_crawl)
    export(release, whole, settings)
    done = run_until_rename(4, KILLED, release, hurt, small_crawl)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (hurt / "README.md").exists()
    kept = {path: path.stat().st_mtime_ns for path in (hurt / "data").glob("*-of-*.parquet")}
    assert len(kept) == 2  # after export.json
    export(release, hurt, settings)
    assert contents(hurt) == contents(whole)
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())
    export(release, hurt, settings.model_copy(update={"captures": small_crawl}), force=True)
    assert contents(hurt) == contents(whole)
    assert any(path.stat().st_mtime_ns != time for path, time in kept.items())
    (hurt / "mine.txt").write_text("mine")
    other = ExportSettings(to="beir", captures=small_crawl)
    before = contents(hurt)
    with pytest.raises(ConfigError, match=r"hurt: exported from another .*--force to replace"):
        export(release, hurt, other)
    assert contents(hurt) == before
    export(release, hurt, other, force=True)
    left = {path.split("/")[0] for path in contents(hurt)} - {"mine.txt"}
    assert left == {"images", "texts", "t2i", "i2t", "README.md", "export.json"}


def test_without_images_no_captures_are_needed_and_no_pixel_is_shipped(
    release: Path, tmp_path: Path
) -> None:
    export(release, tmp_path / "out", ExportSettings(to="parquet"))
    found = datasets.load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
    assert "image" not in found["train"].features
    assert "tokens_bert" not in found["train"].features
    assert found["train"][0]["caption"]
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "no screenshots" in card
    assert b"\x89PNG" not in next((tmp_path / "out" / "data").glob("train*")).read_bytes()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of its own libraries
def test_the_official_reader_of_croissant_takes_the_export(
    small_crawl: Path, small_features: Path, small_captions: Path, tmp_path: Path
) -> None:
    """It is slow for each pair: a few pairs."""
    mlcroissant = pytest.importorskip("mlcroissant")
    release, out = tmp_path / "release", tmp_path / "out"
    sizes = PackageSettings(train=6, dev=4, test=5)
    package(small_crawl, small_features, small_captions, release, sizes)
    settings = ExportSettings(to="parquet", captures=small_crawl, tokens=True, regions=True)
    export(release, out, settings)
    found = mlcroissant.Dataset(str(out / "croissant.json"))
    assert not found.metadata.ctx.issues.errors
    assert not found.metadata.ctx.issues.warnings
    pairs = read_pairs(release)
    for split in SPLITS:
        records = list(found.records(split))
        own = [pair for pair in pairs if pair.split == split]
        assert [record[f"{split}/key"].decode() for record in records] == [p.key for p in own]
    assert records[0]["test/image"].size == (720, 1280)
    assert np.shape(records[0]["test/boxes"]) == (36, 4)


def test_a_folder_of_something_else_is_left_alone(small_release, small_crawl, tmp_path):
    settings = ExportSettings(to="parquet")
    (tmp_path / "croissant.json").write_text("mine")
    with pytest.raises(ConfigError, match=r"croissant.json: exists, but not from an export"):
        export(small_release, tmp_path, settings, force=True)
    with pytest.raises(ConfigError, match=r"contains a release \(manifest.json\)"):
        export(small_release, small_release, settings, force=True)
    with pytest.raises(ConfigError, match=r"contains captures \(plan.parquet\)"):
        export(small_release, small_crawl, settings)
    (tmp_path / "croissant.json").unlink()
    (tmp_path.parent / "victim").write_text("mine")
    for name in ("../victim", "."):
        record = {"to": "beir", "digest": "", "files": [name]}
        (tmp_path / "export.json").write_text(json.dumps(record))
        with pytest.raises(FormatError, match=rf"export.json: files: '{name}' lies outside"):
            export(small_release, tmp_path, settings, force=True)
    assert (tmp_path.parent / "victim").exists()


def test_an_export_with_a_torn_record_is_one_clear_line(small_release, tmp_path):
    (tmp_path / "export.json").write_text("{")
    for force in (False, True):
        with pytest.raises(FormatError, match=r"export.json: not JSON .*\. Delete the folder"):
            export(small_release, tmp_path, ExportSettings(to="parquet"), force=force)


def test_a_description_that_was_edited_is_refused_before_anything_is_written(
    small_release, tmp_path
):
    release = shutil.copytree(small_release, tmp_path / "release")
    for name, text, problem in (
        ("DATASET_CARD.md", "My card\n", "expected a head between lines ---"),
        ("DATASET_CARD.md", "---\nlicense: mit\n---\n# Title\n", "expected a head between lines"),
        ("DATASET_CARD.md", None, "file not found. Give a release made by"),
        ("croissant.json", "{}", "expected a list recordSet of nodes"),
        ("croissant.json", '{"recordSet": [{}]}', "expected a list recordSet of nodes"),
        ("croissant.json", None, "file not found. Package the release again"),
    ):
        whole = (release / name).read_bytes()
        (release / name).unlink()
        if text is not None:
            (release / name).write_text(text)
        with pytest.raises(FormatError, match=rf"{name}: {problem}"):
            export(release, tmp_path / "out", ExportSettings(to="parquet"))
        assert not (tmp_path / "out").exists()
        (release / name).write_bytes(whole)


def test_settings_that_do_not_go_together_are_one_clear_line(small_release, tmp_path):
    for settings, problem in (
        ({"to": "mteb"}, "--to mteb needs screenshots. Give the captures folder"),
        ({"to": "beir", "captures": Path("none"), "tokens": True}, "--to parquet, found --to beir"),
    ):
        with pytest.raises(ConfigError, match=problem):
            export(small_release, tmp_path / "out", ExportSettings(**settings))
    assert not (tmp_path / "out").exists()


def test_row_groups_are_bounded_in_bytes_too(small_release):
    pair = read_pairs(small_release)[0]
    heavy, light = Row(pair, bytes(6 * 10**6)), Row(pair, b"")
    found = [len(group) for group in groups([light] * 150 + [heavy] * 90)]
    assert found == [100, 92, 42, 6]
    assert list(groups([])) == []
