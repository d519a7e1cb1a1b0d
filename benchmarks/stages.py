"""The builder's stages behind the detector, on drawn captures: seconds, memory and disk by rows.

Captures, and the features of their pages, are drawn: captions of 4 to 60 words in three scripts, by
Zipf's law, one small screenshot for all. Then each stage runs as its command, and an epoch of
shuffled batches is read at the end. Memory is the most that a stage and its processes held for
themselves (resident less shared); ratios are those of the last size to the first.

    python benchmarks/stages.py --rows 10000 100000 --folder /where/there/are/30/GB
"""

import argparse
import io
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
from PIL import Image

from now_builder.formats.features import FeatureBatch, write_features
from now_builder.formats.shard import Capture, CaptureRow, Element, Planned, write_plan, write_shard
from now_builder.formats.split import Shares, SplitPlan, write_split

SHARD, BATCH, SITES, WORDS = 256, 128, 200, 30_000
SCRIPTS = {"en": (0x61, 26, 7, " "), "ru": (0x430, 32, 8, " "), "zh": (0x4E00, 3000, 2, "")}
"""First letter, letters, letters of a word, and what stands between words, by language."""
MAIN = "from now_builder.cli import main; main()"
EPOCH = """
import sys
from pathlib import Path
from torch.utils.data import DataLoader
from pc2_baseline import ReleaseDataset
data = ReleaseDataset(Path(sys.argv[1]), "train", "bert")
for _ in DataLoader(data, 128, shuffle=True, collate_fn=ReleaseDataset.collate):
    pass
"""


class Cost(NamedTuple):
    """What a stage took: seconds of the clock and of CPU, MiB at most, MB written."""

    seconds: float
    cpu: float
    memory: float
    disk: float


def vocabulary(draw: np.random.Generator, lang: str) -> list[str]:
    """Draw the words of a language."""
    first, letters, length, _ = SCRIPTS[lang]
    sizes = 1 + draw.poisson(length - 1, WORDS)
    return ["".join(map(chr, first + draw.integers(0, letters, size))) for size in sizes]


def captions(rows: int) -> Iterator[tuple[str, str]]:
    """Draw language and caption of each page."""
    draw = np.random.default_rng(0)
    words = {lang: vocabulary(draw, lang) for lang in SCRIPTS}
    for number in range(rows):
        lang = list(SCRIPTS)[number % len(SCRIPTS)]
        drawn = draw.zipf(1.3, draw.integers(4, 61)) % WORDS
        yield lang, SCRIPTS[lang][3].join(words[lang][place] for place in drawn)


def make_captures(folder: Path, rows: int) -> list[str]:
    """Write captures of drawn pages; return their keys."""
    file = io.BytesIO()
    Image.new("RGB", (720, 1280), "white").save(file, "PNG")
    page = Capture("", file.getvalue(), b"<p>", [Element((0.0, 0.0, 1.0, 1.0), "p")])
    found = []
    for number, (lang, caption) in enumerate(captions(rows)):
        site = f"s{number % SITES}.test"
        url = f"http://{site}/{number}"
        key = f"{number // SHARD:05d}_{number % SHARD:04d}"
        found.append(
            CaptureRow(
                key, url, url, site, "ok", final_url=url, http_status=200, caption=caption,
                caption_source="name", lang=lang, phash=f"{number:016x}", title=f"Page {number}",
                fetched_at="2026-01-01T00:00:00+00:00",
            )
        )  # fmt: skip
    plan = [
        Planned(row.key, int(row.key[:5]), row.url, row.url_canonical, row.site) for row in found
    ]
    write_plan(folder, plan)
    write_split(
        folder / "split.toml", SplitPlan(by="page", shares=Shares(train=0.98, dev=0.01, test=0.01))
    )
    for start in range(0, rows, SHARD):
        part = found[start : start + SHARD]
        write_shard(folder, start // SHARD, part, (replace(page, key=row.key) for row in part))
    return [row.key for row in found]


def batches(keys: Sequence[str]) -> Iterator[FeatureBatch]:
    """Draw features: one batch again and again, with the page's number in the first place."""
    draw = np.random.default_rng(1).standard_normal((BATCH, 36, 768), dtype=np.float32)
    for start in range(0, len(keys), BATCH):
        part = list(keys[start : start + BATCH])
        regions = draw[: len(part)].copy()
        regions[:, 0, 0] = np.arange(start, start + len(part)) / 64
        yield FeatureBatch(
            part,
            regions,
            np.zeros((len(part), 36, 4), np.float32),
            np.zeros((len(part), 36), np.float32),
            np.zeros((len(part), 36), np.int16),
            np.zeros((len(part), 36), np.int8),
            np.zeros(len(part), np.int16),
        )


def held_by(root: psutil.Process, cpu: dict[int, float]) -> float:
    """Return MiB that a process and its children hold for themselves; note their CPU seconds."""
    memory = 0.0
    with suppress(psutil.Error):
        for one in [root, *root.children(recursive=True)]:
            with suppress(psutil.Error):
                now, times = one.memory_info(), one.cpu_times()
                memory += (now.rss - now.shared) / 2**20
                cpu[one.pid] = times.user + times.system
    return memory


def measure(command: Sequence[str | Path], written: Path, kill_after: float | None = None) -> Cost:
    """Run a command and watch it and its processes.

    Args:
        command: What to run.
        written: File or folder whose size is taken at the end.
        kill_after: Seconds after which all its processes are killed; without it, it must succeed.

    Returns:
        Its cost; CPU seconds are those of each of its processes when last seen.
    """
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
    """Return the size of a file, or of all files of a folder, in MB; of none, 0."""
    files = [path for path in (written, *written.rglob("*")) if path.is_file()]
    return sum(path.stat().st_size for path in files) / 1e6


def stages(folder: Path, rows: int) -> dict[str, Cost]:
    """Draw captures and features, and run each stage on them."""
    captures, features, tokens = folder / "captures", folder / "features.h5", folder / "captions"
    release, page = folder / "release", folder / "report.html"
    keys = make_captures(captures, rows)
    write_features(features, batches(keys), {"detector": "drawn"}, half=True, pages=rows)
    commands = {
        "tokenize": ("tokenize", captures, tokens),
        "package": ("package", captures, features, tokens, release),
        "report": ("report", release, "--captures", captures, "-o", page),
        "verify": ("verify", release),
    }
    outputs = {"tokenize": tokens, "package": release, "report": page, "verify": folder / "none"}
    found = {}
    for name, command in commands.items():
        found[name] = measure([sys.executable, "-c", MAIN, *command], outputs[name])
    found["epoch"] = measure([sys.executable, "-c", EPOCH, release], folder / "none")
    return found


def main() -> None:
    """Take the options and print the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rows", type=int, nargs="+", default=[500, 2000])
    options.add_argument("--folder", type=Path, help="default: a temporary one")
    chosen = options.parse_args()
    found: dict[int, dict[str, Cost]] = {}
    print("| rows | stage | seconds | CPU s | MiB | MB written |\n|--:|---|--:|--:|--:|--:|")
    for rows in chosen.rows:
        with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
            found[rows] = stages(Path(folder), rows)
        for stage, cost in found[rows].items():
            figures = " | ".join(f"{figure:,.1f}" for figure in cost)
            print(f"| {rows:,} | {stage} | {figures} |", flush=True)
    first, last = found[chosen.rows[0]], found[chosen.rows[-1]]
    for stage in first:
        time_ratio = last[stage].seconds / first[stage].seconds
        memory_ratio = last[stage].memory / first[stage].memory
        print(f"{stage}: {time_ratio:.1f} times the time, {memory_ratio:.2f} times the memory")


if __name__ == "__main__":
    main()
