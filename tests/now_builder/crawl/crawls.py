"""Crawl pages of the awkward server, in this process or in a fork."""

import subprocess
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import pyarrow.parquet as pq

from now_builder.crawl.run import crawl
from now_builder.crawl.settings import CrawlSettings
from now_builder.formats.shard import CaptureRow, read_captures, read_rows

from .awkward import Awkward


def settings_for(server: Awkward, **changes: object) -> CrawlSettings:
    values = {"allow_private": True, "resolve": server.resolve, "page_timeout_s": 10.0}
    return CrawlSettings.model_validate(values | changes)


def write_list(folder: Path, lines: list[str]) -> Path:
    path = folder / "urls.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def many(count: int) -> list[str]:
    return [f"http://site{n % 9:02d}.test/page/{n}" for n in range(count)]


def visit(
    folder: Path, server: Awkward, paths: list[str], name: str = "captures", **changes: object
) -> dict[str, CaptureRow]:
    """Crawl paths of ``site.test``, or hosts with paths, and return the row of each."""
    urls = [f"http://{'site.test' * path.startswith('/')}{path}" for path in paths]
    crawl(write_list(folder, urls), folder / name, settings_for(server, **changes))
    rows = read_rows(folder / name)
    return {row.url.removeprefix("http://").removeprefix("site.test"): row for row in rows}


def start(urls: Path, captures: Path, settings: CrawlSettings) -> BaseProcess:
    """Start a crawl in a fork of this process."""
    process = get_context("fork").Process(target=crawl, args=(urls, captures, settings))
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # of a fork while the server's thread runs
        process.start()
    return process


def wait_until(reached: Callable[[], bool], process: BaseProcess | subprocess.Popen) -> None:
    """Wait until a condition holds or a process ends."""
    deadline = time.monotonic() + 90
    ended = process.poll if isinstance(process, subprocess.Popen) else lambda: process.exitcode
    while time.monotonic() < deadline and ended() is None:
        with suppress(OSError):  # a file may be removed meanwhile
            if reached():
                return
        time.sleep(0.02)


def done(captures: Path) -> int:
    """Count the pages with a row, in open and finished shards."""
    journals = captures.glob("*.open/journal.jsonl")
    rows = sum(path.read_bytes().count(b"\n") for path in journals)
    return rows + finished(captures)


def finished(captures: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in captures.glob("0*.parquet"))


def outcome(captures: Path) -> list[tuple[object, ...]]:
    """Return what must not depend on kills of the crawl."""
    pages = {capture.key: capture for capture in read_captures(captures)}
    return [
        (row.key, row.url, row.status, row.caption, row.lang, row.sha256, row.html_sha256,
         row.phash, pages[row.key].elements if row.status == "ok" else None)
        for row in read_rows(captures)
    ]  # fmt: skip
