"""Parts of a table: queries of one language or site, and runs that differ in their seeds."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from leaderboard.board.tables import RECALLS
from leaderboard.core.uncertainty import bootstrap_rsum
from leaderboard.metrics import CUTOFFS, expected_hits
from leaderboard.scoring.result import RankRecord

MIN_PAIRS = 20
"""Pairs that a language or a site has at least, to get figures of its own."""

_MOST = 12
_REPLICATES = 1000


def groups_of(record: RankRecord, labels: Sequence[str]) -> list[dict[str, Any]]:
    """Compute the figures of the queries of each label, ranked among all candidates of the split.

    Labels of fewer than :data:`MIN_PAIRS` pairs are put together, and left out if these are fewer
    too, or all.

    Returns:
        By group its name, pairs, six recalls in percent, rSum, and the ends of its 95 % interval,
        by a bootstrap over the group's pairs, or over their owners; none unless each label is of
        one pair.
    """
    if not len(labels) == len(record.i2t.greater) == len(record.t2i.greater):
        return []
    counts = sorted(Counter(labels).items(), key=lambda item: (-item[1], item[0]))
    named = [label for label, count in counts[:_MOST] if count >= MIN_PAIRS]
    others = f"{len(counts) - len(named)} others"
    ways = [expected_hits(way, cutoff) for way in record.read() for cutoff in CUTOFFS]
    hits = pd.DataFrame(np.stack(ways, axis=1), columns=list(RECALLS))
    group = pd.Series([label if label in named else others for label in labels])
    clusters, _ = record.clusters()
    groups: list[dict[str, Any]] = []
    for name in [*named, others] if named else ():
        part = hits[group == name]
        if len(part) >= MIN_PAIRS:
            recalls = dict(zip(RECALLS, (100 * part.mean()).tolist(), strict=True))
            owners = None if clusters is None else clusters[group == name]
            low, high, _ = bootstrap_rsum(part.sum(axis=1).to_numpy(), _REPLICATES, owners)
            figures = {"rsum": sum(recalls.values()), "low": low, "high": high}
            groups.append({"name": name, "pairs": len(part), **recalls, **figures})
    return groups


def seeds_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the mean over seeds, as text, of each row that was filed with several, by entry.

    Such rows are of the same authors and method, with the same evidence: only their seeds differ,
    and no two have one in common.
    """
    runs: dict[tuple[object, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        result = row["item"].shown if row["entry"] else None
        if result and result.authors and result.training.seeds:
            training = result.training.model_copy(update={"seeds": ()})
            method = result.method.name, result.method.version, result.postprocessing
            runs[result.authors, row["evidence"], *method, training].append(row)
    found: dict[str, str] = {}
    for group in runs.values():
        seeds = [seed for row in group for seed in row["item"].shown.training.seeds]
        if len(group) > 1 and len(set(seeds)) == len(seeds):
            rsums = pd.Series([row["rsum"] for row in group])
            text = f"{len(group)} seeds: {rsums.mean():.1f} ± {rsums.std():.1f}"
            found |= {row["entry"]: text for row in group}
    return found
