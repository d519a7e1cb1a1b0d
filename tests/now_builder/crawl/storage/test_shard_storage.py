"""Captures in a store of objects: a real S3 server, machines that are lost, nothing doubled."""

import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import fsspec
import psutil
import pytest

from now_builder.crawl.run import crawl
from now_builder.crawl.status import crawl_status
from now_builder.crawl.storage.shard_storage import RemoteStorage, local_rows
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.shard import read_captures, read_plan, read_rows
from tests.now_builder.crawl.awkward import Awkward
from tests.now_builder.crawl.crawls import (
    done,
    finished,
    many,
    outcome,
    settings_for,
    start,
    wait_until,
    write_list,
)

pytestmark = [pytest.mark.browser]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """An empty bucket on a server of its own."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
    stores = fsspec.get_filesystem_class("s3")
    stores.clear_instance_cache()
    name = f"now-{uuid4().hex[:12]}"  # the server's stores outlive it
    fsspec.filesystem("s3").mkdir(name)
    yield f"s3://{name}"
    stores.clear_instance_cache()
    server.stop()


def download(url: str, folder: Path) -> Path:
    files, root = fsspec.core.url_to_fs(url)
    files.invalidate_cache()
    files.get(root, str(folder), recursive=True)
    return folder


def test_a_crawl_into_a_store_holds_what_a_crawl_into_a_folder_does(
    bucket: str, tmp_path: Path
) -> None:
    lines = [*many(12), "http://a.test/404", "http://site01.test/page/1"]
    with Awkward() as server:
        urls = write_list(tmp_path, lines)
        settings = settings_for(server, concurrency=3, shard_size=8, warc=True)
        here = crawl(urls, tmp_path / "here", settings)
        there = crawl(urls, f"{bucket}/captures", settings)
        assert (there.pages, there.statuses) == (here.pages, here.statuses)
        before = sum(server.hits.values())
        again = crawl(urls, f"{bucket}/captures", settings)
        assert (again.visited, sum(server.hits.values())) == (0, before)
    copy = download(f"{bucket}/captures", tmp_path / "copy")
    assert outcome(copy) == outcome(tmp_path / "here")
    assert read_plan(copy) == read_plan(tmp_path / "here")
    for ending in ("warc.gz", "cdxj"):
        names = sorted(path.name for path in copy.glob(f"*.{ending}"))
        assert names == sorted(path.name for path in (tmp_path / "here").glob(f"*.{ending}"))
        assert names
    assert (copy / "split.toml").read_bytes() == (tmp_path / "here" / "split.toml").read_bytes()
    assert crawl_status(f"{bucket}/captures").statuses == here.statuses
    assert not list((tmp_path / "cache").rglob("*.tar"))


def test_a_lost_machine_costs_its_open_shards_alone(bucket: str, tmp_path: Path) -> None:
    lines = many(20)
    captures = f"{bucket}/captures"
    with Awkward() as server:
        urls = write_list(tmp_path, lines)
        settings = settings_for(server, concurrency=2, shard_size=4, scratch=tmp_path / "one")
        process = start(urls, captures, settings)
        wait_until(lambda: done(tmp_path / "one") >= 10, process)
        descendants = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
        process.wait()
        psutil.wait_procs(descendants, timeout=15)
        with local_rows(captures) as folder:
            stored = finished(folder)
        assert 0 < stored < len(lines)
        shutil.rmtree(tmp_path / "one")
        other = settings.model_copy(update={"scratch": tmp_path / "two"})
        summary = crawl(urls, captures, other)
    assert summary.visited == len(lines) - stored
    copy = download(captures, tmp_path / "copy")
    assert Counter(row.url for row in read_rows(copy)) == Counter(lines)
    assert len({capture.key for capture in read_captures(copy)}) == len(lines)


def test_a_machine_that_comes_back_goes_on_with_its_open_shards(
    bucket: str, tmp_path: Path
) -> None:
    lines = many(14)
    captures = f"{bucket}/captures"
    with Awkward() as server:
        urls = write_list(tmp_path, lines)
        settings = settings_for(server, concurrency=2, scratch=tmp_path / "one")
        process = start(urls, captures, settings)
        wait_until(lambda: done(tmp_path / "one") >= 4, process)
        process.kill()
        process.wait()
        kept = done(tmp_path / "one")
        assert crawl(urls, captures, settings).visited == len(lines) - kept < len(lines)


def test_failures_in_a_store_are_retried(bucket: str, tmp_path: Path) -> None:
    captures = f"{bucket}/captures"
    with Awkward() as server:
        urls = write_list(tmp_path, ["http://a.test/plain", "http://a.test/later"])
        settings = settings_for(server, scratch=tmp_path / "one")
        assert crawl(urls, captures, settings).errors == {"http_404": 1}
        server.pages["/later"] = server.pages["/plain"]
        other = settings_for(server, scratch=tmp_path / "two", retry_failed=True)
        assert crawl(urls, captures, other).statuses == {"ok": 2}
    copy = download(captures, tmp_path / "copy")
    assert len(list(read_captures(copy))) == 2


def test_shares_crawled_apart_make_one_folder(bucket: str, tmp_path: Path) -> None:
    lines = many(12)
    with Awkward() as server:
        urls = write_list(tmp_path, lines)
        for share in range(3):
            settings = settings_for(
                server, shards_from=f"{share}/3", scratch=tmp_path / str(share), shard_size=4
            )
            crawl(urls, f"{bucket}/captures", settings)
    copy = download(f"{bucket}/captures", tmp_path / "copy")
    assert Counter(row.url for row in read_rows(copy)) == Counter(lines)
    assert not list(copy.glob("*.open"))


def test_force_starts_over_in_a_store(bucket: str, tmp_path: Path) -> None:
    with Awkward() as server:
        settings = settings_for(server, scratch=tmp_path / "one")
        crawl(write_list(tmp_path, many(3)), f"{bucket}/captures", settings)
        urls = write_list(tmp_path, ["http://a.test/plain"])
        crawl(urls, f"{bucket}/captures", settings, force=True)
    copy = download(f"{bucket}/captures", tmp_path / "copy")
    assert [row.url for row in read_rows(copy)] == ["http://a.test/plain"]


def test_a_store_that_cannot_be_reached_is_said(bucket: str, tmp_path: Path) -> None:
    urls = write_list(tmp_path, ["http://a.test/"])
    with Awkward() as server, pytest.raises(FormatError, match="s3://nothing-here"):
        crawl(urls, "s3://nothing-here/x", settings_for(server))
    with Awkward() as server, pytest.raises(ConfigError, match="nope://"):
        crawl(urls, "nope://x/y", settings_for(server))
    with pytest.raises(FormatError, match=r"plan\.parquet"):
        crawl_status(f"{bucket}/nothing")


def test_other_places_take_files_by_rename(tmp_path: Path) -> None:
    place = RemoteStorage(f"local://{tmp_path}/store", tmp_path / "scratch")
    (place.folder / "split.toml").write_text("x", encoding="utf-8")
    (place.folder / "plan.parquet").write_bytes(b"y")
    place.store_plan()
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == [
        "plan.parquet",
        "split.toml",
    ]
