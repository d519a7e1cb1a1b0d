"""Processes that die or use too much memory during a crawl."""

import asyncio
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from playwright.async_api import BrowserContext

from now_builder.crawl.browser import pool
from now_builder.crawl.run import crawl
from now_builder.formats.shard import read_rows

from .awkward import Awkward
from .crawls import many, settings_for, write_list

pytestmark = [pytest.mark.browser]


def family(process: psutil.Process | None = None) -> list[psutil.Process]:
    return (process or psutil.Process()).children(recursive=True)


def kill_all(word: str, process: psutil.Process | None = None) -> int:
    killed = 0
    for child in family(process):
        with suppress(psutil.Error):
            if word in " ".join(child.cmdline()):
                child.kill()
                killed += 1
    return killed


@pytest.fixture
def known() -> set[psutil.Process]:
    """Processes left by other tests, such as helpers of multiprocessing."""
    return set(family())


def orphans(known: set[psutil.Process]) -> list[str]:
    """List unknown processes that still run after 10 s, without zombies."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        left = []
        for child in set(family()) - known:
            with suppress(psutil.Error):
                if child.status() != psutil.STATUS_ZOMBIE:
                    left.append(" ".join(child.cmdline())[:100])
        if not left:
            break
        time.sleep(0.1)
    return left


def test_a_page_whose_renderer_dies_is_visited_once_more(tmp_path: Path) -> None:
    with Awkward() as server:

        def kill() -> None:
            deadline = time.monotonic() + 60
            while not server.hits["/hang"] and time.monotonic() < deadline:
                time.sleep(0.02)
            time.sleep(0.3)
            kill_all("--type=renderer")

        killer = threading.Thread(target=kill)
        killer.start()
        urls = write_list(tmp_path, [server.url("/css")])
        crawl(urls, tmp_path / "captures", settings_for(server, robots=False))
        killer.join()
    (row,) = read_rows(tmp_path / "captures")
    assert (row.error, row.attempts) == (None, 2)


def test_a_captured_page_is_not_visited_again_if_its_browser_dies_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: set[psutil.Process]
) -> None:
    close, killed = BrowserContext.close, []

    async def dying(self: BrowserContext) -> None:
        if not killed:
            killed.append(kill_all("--headless"))
        await close(self)

    monkeypatch.setattr(BrowserContext, "close", dying)
    with Awkward() as server:
        urls = write_list(tmp_path, many(2))
        summary = crawl(urls, tmp_path / "captures", settings_for(server, concurrency=1))
    assert killed[0]
    assert summary.statuses == {"ok": 2}
    assert {row.attempts for row in read_rows(tmp_path / "captures")} == {1}
    assert orphans(known) == []


def test_a_browser_with_too_much_memory_is_replaced_and_no_page_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: set[psutil.Process]
) -> None:
    started = []
    launch = pool.BrowserPool._launch

    async def counted(self: pool.BrowserPool) -> object:
        started.append(1)
        return await launch(self)

    close = BrowserContext.close

    async def slowly(self: BrowserContext) -> None:
        await asyncio.sleep(0.3)  # the next page must not replace a browser that is in use
        await close(self)

    monkeypatch.setattr(BrowserContext, "close", slowly)
    monkeypatch.setattr(pool.BrowserPool, "_launch", counted)
    monkeypatch.setattr(pool, "_MOST_MB", 1)
    monkeypatch.setattr(pool, "_FEWEST_PAGES", 3)
    monkeypatch.setattr(pool, "_WATCH_S", 0.05)
    with Awkward() as server:
        urls = write_list(tmp_path, many(10))
        summary = crawl(urls, tmp_path / "captures", settings_for(server, concurrency=2))
    assert summary.statuses == {"ok": 10}
    assert {row.attempts for row in read_rows(tmp_path / "captures")} == {1}
    assert 3 <= len(started) <= 6
    assert set(family()) <= known


def test_a_browser_that_does_not_close_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: set[psutil.Process]
) -> None:
    """The browser is suspended just before it is closed."""
    monkeypatch.setattr(pool, "_CLOSE_S", 1.0)
    end = pool.BrowserPool._end

    async def stopped(self: pool.BrowserPool, launched: pool._Launched) -> None:
        assert launched.process is not None
        launched.process.suspend()
        await end(self, launched)

    monkeypatch.setattr(pool.BrowserPool, "_end", stopped)
    with Awkward() as server:
        urls = write_list(tmp_path, many(2))
        crawl(urls, tmp_path / "captures", settings_for(server))
    assert set(family()) <= known
