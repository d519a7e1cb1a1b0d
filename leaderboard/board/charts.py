"""Geometry of the pages' charts: recall over K, histogram of ranks, and progress over time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from math import ceil, floor, log
from typing import Any, Literal

import numpy as np

from leaderboard.core.uncertainty import clustered_interval, recall_interval
from leaderboard.metrics import Ranks, expected_hits
from leaderboard.scoring.result import RankRecord

# as in the macro chart of parts.html.j2
_LEFT, _RIGHT, _TOP, _BOTTOM = 38.0, 388.0, 12.0, 206.0
_KS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100)
_TABLE_KS = (1, 2, 3, 5, 10, 20, 50, 100)
_EDGES = (1, 5, 10, 20, 50, 100, 500, 1000, 5000, 10000)
_STEPS = (1.0, 2.0, 5.0, 10.0, 20.0, 25.0, 50.0, 100.0)
_FAR_BELOW = 0.8

Style = Literal["a", "b", "quiet"]
_BOTH: tuple[Style, Style] = ("a", "b")
Points = Sequence[tuple[float, float]]
Ticks = Sequence[tuple[float, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart in units of the drawing, and its data as a table.

    Attributes:
        name: name that is unique on the page.
        lines: style, points, and the polygon of its band.
        boxes: style, left, top, width and height of a bar.
        dots: style, place and text of a point.
        table: rows of cells, the first of them the head.
    """

    name: str
    title: str
    x_label: str
    y_label: str
    x_ticks: Ticks
    y_ticks: Ticks
    table: Sequence[Sequence[str]]
    legend: Sequence[tuple[Style, str]]
    lines: Sequence[tuple[Style, Points, Points]] = ()
    boxes: Sequence[tuple[Style, float, float, float, float]] = ()
    dots: Sequence[tuple[Style, float, float, str]] = ()


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Map a range of values onto a range of the drawing, to a hundredth of a unit."""
    return lambda value: round(start + (value - low) / (high - low) * (end - start), 2)


def _y_axis(low: float, high: float) -> tuple[Callable[[float], float], Ticks, float]:
    """Return the scale of a vertical axis, its ticks and its low end, on round numbers."""
    step = next((s for s in _STEPS if (high - low) / s <= 5), _STEPS[-1])
    first, last = floor(low / step), max(ceil(high / step), floor(low / step) + 1)
    y = _scale(step * first, step * last, _BOTTOM, _TOP)
    ticks = [(y(step * n), f"{step * n:g}") for n in range(first, last + 1)]
    return y, ticks, step * first


def recall_chart(record: RankRecord, labels: Sequence[str]) -> Chart:
    """Draw recall over K of both directions, from 1 to 100 on a logarithmic axis."""
    ways = record.read()
    last = max(len(way.greater) for way in ways)
    ks = [k for k in _KS if k <= last]
    x, (y, y_ticks, _) = _scale(0.0, log(max(ks[-1], 2)), _LEFT, _RIGHT), _y_axis(0.0, 100.0)
    at = [x(log(k)) for k in ks]
    lines: list[tuple[Style, Points, Points]] = []
    columns = []
    for style, way, owners in zip(_BOTH, ways, record.clusters(), strict=True):
        hits = [expected_hits(way, k) for k in ks]
        shares = [100 * float(found.mean()) for found in hits]
        low, high = zip(
            *(recall_interval(float(found.sum()), len(found)) if owners is None
              else clustered_interval(found, owners) for found in hits),
            strict=True,
        )  # fmt: skip
        band = [*zip(at, map(y, high), strict=True), *[*zip(at, map(y, low), strict=True)][::-1]]
        lines.append((style, [*zip(at, map(y, shares), strict=True)], band))
        columns.append([f"{row[0]:.1f} ({row[1]:.1f} – {row[2]:.1f})"
                        for k, *row in zip(ks, shares, low, high, strict=True)
                        if k in _TABLE_KS])  # fmt: skip
    table = [["K", *labels], *zip([str(k) for k in ks if k in _TABLE_KS], *columns, strict=True)]
    return Chart(
        name="curves",
        title="Recall at K, both ways",
        x_label="K",
        y_label="R@K, %",
        x_ticks=[(x(log(k)), str(k)) for k in ks if k in _TABLE_KS and k != 3],
        y_ticks=y_ticks,
        lines=lines,
        legend=[*zip(_BOTH, labels, strict=True)],
        table=table,
    )


def rank_chart(record: RankRecord, labels: Sequence[str]) -> Chart:
    """Draw a histogram of the ranks of right candidates; a tie counts as its middle rank."""
    ways = record.read()
    most = max(len(way.greater) for way in ways)
    edges = [edge for edge in _EDGES if edge < most] + [most]
    names = [f"{a + 1}" if a + 1 == b else f"{a + 1}–{b}"
             for a, b in zip([0, *edges], edges, strict=False)]  # fmt: skip
    shares = [_shares(way, edges) for way in ways]
    y, y_ticks, _ = _y_axis(0.0, max(map(max, shares)))
    step = (_RIGHT - _LEFT) / len(edges)
    boxes = [
        (style, _LEFT + step * (place + 0.12 + 0.38 * n), y(share), step * 0.36, y(0.0) - y(share))
        for n, (style, way) in enumerate(zip(_BOTH, shares, strict=True))
        for place, share in enumerate(way)
    ]
    return Chart(
        name="ranks",
        title="Queries by the rank of their correct match, in percent",
        x_label="rank of the correct match",
        y_label="queries, %",
        x_ticks=[(_LEFT + step * (place + 0.5), name.replace("000", "k"))
                 for place, name in enumerate(names)],
        y_ticks=y_ticks,
        boxes=boxes,
        legend=[*zip(_BOTH, labels, strict=True)],
        table=[
            ["Rank", *labels],
            *([name, *(f"{way[place]:.1f}" for way in shares)] for place, name in enumerate(names)),
        ],
    )  # fmt: skip


def _shares(ranks: Ranks, edges: Sequence[int]) -> list[float]:
    middle = ranks.greater + (ranks.equal + ranks.right + 1) / (ranks.right + 1)
    bins = np.minimum(np.searchsorted(np.array(edges), np.floor(middle)), len(edges) - 1)
    counts = np.bincount(bins, minlength=len(edges))
    return [float(100 * count / len(middle)) for count in counts]


def progress_chart(name: str, rows: Sequence[Mapping[str, Any]]) -> Chart | None:
    """Draw the best rSum so far over time; None if all rows have the same date.

    Claims that somebody sent are dots, and do not move the line. Rows far below the best are only
    in the table; reported rows are placed in the middle of their year.
    """
    dated = sorted(
        ((_when(row["date"]), row) for row in rows if row["date"] and row["ranked"]),
        key=lambda pair: (pair[0], -pair[1]["rsum"], pair[1]["method"]),
    )
    if len(dated) < 2 or dated[0][0] == dated[-1][0]:
        return None
    first, end = dated[0][0], dated[-1][0]
    margin = max((end - first) * 0.06, 0.01)
    x = _scale(first - margin, end + margin, _LEFT, _RIGHT)
    high = max(row["rsum"] for _, row in dated)
    near = [row["rsum"] for _, row in dated if row["rsum"] > _FAR_BELOW * high]
    y, y_ticks, bottom = _y_axis(min(dated[0][1]["rsum"], *near), high)
    points: list[tuple[float, float]] = []
    best = 0.0
    for when, row in dated:
        if row["rsum"] > best and (row["proof"] or not row["entry"]) and not row["equal_to"]:
            points += [(x(when), y(best))] if points else []
            points.append((x(when), y(row["rsum"])))
            best = row["rsum"]
    points += [(x(end), y(best))] if points else []
    legend: list[tuple[Style, str]] = [("a", "scored here"), ("quiet", "reported by a paper")]
    return Chart(
        name=name,
        title=f"Best proof or reported rSum so far, {len(dated)} rows",
        x_label="",
        y_label="rSum",
        x_ticks=_time_ticks(first - margin, end + margin, x),
        y_ticks=y_ticks,
        lines=[("a", points, ())],
        dots=[
            (
                "a" if row["entry"] else "quiet",
                x(when),
                y(row["rsum"]),
                f"{row['method']}: {row['rsum']:.1f}, {row['date']}",
            )
            for when, row in dated
            if row["rsum"] >= bottom
        ],
        legend=legend,
        table=[
            ["Method", "rSum", "Date"],
            *([row["method"], f"{row['rsum']:.1f}", row["date"]] for _, row in dated),
        ],
    )


def _when(text: str) -> float:
    """Return a day as a fraction of years, and a bare year as its middle."""
    if len(text) == 4:
        return int(text) + 0.5
    day = date.fromisoformat(text)
    return day.year + (day.timetuple().tm_yday - 1) / 366


def _time_ticks(first: float, last: float, x: Callable[[float], float]) -> Ticks:
    """Make ticks by year, or by month for short times."""
    parts = 1 if last - first > 2 else 12
    numbers = range(ceil(first * parts), floor(last * parts) + 1)
    every = max(1, ceil(len(numbers) / 6))
    ticks = []
    for number in numbers[::every]:
        year, month = divmod(number, parts)
        text = str(year) if parts == 1 else f"{year}-{month + 1:02d}"
        ticks.append((x(number / parts), text))
    return ticks
