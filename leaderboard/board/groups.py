"""Figures of parts of a table: queries of one language or site, and runs with several seeds."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

import numpy as np

from leaderboard.board.tables import Row
from leaderboard.core.uncertainty import bootstrap_rsum
from leaderboard.metrics import CUTOFFS, Labels, Ranks, expected_hits, hits_per_image, ndcg
from leaderboard.scoring.result import RankRecord

MIN_PAIRS = 20
"""Pairs that a language or a site has at least, to get figures of its own."""

_MOST = 12
_REPLICATES = 1000


@dataclass(frozen=True, slots=True)
class Group:
    """Figures of some of the queries, ranked among all candidates of the split.

    Attributes:
        recalls: six recalls in percent.
        low: lower end of the 95 % interval of rSum, by a bootstrap over the group's pairs.
        ndcg: nDCG@10 of both directions.
        aware: rSum if identical captions and images are right too.
    """

    name: str
    pairs: int
    recalls: tuple[float, ...]
    rsum: float
    low: float
    high: float
    ndcg: tuple[float, float]
    aware: float


@dataclass(frozen=True, slots=True)
class Seeds:
    """rSum of one method under several seeds: their number, mean and standard deviation."""

    count: int
    mean: float
    deviation: float


def group_rows(labels: Sequence[str]) -> dict[str, Labels]:
    """Return the rows of the commonest labels, and those of all others together.

    Labels of fewer than :data:`MIN_PAIRS` rows are among the others, which are left out if they are
    fewer too, or all.
    """
    counts = sorted(Counter(labels).items(), key=lambda item: (-item[1], item[0]))
    named = [label for label, count in counts[:_MOST] if count >= MIN_PAIRS]
    rows = {name: np.flatnonzero([label == name for label in labels]) for name in named}
    others = np.flatnonzero([label not in rows for label in labels])
    if named and len(others) >= MIN_PAIRS:
        rows[f"{len(counts) - len(named)} others"] = others
    return rows


def groups_of(record: RankRecord, labels: Sequence[str]) -> tuple[Group, ...]:
    """Compute the figures of each group of queries; none unless each label is of one pair."""
    one_each = len(labels) == len(record.i2t.greater) == len(record.t2i.greater)
    if not one_each or not record.possible():
        return ()
    strict, aware = record.read(), record.read()
    if record.duplicate_aware is not None:
        i2t, t2i = record.duplicate_aware
        aware = i2t.read(), t2i.read()
    return tuple(
        _group(name, _part(strict, rows), _part(aware, rows))
        for name, rows in group_rows(labels).items()
    )


def _part(ranks: tuple[Ranks, Ranks], rows: Labels) -> tuple[Ranks, Ranks]:
    i2t, t2i = (
        Ranks(way.greater[rows], way.equal[rows], way.later[rows], way.right[rows]) for way in ranks
    )
    return i2t, t2i


def _group(name: str, strict: tuple[Ranks, Ranks], aware: tuple[Ranks, Ranks]) -> Group:
    hits = hits_per_image(*strict)
    low, high, _ = bootstrap_rsum(hits, _REPLICATES)
    return Group(
        name=name,
        pairs=len(hits),
        recalls=tuple(100 * float(expected_hits(way, k).mean()) for way in strict for k in CUTOFFS),
        rsum=100 * float(hits.mean()),
        low=low,
        high=high,
        ndcg=(ndcg(strict[0]), ndcg(strict[1])),
        aware=100 * float(hits_per_image(*aware).mean()),
    )


def missed_of(record: RankRecord) -> list[tuple[int, list[float]]]:
    """Return the pairs that are missed in a direction at the last cutoff, the fewest hits first.

    Each is its row and its expected hits at the cutoffs, i2t and then t2i.
    """
    hits = [expected_hits(way, cutoff) for way in record.read() for cutoff in CUTOFFS]
    table = np.stack(hits, axis=1)
    missed = np.flatnonzero((table[:, len(CUTOFFS) - 1 :: len(CUTOFFS)] == 0).any(axis=1))
    order = missed[table[missed].sum(axis=1).argsort(kind="stable")]
    return list(zip(order.tolist(), table[order].tolist(), strict=True))


def seeds_of(rows: Iterable[Row]) -> dict[str, Seeds]:
    """Return the mean over seeds of each row of a table that was filed with several, by entry.

    Such rows are of one person and one method, with the same evidence: only their seeds differ, and
    no two have one in common.
    """
    runs: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in rows:
        result = row.entry.result if row.entry else None
        person = row.entry.filing.submitter if row.entry and row.entry.filing else None
        if result and person and result.training.seeds:
            training = result.training.model_copy(update={"seeds": ()})
            own = person, row.evidence, result.method.name, result.method.version
            runs[*own, training, result.postprocessing].append(row)
    found: dict[str, Seeds] = {}
    for group in runs.values():
        seeds = [seed for row in group if row.entry for seed in row.entry.result.training.seeds]
        if len(group) > 1 and len(set(seeds)) == len(seeds):
            scores = [row.rsum for row in group]
            spread = Seeds(len(group), mean(scores), stdev(scores))
            found |= {row.entry.name: spread for row in group if row.entry}
    return found
