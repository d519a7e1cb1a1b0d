"""Rank counting against what else scores a similarity matrix: time, memory, and the same recalls.

Each way does all six recalls from the same float32 matrix in a process of its own, so that its peak
memory is its own; ways that would take minutes or too much memory at a size say so. torchmetrics
scores one cutoff of one direction, since each of its six would cost the same again; ranx is given
whole runs as dictionaries, as it wants them. At last a matrix is streamed from disk.

    python benchmarks/evaluator.py                        # 1,000, 5,000 and 20,000 pairs
    python benchmarks/evaluator.py --sizes 1000 --repeat 9
"""

import argparse
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from leaderboard.metrics import CUTOFFS, count_ranks, recalls
from leaderboard.submission.matrix import open_matrix

Recalls = dict[str, float]
NAMES = [f"{way} R@{cutoff}" for way in ("i2t", "t2i") for cutoff in CUTOFFS]


def shares(i2t: np.ndarray, t2i: np.ndarray) -> Recalls:
    """Turn ranks from 0 into recalls."""
    found = [100 * float(np.mean(ranks < k)) for ranks in (i2t, t2i) for k in CUTOFFS]
    return dict(zip(NAMES, found, strict=True))


def ours(matrix: np.ndarray) -> Recalls:
    """Count what is greater and equal, both ways in one pass; with ties, ranks and all figures."""
    found = recalls(matrix)
    values = [way.recall(cutoff) for way in (found.i2t, found.t2i) for cutoff in CUTOFFS]
    return dict(zip(NAMES, values, strict=True))


def counted(matrix: np.ndarray) -> Recalls:
    """Only the counts."""
    return shares(*(way.greater for way in count_ranks(matrix)))


def loop(matrix: np.ndarray) -> Recalls:
    """Sort a row at a time and look where the right one stands: the field's evaluation code."""
    ranks = []
    for values in (matrix, matrix.T):
        found = np.zeros(len(values), np.int64)
        for row in range(len(values)):
            found[row] = np.where(np.argsort(values[row])[::-1] == row)[0][0]
        ranks.append(found)
    return shares(*ranks)


def vectorised(matrix: np.ndarray) -> Recalls:
    """Sort all rows at once, stably."""
    ranks = []
    for values in (matrix, np.ascontiguousarray(matrix.T)):
        order = np.argsort(-values, axis=1, kind="stable")
        ranks.append(np.argmax(order == np.arange(len(values))[:, None], axis=1))
    return shares(*ranks)


def partition(matrix: np.ndarray) -> Recalls:
    """Take the first ten of each row without sorting the rest."""
    ranks = []
    for values in (matrix, np.ascontiguousarray(matrix.T)):
        most = min(max(CUTOFFS), len(values))
        first = np.argpartition(values, len(values) - most, axis=1)[:, -most:]
        order = np.argsort(-np.take_along_axis(values, first, axis=1), axis=1)
        right = np.take_along_axis(first, order, axis=1) == np.arange(len(values))[:, None]
        ranks.append(np.where(right.any(axis=1), right.argmax(axis=1), most))
    return shares(*ranks)


def torchmetrics_one(matrix: np.ndarray) -> Recalls:
    """RetrievalHitRate at 1, images as queries."""
    import torch
    from torchmetrics.retrieval import RetrievalHitRate

    n = len(matrix)
    metric = RetrievalHitRate(top_k=1)
    queries = torch.arange(n).repeat_interleave(n)
    metric.update(
        torch.from_numpy(matrix).reshape(-1), torch.eye(n, dtype=torch.bool).reshape(-1), queries
    )
    return {"i2t R@1": 100 * float(metric.compute())}


def ranx_all(matrix: np.ndarray) -> Recalls:
    """Hit rates at 1, 5 and 10 of two runs."""
    from ranx import Qrels, Run, evaluate

    found = {}
    names = [str(place) for place in range(len(matrix))]
    right = Qrels({name: {name: 1} for name in names})
    for way, values in (("i2t", matrix), ("t2i", matrix.T)):
        scores = (dict(zip(names, row.tolist(), strict=True)) for row in values)
        run = Run(dict(zip(names, scores, strict=True)))
        rates = evaluate(right, run, [f"hit_rate@{cutoff}" for cutoff in CUTOFFS])
        found |= {f"{way} R@{k}": 100 * float(rates[f"hit_rate@{k}"]) for k in CUTOFFS}
    return found


WAYS: dict[str, tuple[Callable[[np.ndarray], Recalls], int]] = {
    "argsort loop": (loop, 5000),
    "ours, all figures": (ours, 20_000),
    "ours, counts": (counted, 20_000),
    "stable argsort, whole": (vectorised, 5000),
    "argpartition, first ten": (partition, 5000),
    "torchmetrics, i2t R@1 only": (torchmetrics_one, 5000),
    "ranx": (ranx_all, 1000),
}
"""How, and up to which size it is run."""


def drawn(size: int) -> np.ndarray:
    """Draw a matrix whose recalls are those of NoW."""
    matrix = np.random.default_rng(0).standard_normal((size, size), dtype=np.float32)
    matrix[np.arange(size), np.arange(size)] += 2
    return matrix


def measure(name: str, size: int, repeat: int, pipe: Connection) -> None:
    """Time one way: the first call, which may load and compile, and the best."""
    way, matrix = WAYS[name][0], drawn(size)
    before, seconds = peak(), []
    for _ in range(repeat):
        start = time.perf_counter()
        found = way(matrix)
        seconds.append(time.perf_counter() - start)
        if len(seconds) > 1 and sum(seconds) > 30:
            break
    pipe.send((seconds[0], min(seconds), peak() - before, found))


def peak() -> float:
    """Return the most memory held so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def stream(path: Path, pipe: Connection) -> None:
    """Count ranks from a file, and how much memory that takes beyond the file's own size."""
    with open_matrix(path) as rows:
        before, start = peak(), time.perf_counter()
        found = shares(*(way.greater for way in count_ranks(rows)))
        pipe.send((time.perf_counter() - start, peak() - before, found))


def apart(work: Callable[..., None], *arguments: object) -> tuple[float | Recalls, ...] | None:
    """Do work in a process of its own and give what it sends; None if it dies."""
    context = multiprocessing.get_context("spawn")
    ours_end, theirs = context.Pipe()
    process = context.Process(target=work, args=(*arguments, theirs))
    process.start()
    theirs.close()
    try:
        return ours_end.recv()
    except EOFError:
        return None
    finally:
        process.join()


def compare(size: int, repeat: int) -> None:
    print(f"\n{size:,} x {size:,}, float32\n| way | first | best | argsort loop / it | MiB |")
    print("|---|---|---|---|---|")
    known: Recalls | None = None
    base: float | None = None
    for name, (_, largest) in WAYS.items():
        if size > largest:
            print(f"| {name} | not run at this size | | | |")
            continue
        answer = apart(measure, name, size, repeat)
        if answer is None:
            print(f"| {name} | failed | | | |")
            continue
        first, best, memory, found = answer
        base = best if name == "argsort loop" else base
        ratio = "" if base is None else f"{base / best:.2f}x"
        print(f"| {name} | {first:.4f} s | {best:.4f} s | {ratio} | {memory:.0f} |", flush=True)
        known = known or found
        off = [key for key, value in found.items() if abs(value - known[key]) > 1e-4]
        if off:
            print(f"{name} differs in {', '.join(off)}", file=sys.stderr)


def compare_streams(sizes: list[int]) -> None:
    print("\nStreamed from a file that was just written\n| pairs | file | seconds | GB/s | MiB |")
    print("|---|---|---|---|---|")
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "similarity.npy"
            np.save(path, drawn(size))
            answer = apart(stream, path)
        if answer is None:
            print(f"| {size:,} | failed | | | |")
            continue
        seconds, memory, _ = answer
        giga = 4 * size**2 / 1e9
        print(f"| {size:,} | {giga:.2f} GB | {seconds:.2f} | {giga / seconds:.2f} | {memory:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description="Rank counting against other evaluators.")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 5000, 20_000])
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    for size in options.sizes:
        compare(size, options.repeat)
    compare_streams(options.sizes)


if __name__ == "__main__":
    main()
