"""Crawls on two real Ray workers, one of them killed: nothing is lost or repeated."""

import json
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from now_builder.crawl import run as crawl_run
from now_builder.crawl.plan import planning
from now_builder.crawl.plan.planning import make_plan
from now_builder.crawl.run import crawl
from now_builder.crawl.settings import CrawlSettings
from now_builder.errors import ConfigError, CrawlError
from now_builder.formats.shard import read_rows
from tests.now_builder.crawl.awkward import Awkward
from tests.now_builder.crawl.crawls import done, many, outcome, settings_for, start, write_list

pytestmark = [
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning"),
]

ON_RAY = {"engine": "ray", "worker_cpus": 0.5}


def workers() -> list[psutil.Process]:
    """List the actors that this test started."""
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if child.name().startswith("ray::") and "run" in child.name()
    ]


class Killer(threading.Thread):
    """Kills a worker once some pages are done."""

    def __init__(self, captures: Path, pages: int) -> None:
        super().__init__()
        self.captures, self.pages = captures, pages
        self.killed = 0

    def run(self) -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not self.killed:
            # A worker that has just ended by itself does not count as killed.
            with suppress(psutil.NoSuchProcess):
                if done(self.captures) >= self.pages and (running := workers()):
                    running[0].kill()
                    self.killed = running[0].pid
            time.sleep(0.05)


@pytest.mark.slow
def test_a_killed_worker_costs_nothing_that_was_final(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(planning, "_SHARD_SIZE", 6)
    lines = many(18)
    with Awkward() as server:
        urls = write_list(tmp_path, lines)
        settings = settings_for(server, **ON_RAY, concurrency=2)
        captures = tmp_path / "captures"
        killer = Killer(captures, 7)
        killer.start()
        summary = crawl(urls, captures, settings)
        killer.join()
        assert killer.killed
        assert summary.statuses == {"ok": len(lines)}
        visits = sum(n for path, n in server.hits.items() if path.startswith("/page/"))
        assert visits <= len(lines) + 2 * 2  # what was in flight in the killed worker, and retries
        crawl(urls, tmp_path / "local", settings_for(server))
    assert outcome(captures) == outcome(tmp_path / "local")
    assert Counter(row.url for row in read_rows(captures)) == Counter(lines)
    assert not list(captures.glob("*.open*"))
    assert not (captures / "poison.json").exists()


@pytest.mark.slow
def test_shards_that_no_worker_survives_are_set_aside_and_the_others_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crawl_run, "_ATTEMPTS", 2)
    monkeypatch.setattr(planning, "_SHARD_SIZE", 1)
    lines = [f"http://site{n:02d}.test/page/{n}" for n in range(8)]
    with Awkward() as server:
        urls = write_list(tmp_path, lines)
        settings = settings_for(server, **ON_RAY)
        captures = tmp_path / "captures"
        captures.mkdir()
        make_plan(captures, lines, settings)
        # A folder where the journal of a shard should be: writing it fails on every worker.
        (captures / "00003.open" / "journal.jsonl").mkdir(parents=True)
        with pytest.raises(CrawlError, match=r"poison\.json"):
            crawl(urls, captures, settings)
        poison = json.loads((captures / "poison.json").read_text("utf-8"))
        assert [entry["shards"] for entry in poison] == [[3]]
        (captures / "00003.open" / "journal.jsonl").rmdir()
        summary = crawl(urls, captures, settings)
    assert summary.statuses == {"ok": len(lines)}
    assert summary.visited == sum(row.key.startswith("00003") for row in read_rows(captures))
    assert not (captures / "poison.json").exists()


def test_shares_and_ray_do_not_go_together(tmp_path: Path) -> None:
    urls = write_list(tmp_path, ["http://a.test/"])
    settings = CrawlSettings.model_validate(ON_RAY | {"shards_from": "0/2"})
    with pytest.raises(ConfigError, match="--shards-from"):
        crawl(urls, tmp_path / "captures", settings)


def test_shares_crawled_at_once_into_one_folder_make_it_whole(tmp_path: Path, monkeypatch) -> None:
    """Like a Slurm array; the last process may find nothing to do."""
    monkeypatch.setattr(planning, "_SHARD_SIZE", 4)
    lines = many(18)
    captures = tmp_path / "captures"
    with Awkward() as server:
        urls = write_list(tmp_path, lines)
        processes = []
        for share in range(3):
            settings = settings_for(
                server, shards_from=f"{share}/3", concurrency=2, page_timeout_s=20.0
            )
            processes.append(start(urls, captures, settings))
        for process in processes:
            process.join(120)
        assert [process.exitcode for process in processes] == [0, 0, 0]
        visits = sum(n for path, n in server.hits.items() if path.startswith("/page/"))
    assert visits == len(lines)
    assert Counter(row.url for row in read_rows(captures)) == Counter(lines)
