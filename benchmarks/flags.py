"""Flags of honest matrices, which should have none, and of tricks, each of which has its own.

python benchmarks/flags.py                  # 1,000 pairs: 100 matrices a family, 20 a trick
python benchmarks/flags.py --sizes 100 300 1000 --honest 44 --tricks 0    # 2,024 honest ones
python benchmarks/flags.py --honest 0 --tricks 0 --submissions tables --releases releases
"""

import argparse
import contextlib
import sys
from collections import Counter
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import get_args

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from leaderboard.core.tracks import ScoredSplit
from leaderboard.metrics import count_ranks, expected_hits, recalls
from leaderboard.scoring.checks import Known, check_matrix
from leaderboard.scoring.evaluate import read_standard, score
from leaderboard.scoring.wording import Texts
from leaderboard.submission.archive import open_submission
from leaderboard.submission.gallery import read_gallery
from now_builder.errors import NowError
from now_builder.formats.captions import TOKENIZERS
from tests.leaderboard.scoring import similarities


def codes(similarity: np.ndarray, labels: np.ndarray | None = None, texts: Texts = ()) -> list[str]:
    """Return the flags of a square matrix."""
    hits = [float(expected_hits(way, 1).sum()) for way in count_ranks(similarity)]
    known = Known(np.arange(len(similarity)), captions=labels, texts=texts)
    return [flag.code for flag in check_matrix(similarity, known, (hits[0], hits[1]))]


def single(values: np.ndarray) -> np.ndarray:
    """Return float32, and float16 as it is."""
    return values if values.dtype == np.float16 else values.astype(np.float32)


def honest(sizes: list[int], times: int, first: int) -> None:
    """Print the flags of each honest family, also with captions that occur several times.

    The sizes take turns.
    """
    found, total = 0, 0
    for name, make in similarities.HONEST.items():
        counted: Counter[str] = Counter()
        low, high = 600.0, 0.0
        for seed in range(times):
            draw, size = np.random.default_rng(first + seed), sizes[seed % len(sizes)]
            similarity, labels = single(make(draw, size)), similarities.repeats(draw, size)
            repeated = similarities.with_repeats(similarity, labels)
            flagged = [codes(similarity), codes(repeated, labels)]
            found, total = found + sum(map(bool, flagged)), total + 2
            counted.update(f"{code}, {size} pairs" for either in flagged for code in either)
            rsum = recalls(similarity).rsum
            low, high = min(low, rsum), max(high, rsum)
        print(
            f"honest  {name:42} rSum {low:3.0f} to {high:3.0f}  {dict(counted) or ''}", flush=True
        )
    print(f"honest matrices flagged: {found} of {total}")


def submissions(folder: Path, releases: Path) -> None:
    """Print which submissions in a folder are flagged, scored on the releases in another one."""
    galleries = {}
    for path in releases.glob("**/pairs.parquet"):
        for split, track in product(get_args(ScoredSplit), TOKENIZERS):
            with contextlib.suppress(NowError):
                print_ = read_gallery(path.parent, split, track).fingerprint
                galleries[print_] = path.parent
    standard = lru_cache(read_standard)
    found = total = 0
    for path in sorted(folder.glob("**/*.zip")):
        with open_submission(path) as submission:
            release = galleries.get(submission.meta.dataset_fingerprint)
        if release is not None:
            flags = [flag.code for flag in score(path, release, standard=standard).flags]
            found, total = found + bool(flags), total + 1
            if flags:
                print(f"honest  {path.relative_to(folder)}  {flags}", flush=True)
    print(f"submissions flagged: {found} of {total}")


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
    for name, forge in similarities.OF_ROWS.items():
        unread = [
            "words-unread" in codes(single(forge(draw, size)), texts=texts)
            for draw in map(np.random.default_rng, range(times))
            for _, texts in [similarities.worded(draw, size)]
        ]
        print(f"trick   {name:42} words-unread {sum(unread)} of {times}", flush=True)
    for name, change in similarities.UNSEEN.items():
        flagged, rsum = 0, 0.0
        for draw in map(np.random.default_rng, range(times)):
            scores, texts = similarities.worded(draw, size)
            forged = single(change(draw, scores, texts))
            flagged += bool(codes(forged, texts=texts))
            rsum += recalls(forged).rsum / times
        print(f"unseen  {name:50} rSum {rsum:3.0f}  any {flagged} of {times}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Count flags of honest matrices and of tricks, by name."
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000])
    parser.add_argument("--honest", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=10_000, help="of the honest matrices")
    parser.add_argument("--tricks", type=int, default=20)
    parser.add_argument("--submissions", type=Path, help="folder of predictions")
    parser.add_argument("--releases", type=Path, help="folder of the releases that they are of")
    given = parser.parse_args()
    if given.submissions:
        submissions(given.submissions, given.releases)
    if given.honest:
        honest(given.sizes, given.honest, given.first_seed)
    for size in given.sizes if given.tricks else []:
        tricks(size, given.tricks)
