"""Figures of the queries of one language or site."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from leaderboard.core.uncertainty import bootstrap_rsum
from leaderboard.metrics import CUTOFFS, RECALLS, expected_hits
from leaderboard.scoring.result import RankRecord

MIN_PAIRS = 20
"""Minimum number of pairs of a language or site with its own figures."""

_MOST = 12
_REPLICATES = 1000


def groups_of(record: RankRecord, labels: Sequence[str]) -> list[dict[str, Any]]:
    """Compute the figures of the queries of each label, ranked among all candidates of the split.

    Labels with fewer than :data:`MIN_PAIRS` pairs are combined. A smaller combination is left out.

    Returns:
        For each group its name, number of pairs, six recalls in percent, rSum, and the ends of the
        95 % interval of rSum, by a bootstrap over the group's pairs or their owners. Empty unless
        each pair has a label, or if every label is too small.
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
