"""Flags of honest matrices, which should have none, and of tricks, each of which has its own.

python benchmarks/flags.py                  # 1,000 pairs: 100 matrices a family, 20 a trick
python benchmarks/flags.py --size 300 --honest 400
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from leaderboard.metrics import count_ranks, expected_hits, recalls
from leaderboard.scoring.checks import Known, check_matrix
from tests.leaderboard.scoring import similarities


def codes(similarity: np.ndarray, labels: np.ndarray | None = None) -> list[str]:
    """Return the flags of a square matrix."""
    hits = [float(expected_hits(way, 1).sum()) for way in count_ranks(similarity)]
    known = Known(np.arange(len(similarity)), captions=labels)
    return [flag.code for flag in check_matrix(similarity, known, (hits[0], hits[1]))]


def single(values: np.ndarray) -> np.ndarray:
    """Return float32, and float16 as it is."""
    return values if values.dtype == np.float16 else values.astype(np.float32)


def honest(size: int, times: int) -> None:
    """Print the flags of each honest family, also with captions that occur several times."""
    found, total = 0, 0
    for name, make in similarities.HONEST.items():
        counted: Counter[str] = Counter()
        low, high = 600.0, 0.0
        for seed in range(times):
            draw = np.random.default_rng(seed)
            similarity, labels = single(make(draw, size)), similarities.repeats(draw, size)
            repeated = similarities.with_repeats(similarity, labels)
            flagged = [codes(similarity), codes(repeated, labels)]
            found, total = found + sum(map(bool, flagged)), total + 2
            counted.update(code for either in flagged for code in either)
            rsum = recalls(similarity).rsum
            low, high = min(low, rsum), max(high, rsum)
        print(
            f"honest  {name:42} rSum {low:3.0f} to {high:3.0f}  {dict(counted) or ''}", flush=True
        )
    print(f"honest matrices flagged: {found} of {total}")


def tricks(size: int, times: int) -> None:
    """Print the share of each trick that has its flag, and that has any."""
    for name, (code, make) in similarities.TRICKS.items():
        found = [
            (codes(similarity), recalls(similarity).rsum)
            for seed in range(times)
            if (similarity := single(make(np.random.default_rng(seed), size))) is not None
        ]
        own = sum(code in flags for flags, _ in found)
        some = sum(bool(flags) for flags, _ in found)
        rsum = np.mean([rsum for _, rsum in found])
        print(
            f"trick   {name:42} rSum {rsum:3.0f}  {code} {own}, any {some} of {times}", flush=True
        )
    apart = sum(
        "duplicates-apart" in codes(single(values), labels)
        for seed in range(times)
        for values, labels in [similarities.told_apart(np.random.default_rng(seed), size)]
    )
    print(f"trick   {'identical captions told apart':42} duplicates-apart {apart} of {times}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Count flags of honest matrices and of tricks, by name."
    )
    parser.add_argument("--size", type=int, default=1000)
    parser.add_argument("--honest", type=int, default=100)
    parser.add_argument("--tricks", type=int, default=20)
    given = parser.parse_args()
    honest(given.size, given.honest)
    tricks(given.size, given.tricks)
