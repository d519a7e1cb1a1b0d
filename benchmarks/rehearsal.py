"""All stages on a large simulated web with default settings, each killed once.

A stage's process and its children are killed by SIGKILL after a share of the expected time; the
same command then resumes and finishes. For each stage it prints the seconds of both parts, the
maximum private memory of its processes (resident minus shared) and the size of its output; then an
extrapolation to 100,000 pages, in proportion. An interrupted rehearsal resumes: finished stages are
not repeated.

    python -m benchmarks.rehearsal --pages 10000 --folder /where/there/are/10/GB
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.crawl import served
from now_builder.formats.shard import read_rows
from now_builder.simweb.make import make
from now_builder.simweb.settings import SimwebSettings

PACKAGES = {"now-builder": "now_builder", "pc2-baseline": "pc2_baseline"}
FULL = 100_000
KILLED = {
    "crawl": 70.0, "detect": 30.0, "tokenize": 1.5, "package": 1.0, "verify": 0.5, "report": 1.0,
    "train": 15.0, "predict": 2.0, "score": 1.0,
}  # fmt: skip
"""Seconds per thousand pages after which a stage is killed, unless it has ended."""


class Cost(NamedTuple):
    """Cost of a stage: wall-clock and CPU seconds, maximum MiB, MB written."""

    seconds: float
    cpu: float
    memory: float
    disk: float


def held_by(root: psutil.Process, cpu: dict[int, float]) -> float:
    """Return the private MiB of a process and its children; record their CPU seconds."""
    memory = 0.0
    with suppress(psutil.Error):
        for one in [root, *root.children(recursive=True)]:
            with suppress(psutil.Error):
                now, times = one.memory_info(), one.cpu_times()
                memory += (now.rss - now.shared) / 2**20
                cpu[one.pid] = times.user + times.system
    return memory


def measure(command: Sequence[str | Path], written: Path, kill_after: float | None = None) -> Cost:
    """Run a command, kill it after ``kill_after`` seconds if given, and return its cost."""
    start, most = time.perf_counter(), 0.0
    cpu: dict[int, float] = {}
    line = list(map(str, command))
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        root, killed = psutil.Process(process.pid), False
        while process.poll() is None:
            most = max(most, held_by(root, cpu))
            if kill_after is not None and time.perf_counter() - start > kill_after:
                os.killpg(process.pid, signal.SIGKILL)
                killed = True
                break
            time.sleep(0.1)
    if process.returncode and not killed:
        sys.exit(f"{' '.join(line)}: exit status {process.returncode}")
    return Cost(time.perf_counter() - start, sum(cpu.values()), most, megabytes_of(written))


def megabytes_of(written: Path) -> float:
    """Return the size of a file, or of all files of a folder, in MB; 0 without any."""
    files = [path for path in (written, *written.rglob("*")) if path.is_file()]
    return sum(path.stat().st_size for path in files) / 1e6


def twice(name: str, command: Sequence[str | Path], written: Path, pages: int) -> Cost:
    """Run a stage that is killed once and resumed."""
    program, *words = map(str, command)
    module = PACKAGES.get(program, "leaderboard")
    line = [sys.executable, "-c", f"from {module}.cli import main; main()", *words]
    first = measure(line, written, KILLED[name] * pages / 1000)
    second = measure(line, written)
    seconds, cpu = first.seconds + second.seconds, first.cpu + second.cpu
    return Cost(seconds, cpu, max(first.memory, second.memory), second.disk)


def commands(folder: Path, address: str) -> Iterator[tuple[str, list[str | Path], Path]]:
    """List the stages: name, command, output."""
    captures, features, tokens = folder / "captures", folder / "features.h5", folder / "captions"
    release, trained, report = folder / "release", folder / "run", folder / "report.html"
    packed, result = folder / "submission.zip", folder / "result.json"
    yield "crawl", [
        "now-builder", "crawl", folder / "urls.txt", captures, "--allow-private",
        "--resolve", f"*.test:{address}",
    ], captures  # fmt: skip
    yield "detect", ["now-builder", "detect", captures, features], features
    yield "tokenize", ["now-builder", "tokenize", captures, tokens, "--bert", "learn"], tokens
    package: list[str | Path] = ["now-builder", "package", captures, features, tokens, release]
    yield "package", [*package, "--matched", folder / "truth.parquet"], release
    yield "verify", ["now-builder", "verify", release], folder / "none"
    yield "report", ["now-builder", "report", release, "--captures", captures, "-o", report], report
    yield "train", ["pc2-baseline", "train", release, trained], trained
    yield "predict", ["pc2-baseline", "predict", trained, "--split", "test", "-o", packed], packed
    yield "score", ["now-leaderboard", "score", packed, "--release", release, "-o", result], result


def main() -> None:
    """Run the stages that are not finished, and print the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--pages", type=int, default=10_000)
    options.add_argument("--folder", type=Path, required=True)
    chosen = options.parse_args()
    folder = chosen.folder
    make(folder, SimwebSettings(pages=chosen.pages))
    saved = folder / "costs.json"
    costs = json.loads(saved.read_text("utf-8")) if saved.exists() else {}
    print("| stage | seconds | CPU s | MiB | MB written | 100,000: hours | GB |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    with served(folder) as address:
        for name, command, written in commands(folder, address):
            if name not in costs:
                costs[name] = twice(name, command, written, chosen.pages)
                saved.write_text(json.dumps(costs), encoding="utf-8")
            cost = Cost(*costs[name])
            figures = " | ".join(f"{figure:,.0f}" for figure in cost)
            hours, size = (figure * FULL / chosen.pages for figure in (cost.seconds, cost.disk))
            print(f"| {name} | {figures} | {hours / 3600:.1f} | {size / 1000:.1f} |", flush=True)
    rows = read_rows(folder / "captures")
    status = [row.status for row in rows]
    print(f"{len(rows)} rows of {chosen.pages}, {status.count('ok')} captured")


if __name__ == "__main__":
    main()
