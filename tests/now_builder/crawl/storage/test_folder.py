"""Files in a captures folder that the crawl did not write are kept, whatever their names."""

from pathlib import Path

import pytest

from now_builder.crawl.plan.planning import make_plan
from now_builder.crawl.settings import CrawlSettings
from now_builder.crawl.status import crawl_status
from now_builder.crawl.storage.folder import start_over, sweep, sweep_plan
from now_builder.crawl.storage.shard_writer import open_path, open_shards
from now_builder.errors import ConfigError, CrawlError
from now_builder.formats.shard import complete_shards, plan_path

NOT_OURS = (
    "2019.parquet", "2024.tar", "000012.parquet", "00000.parquet.bak", "x00000.parquet",
    "00009.tar", "00007.parquet", "1.open", "00008.open", "00000.open.backup", ".staging.tmp",
    ".00000.tar.draft.tmp", ".plan.parquet.mine.tmp", ".00009.tar.1.2.tmp",
    "\u0660\u0660\u0660\u0660\u0660.parquet", "poison.json",
)  # fmt: skip
OURS = (
    "00000.parquet", "00000.tar", "00000.open", "00000.open.new",
    "00000.open.drop", ".00000.tar.140.99.tmp", ".00000.parquet.99.tmp",
)  # fmt: skip
TORN = (".plan.parquet.140.99.tmp", ".split.toml.140.99.tmp", ".plan.parquet.99.tmp")
URLS = ["http://a.test/"]


def plant(folder: Path, names: tuple[str, ...]) -> None:
    for name in names:
        if ".open" in name:
            (folder / name).mkdir()
        else:
            (folder / name).write_text(name, "utf-8")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {".plan.lock"}


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    """A folder with a plan of one shard, 0, and with files of others."""
    make_plan(tmp_path, URLS, CrawlSettings())
    plant(tmp_path, NOT_OURS)
    return tmp_path


def test_a_start_sweeps_torn_files_of_its_shards_and_of_the_plan_only(planned: Path) -> None:
    plant(planned, OURS + TORN)
    sweep(planned, {0})
    make_plan(planned, URLS, CrawlSettings())
    kept = {name for name in OURS if name.startswith("0") and name.count(".open.") == 0}
    assert names(planned) == {*NOT_OURS, *kept, "plan.parquet", "split.toml"}


def test_a_kill_while_starting_over_leaves_the_plan(
    planned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(planned, OURS)
    unlink = Path.unlink
    removed = []

    def killed(path: Path, **options: bool) -> None:
        if len(removed) == 2:
            raise KeyboardInterrupt
        removed.append(path.name)
        unlink(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            start_over(planned)
    assert removed[0] == "00000.parquet"
    assert plan_path(planned).exists()
    start_over(planned)
    assert names(planned) == set(NOT_OURS)


def test_names_that_only_resemble_shards_do_not_count(planned: Path) -> None:
    assert complete_shards(planned) == [7]
    assert open_shards(planned) == [8]
    open_path(planned, 0).write_text("not a folder", "ascii")
    status = crawl_status(planned)
    assert (status.finished, status.to_do) == (0, 1)


def test_files_of_others_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / ".plan.lock").write_text("mine", "ascii")
    plant(tmp_path, ("00000.tar",))
    with pytest.raises(CrawlError, match=r"00000\.tar: not part of a plan"):
        make_plan(tmp_path, URLS, CrawlSettings())
    assert names(tmp_path) == {"00000.tar"}
    (tmp_path / "00000.tar").rename(tmp_path / "split.toml")
    with pytest.raises(ConfigError, match=r"split\.toml"):
        make_plan(tmp_path, URLS, CrawlSettings())
    assert (tmp_path / "split.toml").read_text("ascii") == "00000.tar"
    sweep_plan(tmp_path)
    assert (tmp_path / ".plan.lock").read_text("ascii") == "mine"
