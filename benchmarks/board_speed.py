"""Time of a board of many entries: its page from nothing, and after one more result.

``python -m benchmarks.board_speed [ENTRIES]``.
"""

import sys
import time
from collections.abc import Sequence

import numpy as np

from leaderboard.board.kept import Kept
from leaderboard.scoring.evaluate import figures_of
from leaderboard.scoring.result import (
    Duplicates,
    Evaluator,
    QueryRanks,
    RankRecord,
    Release,
    Result,
)
from leaderboard.site.pages import Site
from leaderboard.store.entries import Entry
from leaderboard.submission.archive import Method

PAIRS = 1000


def make_entries(count: int) -> list[Entry]:
    """Make entries of random ranks; all figures but rSum are those of the first."""
    generator = np.random.default_rng(0)
    base: Result | None = None
    entries = []
    for number in range(count):
        ways = generator.geometric(0.01 + 0.02 * generator.random(), size=(2, PAIRS)) - 1
        record = RankRecord(
            i2t=QueryRanks(greater=tuple(np.minimum(ways[0], PAIRS - 1).tolist())),
            t2i=QueryRanks(greater=tuple(np.minimum(ways[1], PAIRS - 1).tolist())),
        )
        if base is None:
            figures, _ = figures_of(record)
            base = Result(
                method=Method(name="method"),
                n_pairs=PAIRS,
                n_images=PAIRS,
                track="jieba",
                split="test",
                release=Release(origin="rebuilt", fingerprint="0" * 64),
                duplicates=Duplicates(
                    captions=0,
                    images=0,
                    ceiling_rsum=600.0,
                    rsum=figures["rsum"],
                ),
                references={},
                precision="float32",
                payload_sha256="0" * 64,
                evaluator=Evaluator(),
                ranks=record,
                folds=None,
                flags=(),
                **figures,
            )
        rsum = 100 * float(np.mean([(w < k).mean() for w in ways for k in (1, 5, 10)])) * 6
        changed = {"ranks": record, "rsum": rsum, "method": Method(name=f"method {number}")}
        entries.append(Entry(f"{number:012x}", base.model_copy(update=changed)))
    return entries


def main(count: int) -> None:
    """Print the times: of the pages after one more result, kept and from nothing."""
    entries, kept = make_entries(count + 1), Kept()
    paths = f"entries/{entries[-1].name}.html", "boards/jieba.html"
    nothing, whole = _times(Site(entries[:-1], kept=kept), paths[1:])
    print(f"{count} entries: the board from nothing {nothing:.2f} s ({whole:.2f} s of CPU)")
    for name, site in (("kept", Site(entries, kept=kept)), ("from nothing", Site(entries))):
        for path in paths:
            took, cpu = _times(site, [path])
            print(f"after one more result, {name}: {path} {took:.2f} s ({cpu:.2f} s of CPU)")


def _times(site: Site, paths: Sequence[str]) -> tuple[float, float]:
    """Return the time of making pages, on the clock and of the CPU."""
    started, used = time.perf_counter(), time.process_time()
    for path in paths:
        site.get(path)
    return time.perf_counter() - started, time.process_time() - used


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
