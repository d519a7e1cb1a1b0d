"""Entries of random ranks, as many as a test of boards wants."""

import numpy as np

from leaderboard.scoring.evaluate import figures_of
from leaderboard.scoring.result import (
    Duplicates,
    Evaluator,
    QueryRanks,
    RankRecord,
    Release,
    Result,
)
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
                notes=(),
                **figures,
            )
        rsum = 100 * float(np.mean([(w < k).mean() for w in ways for k in (1, 5, 10)])) * 6
        changed = {"ranks": record, "rsum": rsum, "method": Method(name=f"method {number}")}
        entries.append(Entry(f"{number:012x}", base.model_copy(update=changed)))
    return entries
