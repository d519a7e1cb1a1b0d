"""Comparison of two entries on the same queries, as shown on a page."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from leaderboard.board.display_text import WAYS, listed
from leaderboard.board.tables import Row, Section
from leaderboard.core.uncertainty import SIGNIFICANT, Comparison, Discordance
from leaderboard.metrics import CUTOFFS, Ranks
from leaderboard.scoring.pairing import compare_results
from leaderboard.scoring.result import RankRecord, Result
from leaderboard.site.charts import Chart, Style, curves_of, recall_chart
from leaderboard.submission.archive import Description

_LISTED = 12
_DESCRIBED = {*Description.model_fields, "precision"} - {"links", "environment"}


@dataclass(frozen=True, slots=True)
class RecallLine:
    """One recall of both entries."""

    cutoff: int
    first: float
    second: float
    test: Discordance


@dataclass(frozen=True, slots=True)
class Way:
    """One direction of both entries.

    Attributes:
        better: number of queries on which the first ranks the right candidate higher, both rank it
            as high, the second ranks it higher.
    """

    title: str
    recalls: tuple[RecallLine, ...]
    better: tuple[int, int, int]
    chart: Chart


@dataclass(frozen=True, slots=True)
class PairView:
    """A page's comparison of two entries."""

    first: Row
    second: Row
    figures: Comparison
    significant: bool
    ways: tuple[Way, ...]
    differences: tuple[tuple[str, str, str], ...]


def make_comparison(section: Section, row: Row, other: Row) -> PairView | None:
    """Compare two rows of a section; None if one of them has no public ranks."""
    known = section.comparable
    if row not in known or other not in known or row.entry is None or other.entry is None:
        return None
    first, second = (row, other) if known.index(row) < known.index(other) else (other, row)
    results = [entry.shown for entry in (first.entry, second.entry) if entry]
    records = [result.ranks for result in results if result.ranks]
    figures = compare_results(*results)
    return PairView(
        first=first,
        second=second,
        figures=figures,
        significant=figures.p < SIGNIFICANT,
        ways=_ways(first, second, records, figures),
        differences=tuple(_differences(*results)),
    )


def _ways(
    first: Row, second: Row, records: list[RankRecord], figures: Comparison
) -> tuple[Way, ...]:
    names = [row.method for row in (first, second)]
    if names[0] == names[1]:
        names = [f"{row.method} ({row.entry.name[:6]})" for row in (first, second) if row.entry]
    styles: tuple[Style, Style] = ("a", "b")
    curves = [
        curves_of(record, (style, style), WAYS)
        for record, style in zip(records, styles, strict=True)
    ]
    ways = []
    for number, (title, tests) in enumerate(zip(WAYS, (figures.i2t, figures.t2i), strict=True)):
        pair = [replace(way[number], label=name) for way, name in zip(curves, names, strict=True)]
        ranks = [record.read()[number] for record in records]
        ways.append(
            Way(
                title=title,
                recalls=tuple(
                    RecallLine(cutoff, first.recalls[place], second.recalls[place], tests[cutoff])
                    for place, cutoff in enumerate(CUTOFFS, 3 * number)
                ),
                better=_better(*ranks),
                chart=recall_chart(f"curve-{number}", f"Recall at K, {title}", pair),
            )
        )
    return tuple(ways)


def _better(first: Ranks, second: Ranks) -> tuple[int, int, int]:
    own, other = (
        way.greater + (way.equal + way.right + 1) / (way.right + 1) for way in (first, second)
    )
    higher, same = np.count_nonzero(own < other), np.count_nonzero(own == other)
    return int(higher), int(same), int(np.count_nonzero(own > other))


def _differences(first: Result, second: Result) -> list[tuple[str, str, str]]:
    """List the differing fields of two descriptions, dotted, with both values."""
    results = (first, second)
    trees = [_flat(each.model_dump(mode="json", include=_DESCRIBED)) for each in results]
    return [
        (field, trees[0].get(field, ""), trees[1].get(field, ""))
        for field in dict.fromkeys([*trees[0], *trees[1]])
        if field != "method.name" and trees[0].get(field, "") != trees[1].get(field, "")
    ]


def _flat(tree: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            found[prefix + name] = listed(value, _LISTED)
        elif isinstance(value, bool):
            found[prefix + name] = "yes" if value else "no"
        elif value is not None:
            found[prefix + name] = str(value)
    return found
