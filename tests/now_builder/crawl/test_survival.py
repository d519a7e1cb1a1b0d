"""What happens beside the pages: processes that die, memory, full disks, bad certificates."""

import asyncio
import shutil
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest
from playwright.async_api import BrowserContext

from now_builder.crawl.browser import pool
from now_builder.crawl.run import crawl
from now_builder.formats.shard import read_captures, read_rows

from .awkward import Awkward
from .crawls import many, settings_for, write_list

pytestmark = [pytest.mark.browser]

_SUBREAPER = 36
COMMAND = [sys.executable, "-c", "from now_builder.cli import main; main()", "crawl"]


def options_for(server: Awkward) -> list[str]:
    return ["--allow-private", "--resolve", server.resolve[0], "--concurrency", "2"]


def family(process: psutil.Process | None = None) -> list[psutil.Process]:
    return (process or psutil.Process()).children(recursive=True)


def kill_all(kind: str, process: psutil.Process | None = None) -> int:
    killed = 0
    for child in family(process):
        with suppress(psutil.Error):
            if kind in " ".join(child.cmdline()):
                child.kill()
                killed += 1
    return killed


@pytest.fixture
def known() -> set[psutil.Process]:
    """What other tests left to this process: helpers of multiprocessing, for example."""
    return set(family())


def orphans(known: set[psutil.Process]) -> list[str]:
    """Name what still runs after 10 s and is not known; a zombie here only waits for us."""
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


@pytest.mark.parametrize("retries", [0, 1])
def test_a_renderer_that_dies_in_mid_page_is_that_pages_failure(
    tmp_path: Path, retries: int
) -> None:
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
        crawl(urls, tmp_path / "captures", settings_for(server, retries=retries, robots=False))
        killer.join()
    (row,) = read_rows(tmp_path / "captures")
    assert (row.error, row.attempts) == (None if retries else "renderer_crashed", 1 + retries)


def test_a_page_that_was_captured_is_not_visited_again_if_its_browser_dies_then(
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


def test_a_browser_that_holds_too_much_is_replaced_and_nothing_is_lost(
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


def test_a_browser_that_does_not_close_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: set[psutil.Process]
) -> None:
    """The browser is stopped in its tracks just before it is asked to close."""
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


# --- a full disk ---


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4k", "none", folder], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("no file system may be mounted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def resize(disk: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", disk], check=True)


@pytest.mark.skipif(shutil.which("mount") is None, reason="mounts a small file system")
def test_a_full_disk_stops_the_crawl_in_one_line_and_it_goes_on_when_there_is_room(
    small_disk: Path, tmp_path: Path
) -> None:
    captures = small_disk / "captures"
    said = []
    with Awkward() as server:
        urls = write_list(tmp_path, many(12))
        for size in ("4k", "64k", "320k", "50m"):  # for no plan, no page, no shard; for all
            resize(small_disk, size)
            done = subprocess.run(
                [*COMMAND, str(urls), str(captures), *options_for(server)],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            said.append((size, done.returncode, (done.stderr.splitlines() or [""])[-1]))
            assert "Traceback" not in done.stderr, done.stderr
            if done.returncode == 0:
                break
    for size, code, line in said[:-1]:
        assert code == 1, size
        assert line.startswith("error: ")
        assert "No space left" in line
        assert "kept" in line
        assert "run the same command again" in line
    assert said[-1][1] == 0
    rows = read_rows(captures)
    assert [row.url for row in rows if row.status == "ok"] == [row.url for row in rows]
    assert sorted(row.url for row in rows) == sorted(many(12))
    assert {capture.key for capture in read_captures(captures)} == {row.key for row in rows}


# --- certificates ---

CONFIG = """
[ca]
default_ca = here
[here]
database = index.txt
new_certs_dir = .
serial = serial
default_md = sha256
policy = any
[any]
commonName = supplied
"""


def certificate(folder: Path, host: str, start: str, end: str) -> ssl.SSLContext:
    folder.mkdir()
    (folder / "ca.conf").write_text(CONFIG, "ascii")
    (folder / "index.txt").touch()
    (folder / "serial").write_text("01", "ascii")
    for command in (
        ["req", "-new", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={host}", "-addext",
         f"subjectAltName=DNS:{host}", "-keyout", "key.pem", "-out", "request.pem"],
        ["ca", "-batch", "-selfsign", "-config", "ca.conf", "-startdate", start, "-enddate", end,
         "-keyfile", "key.pem", "-in", "request.pem", "-out", "cert.pem", "-notext"],
    ):  # fmt: skip
        subprocess.run(["openssl", *command], check=True, capture_output=True, cwd=folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")
def test_what_is_wrong_with_a_certificate_is_a_row(tmp_path: Path) -> None:
    """Plain requests for robots.txt find it, or the browser."""
    past, now, future = "200101000000Z", "240101000000Z", "20901231000000Z"
    contexts = {
        "expired": certificate(tmp_path / "1", "expired.test", past, "200201000000Z"),
        "self-signed": certificate(tmp_path / "2", "self-signed.test", now, future),
        "wrong-host": certificate(tmp_path / "3", "other.example", now, future),
    }
    with ExitStack() as stack:
        resolve = []
        for name, context in contexts.items():
            server = stack.enter_context(Awkward(context))
            resolve.append(f"{name}.test:127.0.0.1:{server.port}")
        urls = write_list(tmp_path, [f"https://{name}.test/plain" for name in contexts])
        for robots in (True, False):
            captures = tmp_path / str(robots)
            crawl(urls, captures, settings_for(server, resolve=resolve, robots=robots))
            rows = read_rows(captures)
            assert [(row.status, row.error) for row in rows] == [("failed", "tls_error")] * 3
            assert all(row.error_message for row in rows)
