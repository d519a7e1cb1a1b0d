"""The feature file's rate against raw writing: parts as `detect` writes them, then their merge.

Raw is the same bytes of regions, written by `write` and synced: a file a batch for the parts, one
file for the merge. Each is done by turns and the middle of the ratios is printed, since disks vary.

    python benchmarks/hdf5.py --folder /where/features/would/stand --pages 2048
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from now_builder.formats.feature_parts import merge_parts, write_part
from now_builder.formats.features import FeatureBatch

ATTRIBUTES = {"detector": "benchmark"}


def drawn(pages: int, size: int) -> list[FeatureBatch]:
    """Draw batches."""
    draw = np.random.default_rng(0)
    batches = []
    for start in range(0, pages, size):
        count = min(size, pages - start)
        batches.append(
            FeatureBatch(
                [f"{start // 256:05d}_{start % 256 + row:04d}" for row in range(count)],
                draw.standard_normal((count, 36, 768), dtype=np.float32),
                draw.random((count, 36, 4), dtype=np.float32),
                draw.random((count, 36), dtype=np.float32),
                np.zeros((count, 36), np.int16),
                np.zeros((count, 36), np.int8),
                np.zeros(count, np.int16),
            )
        )
    return batches


def write_raw(path: Path, pieces: Sequence[np.ndarray]) -> None:
    """Write arrays one behind the other, and sync."""
    with path.open("wb") as file:
        for piece in pieces:
            file.write(piece.data.cast("B"))
        file.flush()
        os.fsync(file.fileno())


def seconds(work: Callable[[], object]) -> float:
    """Time a call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def turn(folder: Path, batches: Sequence[FeatureBatch], *, half: bool) -> list[float]:
    """Return the seconds of raw parts, parts, a raw file and the merge."""
    kind = np.float16 if half else np.float32
    pieces = [batch.regions.astype(kind) for batch in batches]
    raw, features = folder / "raw", folder / "features.h5"
    raw.mkdir()

    def raw_parts() -> None:
        for number, piece in enumerate(pieces):
            write_raw(raw / str(number), [piece])

    def parts() -> None:
        for batch in batches:
            write_part(features, batch, ATTRIBUTES, half)

    spent = [
        seconds(raw_parts),
        seconds(parts),
        seconds(lambda: write_raw(raw / "whole", pieces)),
        seconds(lambda: merge_parts(features, ATTRIBUTES, half)),
    ]
    shutil.rmtree(raw)
    features.unlink()
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: temporary")
    parser.add_argument("--pages", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    batches = drawn(options.pages, options.batch_size)
    for half in (False, True):
        name = "float16" if half else "float32"
        megabytes = sum(batch.regions.size for batch in batches) * (2 if half else 4) / 1e6
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            turns = [turn(Path(folder), batches, half=half) for _ in range(options.repeat)]
        raw_parts, parts, raw, merge = (
            megabytes / statistics.median(column) for column in zip(*turns, strict=True)
        )
        part_ratio = statistics.median(one[0] / one[1] for one in turns)
        merge_ratio = statistics.median(one[2] / one[3] for one in turns)
        print(
            f"{name}, {megabytes:.0f} MB: parts {parts:.0f} MB/s of {raw_parts:.0f} raw "
            f"({part_ratio:.2f}), merge {merge:.0f} MB/s of {raw:.0f} raw ({merge_ratio:.2f})"
        )


if __name__ == "__main__":
    main()
