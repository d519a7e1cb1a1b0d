"""The crawler against the plain Playwright recipe: pages a second, CPU a page, the same pixels.

Plain: one context, page after page, goto, the same rule for a settled page, the same elements, a
PNG, BeautifulSoup on the source, all stored. Both visit the same pages of a simulated web on this
machine. CPU seconds are those of each way's processes alone.

    python benchmarks/crawl.py                          # without and with 300 ms of latency
    python benchmarks/crawl.py --pages 60 --latency-ms 0
"""

import argparse
import ctypes
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bs4 import BeautifulSoup
from playwright.sync_api import Page, sync_playwright

from now_builder.crawl.browser.pool import user_agent
from now_builder.crawl.browser.scripts import ELEMENTS, FREEZE, WATCH, WATCHED
from now_builder.crawl.browser.tab import SCALE, SCREEN
from now_builder.crawl.run import crawl
from now_builder.crawl.settings import CrawlSettings
from now_builder.formats.shard import read_captures, read_rows
from now_builder.machine.chromium import find_chromium
from now_builder.simweb.make import make
from now_builder.simweb.settings import SimwebSettings

WAYS = ("plain", "ours")
SETTLE_S, POLL_MS, POLLS = 3.0, 30, 100
_SET_CHILD_SUBREAPER = 36


def launch_options(address: str) -> dict[str, Any]:
    return {
        "executable_path": find_chromium(),
        "chromium_sandbox": False,
        "args": [
            f"--host-resolver-rules=MAP *.test {address}",
            "--hide-scrollbars",
            "--font-render-hinting=none",
        ],
    }


def context_options(version: str) -> dict[str, Any]:
    return {
        "viewport": SCREEN,
        "screen": SCREEN,
        "device_scale_factor": SCALE,
        "is_mobile": True,
        "has_touch": True,
        "user_agent": user_agent(version, ""),
        "reduced_motion": "reduce",
    }


@contextmanager
def phone(address: str) -> Iterator[Page]:
    """Yield a page of a phone-sized context whose hosts are mapped to the server."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**launch_options(address))
        yield browser.new_context(**context_options(browser.version)).new_page()
        browser.close()


def plain(urls: list[str], address: str, out: Path) -> dict[str, str]:
    """Visit page after page; return the hash of each screenshot."""
    hashes = {}
    with phone(address) as page:
        for number, url in enumerate(urls):
            response = page.goto(url, wait_until="load")
            page.evaluate(WATCH)
            for _ in range(POLLS):
                if page.evaluate(WATCHED)["rest"]:
                    break
                page.wait_for_timeout(POLL_MS)
            page.evaluate(FREEZE)
            if response is not None:
                elements = page.evaluate(ELEMENTS)
                source = response.body()
                meta = BeautifulSoup(source, "lxml").find("meta", attrs={"name": "description"})
                record = {"url": url, "caption": meta and meta.get("content"), **elements}
                (out / f"{number}.json").write_text(json.dumps(record), "utf-8")
                (out / f"{number}.html").write_bytes(source)
            shot = page.screenshot(path=out / f"{number}.png")
            hashes[url] = hashlib.sha256(shot).hexdigest()
    return hashes


def ours(folder: Path, address: str, out: Path) -> dict[str, str]:
    """Crawl the same list."""
    settings = CrawlSettings(
        allow_private=True, resolve=[f"*.test:{address}"], settle_s=SETTLE_S, robots=False
    )
    crawl(folder / "urls.txt", out, settings)
    urls = {row.key: row.url for row in read_rows(out)}
    return {
        urls[shot.key]: hashlib.sha256(shot.screenshot).hexdigest() for shot in read_captures(out)
    }


def one_way(way: str, folder: Path, address: str) -> None:
    """Crawl in one way and print hashes and times as JSON."""
    urls = (folder / "urls.txt").read_text("utf-8").split()
    with tempfile.TemporaryDirectory() as out:
        begun = time.perf_counter()
        if way == "ours":
            hashes = ours(folder, address, Path(out) / "captures")
        else:
            hashes = plain(urls, address, Path(out))
        seconds = time.perf_counter() - begun
    print(json.dumps({"seconds": seconds, "hashes": hashes}))


@contextmanager
def served(folder: Path, latency_ms: int = 0) -> Iterator[str]:
    """Serve the simulated web in another process; yield its address."""
    ready = folder / "address"
    ready.unlink(missing_ok=True)  # of an earlier server
    main = "from now_builder.cli import main; main()"
    server = subprocess.Popen(
        [sys.executable, "-c", main, "simweb", "serve", str(folder), "--port", "0",
         "--ready-file", str(ready), "--latency-ms", str(latency_ms)],
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while not ready.exists():
            time.sleep(0.05)
        yield ready.read_text("utf-8").strip()
    finally:
        server.terminate()
        server.wait()


def compare(folder: Path, latency_ms: int) -> None:
    """Run each way in a new process with a new server, and print the ratios."""
    results = {}
    for way in WAYS:
        with served(folder, latency_ms) as address:
            before = spent()
            process = subprocess.Popen(
                [sys.executable, __file__, "--way", way, str(folder), address],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            output = process.communicate()[0]
            cpu = spent() - before
        results[way] = {**json.loads(output), "cpu": cpu}
    print(f"\n{latency_ms} ms of latency, {len(results['plain']['hashes'])} pages")
    print(f"{'way':8} {'pages/s':>8} {'CPU s/page':>11} {'x plain':>8} {'same pixels':>12}")
    for way, figures in results.items():
        pages = len(figures["hashes"])
        same = sum(results["plain"]["hashes"].get(u) == h for u, h in figures["hashes"].items())
        rate = pages / figures["seconds"]
        ratio = rate / (len(results["plain"]["hashes"]) / results["plain"]["seconds"])
        print(f"{way:8} {rate:8.2f} {figures['cpu'] / pages:11.3f} {ratio:8.2f} {same:8d}/{pages}")


def adopt_descendants() -> None:
    """Adopt processes whose parent has ended (Linux), so that their CPU time counts."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def spent() -> float:
    """Return the CPU seconds of all ended descendants of this process."""
    time.sleep(1)  # a browser's child processes end a moment later
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Parse, make the pages, compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pages", type=int, default=120)
    parser.add_argument("--latency-ms", type=int, nargs="*", default=[0, 300])
    parser.add_argument("--way", nargs=3, metavar=("WAY", "FOLDER", "ADDRESS"))
    options = parser.parse_args()
    if options.way:
        way, folder, address = options.way
        one_way(way, Path(folder), address)
        return
    adopt_descendants()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "web"
        make(folder, SimwebSettings(pages=options.pages, awkward=0))
        for latency_ms in options.latency_ms:
            compare(folder, latency_ms)


if __name__ == "__main__":
    main()
