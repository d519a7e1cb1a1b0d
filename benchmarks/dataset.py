"""Reading shuffled batches of a release against `np.load(mmap_mode="r")` of the same numbers.

Both are opened anew, read through the same DataLoader and give the same batches. Ratios above 1 are
quicker than numpy; what is compared takes turns, and the middle of the ratios is printed. Cold: the
file's pages were dropped from the cache before (posix_fadvise), where the system does as it is
asked. The last lines are a few batches as h5py gives them from chunks of so many pages.

    python benchmarks/dataset.py --folder /where/releases/stand --pairs 8000
"""

import argparse
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from now_builder.formats.captions import make_vocabulary, write_vocabulary
from now_builder.formats.features import FeatureBatch, write_features
from now_builder.formats.release import DATA_FOLDER, Pair, write_pairs
from pc2_baseline.data.pairs import pad
from pc2_baseline.data.torch_dataset import ReleaseDataset

BATCH = 128


def drawn(pairs: int) -> Iterator[FeatureBatch]:
    """Draw pages."""
    draw = np.random.default_rng(0)
    for start in range(0, pairs, BATCH):
        count = min(BATCH, pairs - start)
        yield FeatureBatch(
            [f"{start + row:08d}" for row in range(count)],
            draw.standard_normal((count, 36, 768), dtype=np.float32),
            np.zeros((count, 36, 4), np.float32),
            np.zeros((count, 36), np.float32),
            np.zeros((count, 36), np.int16),
            np.zeros((count, 36), np.int8),
            np.zeros(count, np.int16),
        )


def make(folder: Path, pairs: int, *, half: bool) -> None:
    """Write what of a release is read here, and the same regions as .npy."""
    data = folder / DATA_FOLDER
    write_features(data / "train.h5", drawn(pairs), {}, half, pairs)
    kind = np.dtype("<f2" if half else "<f4")
    shape = (pairs, 36, 768)
    matrix = np.lib.format.open_memmap(folder / "train.npy", "w+", kind, shape)
    for start, batch in zip(range(0, pairs, BATCH), drawn(pairs), strict=True):
        matrix[start : start + BATCH] = batch.regions
    matrix.flush()
    keys = [f"{number:08d}" for number in range(pairs)]
    (data / "train_ids.txt").write_text("".join(f"{key}\n" for key in keys))
    (data / "train_caps_jieba.txt").write_text("4,5,6,7,8,9\n" * pairs)
    write_vocabulary(
        folder / "vocab" / f"{DATA_FOLDER}_vocab_jieba.json",
        make_vocabulary("abcdef", "jieba", "", ""),
    )
    rows = [
        Pair(key, "train", number, "", "", "", None, None, None, key)
        for number, key in enumerate(keys)
    ]
    write_pairs(folder / "pairs.parquet", rows)
    (folder / "manifest.json").write_text("{}")


def rechunk(path: Path, target: Path, chunk: int) -> None:
    """Write the regions again in chunks of so many pages."""
    with h5py.File(path) as old, h5py.File(target, "w") as new:
        data, shape = old["regions"], old["regions"].shape
        again = new.create_dataset("regions", shape, data.dtype, chunks=(chunk, *shape[1:]))
        for start in range(0, shape[0], BATCH):
            again[start : start + BATCH] = data[start : start + BATCH]


class Plain(Dataset[dict[str, torch.Tensor]]):
    """The same batches by numpy's memory map."""

    def __init__(self, path: Path, tokens: list[np.ndarray]) -> None:
        self.array, self.tokens = np.load(path, mmap_mode="r"), tokens

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitems__(self, rows: Sequence[int]) -> dict[str, torch.Tensor]:
        tokens, length = pad([self.tokens[row] for row in rows])
        index = np.array(rows)
        return {
            "regions": torch.from_numpy(self.array[index]), "tokens": tokens, "length": length,
            "pair_index": torch.from_numpy(index),
        }  # fmt: skip


def loaded(make_data: Callable[[], Any]) -> Callable[[], None]:
    """Open a dataset and read it by shuffled batches."""

    def read() -> None:
        data = make_data()
        collate: Any = ReleaseDataset.collate  # of a batch that was read as a whole
        for _ in DataLoader(data, BATCH, shuffle=True, collate_fn=collate):
            pass

    return read


def sorted_batches(data: Any, count: int) -> Callable[[], None]:
    """Read so many batches of random rows, in rising order within each, as h5py wants them."""

    def read() -> None:
        order = np.random.default_rng(1).permutation(len(data))
        for start in range(0, count * BATCH, BATCH):
            np.asarray(data[np.sort(order[start : start + BATCH])])

    return read


def drop(path: Path) -> None:
    """Ask the system to forget a file's pages."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def seconds(work: Callable[[], None], path: Path | None = None) -> float:
    """Time a call, cold if a path is given."""
    if path is not None:
        drop(path)
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: temporary")
    parser.add_argument("--pairs", type=int, default=4000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--chunks", type=int, nargs="*", default=[1, 8, 64])
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    for half in (False, True):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            measure(Path(folder), options, half=half)


def measure(folder: Path, options: argparse.Namespace, *, half: bool) -> None:
    """Print the lines of one precision."""
    make(folder, options.pairs, half=half)
    h5, npy = folder / DATA_FOLDER / "train.h5", folder / "train.npy"
    megabytes = npy.stat().st_size / 1e6
    print(f"{'float16' if half else 'float32'}, {megabytes:.0f} MB, batches of {BATCH}")
    data = ReleaseDataset(folder, "train")
    plain = loaded(lambda: Plain(npy, data._tokens))  # noqa: SLF001 - the same lists
    ours = loaded(lambda: copy(data))
    report("ReleaseDataset", megabytes, options.repeat, (plain, npy), (ours, h5))
    few = min(4, options.pairs // BATCH)
    part = megabytes * few * BATCH / options.pairs
    for chunk in options.chunks:
        path = folder / f"chunks{chunk}.h5"
        rechunk(h5, path, chunk)
        with h5py.File(path) as file:
            work = sorted_batches(file["regions"], few)
            name = f"h5py, {chunk} pages a chunk"
            plain = sorted_batches(np.load(npy, mmap_mode="r"), few)
            report(name, part, 2, (plain, npy), (work, path))
        path.unlink()


Way = tuple[Callable[[], None], Path]


def report(name: str, megabytes: float, repeat: int, plain: Way, other: Way) -> None:
    """Time two ways by turns, print the middle of their ratios and the rate of the other."""
    turns: dict[str, list[tuple[float, float]]] = {"warm": [], "cold": []}
    for _ in range(repeat):
        for work, _path in (plain, other):
            work()
        turns["warm"].append((seconds(plain[0]), seconds(other[0])))
        turns["cold"].append((seconds(*plain), seconds(*other)))
    cells = []
    for label, times in turns.items():
        ratio = statistics.median(one / two for one, two in times)
        rate = megabytes / statistics.median(two for _, two in times)
        cells.append(f"{label} {ratio:.2f} ({rate:.0f} MB/s)")
    print(f"  {name:24} {', '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
