"""PC² against plain SGR on the simulated web at several shares of mismatched pairs.

Builds a release of the demo's size at each share by the demo's own commands, trains every row with
every seed (`pc2-baseline ablate`), and prints the tables. Hours; killed and run again, it goes on.

    python benchmarks/grids/simweb.py OUT
    python benchmarks/grids/simweb.py OUT --mismatch 0.4 --rows ablations --seeds 0,1,2
"""

import argparse
import os
import subprocess
import sys
import time
from itertools import combinations
from pathlib import Path

import numpy as np

from leaderboard.metrics import recalls

ROWS = Path(__file__).with_name("rows.toml")


def command(*words: object) -> None:
    """Run a command of the project, as a user would; its stderr is shown."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run([str(word) for word in words], check=True, env={**os.environ, "PATH": path})


def serve(site: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start the simulated web; give its process and address."""
    ready = site / ".address"
    ready.unlink(missing_ok=True)
    server = subprocess.Popen(
        [Path(sys.executable).with_name("now-builder"), "simweb", "serve", site, "--port", "0",
         "--ready-file", ready]
    )  # fmt: skip
    while not ready.exists() or not ready.read_text():
        time.sleep(0.1)
    return server, ready.read_text().strip()


def build(out: Path, mismatch: float) -> Path:
    """Build the release of one share of mismatched pairs, or take it as it is."""
    site = out / f"web-{mismatch}"
    release = site / "release"
    if (release / "manifest.json").exists():
        return release
    command("now-builder", "simweb", "make", site, "--mismatch", mismatch)
    server, address = serve(site)
    try:
        command(
            "now-builder", "crawl", site / "urls.txt", site / "captures", "--allow-private",
            "--resolve", f"*.test:{address}", "--page-timeout-s", 8,
            "--split-shares", "0.7,0.12,0.18", "--split-seed", 2562,
        )  # fmt: skip
    finally:
        server.terminate()
    command("now-builder", "detect", site / "captures", site / "features.h5")
    command(
        "now-builder", "tokenize", site / "captures", site / "captions", "--bert", "learn",
        "--no-jieba-white-space",
    )  # fmt: skip
    command(
        "now-builder", "package", site / "captures", site / "features.h5", site / "captions",
        release, "--matched", site / "truth.parquet", "--dev", 64, "--test", 96,
    )  # fmt: skip
    return release


def two_networks(release: Path, runs: Path, row: str, seeds: list[int]) -> list[float]:
    """Score the mean similarities of two seeds each, since PC2 averages two networks as well."""
    matrices = []
    for seed in seeds:
        matrix = runs / row / f"seed-{seed}.test.npy"
        if not matrix.exists():
            command("pc2-baseline", "evaluate", runs / row / f"seed-{seed}", "--split", "test",
                    "--release", release, "-o", matrix)  # fmt: skip
        matrices.append(np.load(matrix))
    return [recalls((a + b) / 2).rsum for a, b in combinations(matrices, 2)]


def main() -> None:
    parser = argparse.ArgumentParser(description="PC2 against SGR on the simulated web.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--mismatch", type=float, action="append")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--rows", default=str(ROWS), help="as of `pc2-baseline ablate`")
    parser.add_argument("--config", default="pc2-planted")
    parser.add_argument("--build-only", action="store_true")
    options = parser.parse_args()
    for mismatch in options.mismatch or [0.4, 0.2, 0.6, 0.7]:
        release = build(options.out, mismatch)
        if options.build_only:
            continue
        print(f"\nmismatch {mismatch}", flush=True)
        command(
            "pc2-baseline", "ablate", release, options.out / f"runs-{mismatch}",
            "--config", options.config, "--seeds", options.seeds, "--rows", options.rows,
            "--set", "data.max_tokens=24", "--set", "train.pictures=false",
            "--set", f'data.truth="{(release.parent / "truth.parquet").resolve()}"',
        )  # fmt: skip
        if options.rows != str(ROWS):
            continue
        for row in ("sgr", "sgr-mean"):
            seeds = [int(seed) for seed in options.seeds.split(",")]
            found = two_networks(release, options.out / f"runs-{mismatch}", row, seeds)
            print(
                f"{row}, pairs of seeds averaged: test rSum", [round(value, 1) for value in found]
            )


if __name__ == "__main__":
    main()
