"""A long crawl of a simulated web, killed at random, and the ledger of what it lost or doubled.

A crawl is killed again and again, whole or one of its processes, and run again each time. At the
end every URL must have one row, every captured page one set of members, and the server's own list
of requests says how many pages were visited more than once. Without kills it shows memory instead.

    python benchmarks/soak.py --pages 5000 --kills 25
    python benchmarks/soak.py --pages 5000 --kills 0 --picture docs/memory.svg
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from now_builder.crawl.status import crawl_status
from now_builder.formats.shard import read_captures, read_plan, read_rows
from now_builder.simweb.make import make
from now_builder.simweb.settings import SimwebSettings

MAIN = "from now_builder.cli import main; main()"
EVERY_S = 5.0
WIDTH, HEIGHT = 720, 320
COLOURS = {"browsers": "#1f6fb2", "driver": "#c8701a", "python": "#3a8a3a"}


class Look(NamedTuple):
    """What was seen at one moment: rows so far, and memory by kind of process."""

    rows: int
    megabytes: dict[str, float]


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """A server of its own, which writes down each request."""
    ready = folder / "address"
    ready.unlink(missing_ok=True)  # of a server before this one
    server = subprocess.Popen(
        [sys.executable, "-c", MAIN, "simweb", "serve", str(folder), "--port", "0",
         "--ready-file", str(ready), "--access-log", str(folder / "requests.txt")],
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while not ready.exists():
            time.sleep(0.05)
        yield ready.read_text("utf-8").strip()
    finally:
        server.terminate()
        server.wait()


def start(folder: Path, address: str, captures: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, "crawl", str(folder / "urls.txt"), str(captures),
         "--allow-private", "--resolve", f"*.test:{address}", "--page-timeout-s", "10",
         "--no-robots"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip


def megabytes(process: subprocess.Popen[bytes]) -> dict[str, float]:
    """Proportional memory of the crawl's processes, by kind."""
    found: Counter[str] = Counter()
    with suppress(psutil.Error):
        root = psutil.Process(process.pid)
        for one in [root, *root.children(recursive=True)]:
            with suppress(psutil.Error):
                name = one.name()
                kind = "browsers" if "chrom" in name else "driver" if "node" in name else "python"
                found[kind] += one.memory_full_info().pss / 2**20
    return dict(found)


def rows_so_far(captures: Path) -> int:
    with suppress(Exception):  # between two renames of the crawl
        return crawl_status(captures).statuses.total()
    return 0


def killed(folder: Path, address: str, captures: Path, options: argparse.Namespace) -> int:
    """Crawl with kills at even shares of the pages, on average; gives how often rows got fewer."""
    rng = random.Random(options.seed)
    lost = before = 0
    for kill in range(options.kills):
        process = start(folder, address, captures)
        goal = options.pages * (kill + rng.random()) / options.kills
        while process.poll() is None and rows_so_far(captures) < goal:
            time.sleep(1.0)
        family = (
            psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        )
        one = rng.random() < 0.5 and family
        if one:  # one of its processes first: the crawl has to live with that
            with suppress(psutil.Error):
                rng.choice(family).kill()
            time.sleep(rng.uniform(0, 5))
        process.send_signal(signal.SIGKILL)
        process.wait()
        _, alive = psutil.wait_procs(family, timeout=20)
        rows = rows_so_far(captures)
        lost += rows < before
        before = rows
        print(f"kill {kill + 1:2d}: {rows:5d} rows, {'a process, then all' if one else 'all'}, "
              f"{len(alive)} processes left", flush=True)  # fmt: skip
    if start(folder, address, captures).wait():
        raise SystemExit("the crawl failed")
    return lost


def calm(folder: Path, address: str, captures: Path) -> list[Look]:
    """Crawl once and look at the memory every few seconds."""
    process = start(folder, address, captures)
    seen = []
    while process.poll() is None:
        seen.append(Look(rows_so_far(captures), megabytes(process)))
        time.sleep(EVERY_S)
    if process.returncode:
        raise SystemExit("the crawl failed")
    return seen[1:]


def check(folder: Path, captures: Path) -> None:
    """Print the ledger."""
    listed = Counter((folder / "urls.txt").read_text("utf-8").split())
    rows = read_rows(captures)
    members = Counter(capture.key for capture in read_captures(captures))
    requests = Counter((folder / "requests.txt").read_text("utf-8").split())
    pages = {row.url_canonical.partition("://")[2] for row in rows}
    asked = {page: requests[page] for page in pages if page in requests}
    found = {
        "listed": listed.total(),
        "planned": len(read_plan(captures)),
        "rows": len(rows),
        "urls without their rows": (listed - Counter(row.url for row in rows)).total(),
        "rows too many": (Counter(row.url for row in rows) - listed).total(),
        "statuses": Counter(row.status for row in rows),
        "reasons": Counter(row.error for row in rows if row.error and row.status != "duplicate"),
        "captured pages without members": sum(
            row.status == "ok" and members[row.key] != 1 for row in rows
        ),
        "members without a captured page": len(
            set(members) - {row.key for row in rows if row.status == "ok"}
        ),
        "pages asked for": len(asked),
        "asked for more than once": sum(count > 1 for count in asked.values()),
        "open shards left": len(list(captures.glob("*.open*"))),
    }
    print(json.dumps(found, indent=1, ensure_ascii=False))


def draw(seen: list[Look], path: Path) -> None:
    """Write memory over pages as SVG."""
    pages = max(look.rows for look in seen) or 1
    most = 1.1 * max(sum(look.megabytes.values()) for look in seen)
    across, up = WIDTH - 80, HEIGHT - 60  # the plot: 60 px free on its left, 40 px below it
    parts = []
    for step in range(5):
        x, y = 60 + step / 4 * across, HEIGHT - 40 - step / 4 * up
        parts.append(f'<path d="M60 {y:.0f}h{across}" stroke="#ddd"/>')
        parts.append(text(54, y + 4, f"{most * step / 4:.0f}", "end"))
        parts.append(text(x, HEIGHT - 22, f"{pages * step / 4:.0f}", "middle"))
    for place, (kind, colour) in enumerate(COLOURS.items()):
        points = " ".join(
            f"{60 + look.rows / pages * across:.1f},"
            f"{HEIGHT - 40 - look.megabytes.get(kind, 0) / most * up:.1f}"
            for look in seen
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
        parts.append(text(70 + 90 * place, 16, kind, "start", colour))
    parts.append(text(60 + across / 2, HEIGHT - 6, "pages done", "middle"))
    parts.append(text(WIDTH - 20, 16, "proportional memory, MB", "end"))
    size = f'width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12"'
    ground = '<rect width="100%" height="100%" fill="#fff"/>'
    body = "\n".join([ground, *parts])
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n{body}\n</svg>\n', "utf-8")


def text(x: float, y: float, words: str, anchor: str, colour: str = "#000") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{colour}">{words}</text>'


def report(seen: list[Look]) -> None:
    """Print the mean memory of each quarter of the crawl."""
    for quarter in range(4):
        part = seen[len(seen) * quarter // 4 : len(seen) * (quarter + 1) // 4] or seen
        mean = {kind: sum(look.megabytes.get(kind, 0) for look in part) / len(part)
                for kind in COLOURS}  # fmt: skip
        peak = max(sum(look.megabytes.values()) for look in part)
        listed = ", ".join(f"{kind} {value:.0f}" for kind, value in mean.items())
        print(f"quarter {quarter + 1}: {listed} MB on average, {peak:.0f} MB at most")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pages", type=int, default=200)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", type=Path, help="write memory over pages there, as SVG")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder, captures = Path(made) / "web", Path(made) / "captures"
        make(folder, SimwebSettings(pages=options.pages, sites=min(400, options.pages // 12 + 1)))
        begun = time.monotonic()
        with served(folder) as address:
            if options.kills:
                print("rows got fewer:", killed(folder, address, captures, options), "times")
            else:
                seen = calm(folder, address, captures)
                report(seen)
                if options.picture:
                    draw(seen, options.picture)
        print(f"{time.monotonic() - begun:.0f} s")
        check(folder, captures)


if __name__ == "__main__":
    main()
