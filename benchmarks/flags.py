"""Flags of honest matrices, which should have none, and of tricks, each of which has its own.

python benchmarks/flags.py                  # 1,000 pairs: 100 matrices a family, 20 a trick
python benchmarks/flags.py --sizes 100 300 1000 --honest 44 --tricks 0
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
from leaderboard.metrics import recalls
from leaderboard.scoring.checks import check_matrix
from leaderboard.scoring.evaluate import read_inputs, score
from leaderboard.submission.archive import open_submission
from leaderboard.submission.gallery import read_gallery
from now_builder.errors import NowError
from now_builder.formats.captions import TOKENIZERS
from tests.leaderboard.scoring import similarities


def codes(similarity: np.ndarray, labels: np.ndarray | None = None) -> list[str]:
    """Return the flags of a square matrix."""
    rows = np.arange(len(similarity))
    values = similarity if similarity.dtype == np.float16 else similarity.astype(np.float32)
    return [flag.code for flag in check_matrix(values, rows, rows if labels is None else labels)]


def honest(sizes: list[int], times: int, first: int) -> None:
    """Print the flags of each honest family, also with captions that occur several times.

    The sizes take turns.
    """
    found, total = 0, 0
    for name, make in similarities.HONEST.items():
        counted: Counter[str] = Counter()
        rsums = []
        for seed in range(times):
            draw, size = np.random.default_rng(first + seed), sizes[seed % len(sizes)]
            similarity, labels = make(draw, size), similarities.repeats(draw, size)
            repeated = similarities.with_repeats(similarity, labels)
            flagged = [codes(similarity), codes(repeated, labels)]
            found, total = found + sum(map(bool, flagged)), total + 2
            counted.update(f"{code}, {size} pairs" for either in flagged for code in either)
            rsums.append(recalls(similarity).rsum)
        span = f"rSum {min(rsums):3.0f} to {max(rsums):3.0f}"
        print(f"honest  {name:42} {span}  {dict(counted) or ''}", flush=True)
    print(f"honest matrices flagged: {found} of {total}")


def submissions(folder: Path, releases: Path) -> None:
    """Print which submissions in a folder are flagged, scored on the releases in another one."""
    galleries = {}
    for path in releases.glob("**/pairs.parquet"):
        for split, track in product(get_args(ScoredSplit), TOKENIZERS):
            with contextlib.suppress(NowError):
                fingerprint = read_gallery(path.parent, split, track).fingerprint
                galleries[fingerprint] = path.parent
    read = lru_cache(read_inputs)
    found = total = 0
    for path in sorted(folder.glob("**/*.zip")):
        with open_submission(path) as submission:
            release = galleries.get(submission.meta.dataset_fingerprint)
        if release is not None:
            flags = [flag.code for flag in score(path, release, read=read).flags]
            found, total = found + bool(flags), total + 1
            if flags:
                print(f"honest  {path.relative_to(folder)}  {flags}", flush=True)
    print(f"submissions flagged: {found} of {total}")


def tricks(size: int, times: int) -> None:
    """Print how many matrices of each trick have its flag, and how many have any."""
    unseen = {name: (None, make) for name, make in similarities.UNSEEN.items()}
    for name, (code, make) in (similarities.TRICKS | unseen).items():
        matrices = [make(np.random.default_rng(seed), size) for seed in range(times)]
        flags = [codes(similarity) for similarity in matrices]
        rsum = np.mean([recalls(similarity).rsum for similarity in matrices])
        own = f"{code} {sum(code in own for own in flags)}, " if code else ""
        some = f"any {sum(map(bool, flags))} of {times}"
        print(f"trick   {name:50} rSum {rsum:3.0f}  {own}{some}", flush=True)


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
