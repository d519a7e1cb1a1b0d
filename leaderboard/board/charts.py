"""Geometry of the charts: recall over K, histogram of ranks, and progress over time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from math import ceil, floor, log
from typing import Any, Literal

import numpy as np

from leaderboard.core.uncertainty import clustered_interval, recall_interval
from leaderboard.metrics import Ranks, expected_hits
from leaderboard.scoring.result import RankRecord

# Edges of the plot, as in the macro chart of parts.html.j2
_LEFT, _RIGHT, _TOP, _BOTTOM = 38.0, 388.0, 12.0, 206.0
_KS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100)
_TABLE_KS = (1, 2, 3, 5, 10, 20, 50, 100)
_EDGES = (1, 5, 10, 20, 50, 100, 500, 1000, 5000, 10000)
_STEPS = (1.0, 2.0, 5.0, 10.0, 20.0, 25.0, 50.0, 100.0)
_FAR_BELOW = 0.9
_CHARACTER, _LINE = 8.0, 13.5
"""Width of a character and distance of two labels, in units of the drawing."""

Style = Literal["a", "b", "c"]
_BOTH: tuple[Style, Style] = ("a", "b")
Points = Sequence[tuple[float, float]]
Ticks = Sequence[tuple[float, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart in units of the drawing, and its data as a table.

    Attributes:
        name: name that is unique on the page.
        lines: style, points, and the polygon of the band around the line.
        boxes: style, left, top, width and height of a bar.
        dots: style, position and text of a point, and whether it is faint.
        ends: style, height, height of the label, and text at the right end of a line.
        right: right edge of the plot.
        table: rows of cells; the first row is the head.
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
    dots: Sequence[tuple[Style, float, float, str, bool]] = ()
    ends: Sequence[tuple[Style, float, float, str]] = ()
    right: float = _RIGHT


@dataclass(frozen=True, slots=True)
class Series:
    """Comparable rows of a progress chart: their style, a short and a full name."""

    style: Style
    label: str
    title: str
    rows: Sequence[Mapping[str, Any]]


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
        shares = [100 * float(hit.mean()) for hit in hits]
        low, high = zip(
            *(recall_interval(float(hit.sum()), len(hit)) if owners is None
              else clustered_interval(hit, owners) for hit in hits),
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
        title="Recall at K of both directions",
        x_label="K",
        y_label="R@K, %",
        x_ticks=[(x(log(k)), str(k)) for k in ks if k in _TABLE_KS and k != 3],
        y_ticks=y_ticks,
        lines=lines,
        legend=[*zip(_BOTH, labels, strict=True)],
        table=table,
    )


def rank_chart(record: RankRecord, labels: Sequence[str]) -> Chart:
    """Draw a histogram of the ranks of the correct matches; a tie counts as its middle rank."""
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
        x_label="rank of the correct match, up to",
        y_label="queries, %",
        x_ticks=[(_LEFT + step * (place + 0.5), str(edge).replace("000", "k"))
                 for place, edge in enumerate(edges)],
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


def progress_chart(
    name: str, series: Sequence[Series], legend: Mapping[Style, str]
) -> Chart | None:
    """Draw the best rSum so far over time, a line for each series; None if no row has a date.

    Claims that somebody sent are faint dots and do not raise the line. Rows outside the axis, far
    below or above the best of their series, are only in the table. Reported rows are placed in
    the middle of their year.
    """
    dated = [(one, _dated(one.rows)) for one in series if _dated(one.rows)]
    if not dated:
        return None
    times = [when for _, rows in dated for when, _ in rows]
    margin = max((max(times) - min(times)) * 0.06, 0.04)
    first, end = min(times) - margin, max(times) + margin
    right = _RIGHT - _CHARACTER * (max(len(one.label) for one, _ in dated) + 1)
    x = _scale(first, end, _LEFT, right)
    near = _near([[row for _, row in rows] for _, rows in dated])
    y, y_ticks, bottom = _y_axis(min(near), max(near))
    lines: list[tuple[Style, Points, Points]] = []
    dots, ends = [], []
    for one, rows in dated:
        points: list[tuple[float, float]] = []
        best = bottom
        for when, row in rows:
            raises = row["rsum"] > best and (row["proof"] or not row["entry"])
            if raises := raises and not row["equal_to"]:
                points += [(x(when), y(best))] if points else []
                points.append((x(when), y(row["rsum"])))
                best = row["rsum"]
            if bottom <= row["rsum"] <= max(near):
                text = f"{row['method']}: {row['rsum']:.1f}, {row['date']}"
                dots.append((one.style, x(when), y(row["rsum"]), text, not raises))
        if points:
            lines.append((one.style, [*points, (right, y(best))], ()))
            ends.append((one.style, y(best), one.label))
    return Chart(
        name=name,
        title="Best rSum so far, proven or reported",
        x_label="",
        y_label="rSum",
        x_ticks=_time_ticks(first, end, x),
        y_ticks=y_ticks,
        lines=lines,
        dots=dots,
        ends=_spread(ends),
        right=right,
        legend=[(style, text) for style, text in legend.items()
                if any(one.style == style for one, _ in dated)],
        table=[
            ["Method", "Table", "rSum", "Date"],
            *([row["method"], one.title, f"{row['rsum']:.1f}", row["date"]]
              for one, rows in dated for _, row in rows),
        ],
    )  # fmt: skip


def _near(series: Sequence[Sequence[Mapping[str, Any]]]) -> list[float]:
    """Return the rSum of rows near the best of their series, without claims if there are others."""
    trusted = [[row for row in rows if row["proof"] or not row["entry"]] for rows in series]
    sums = [[row["rsum"] for row in rows] for rows in (trusted if any(trusted) else series) if rows]
    return [rsum for part in sums for rsum in part if rsum > _FAR_BELOW * max(part)]


def _dated(rows: Sequence[Mapping[str, Any]]) -> list[tuple[float, Mapping[str, Any]]]:
    """Return the ranked rows that have a date, in its order."""
    return sorted(
        ((_when(row["date"]), row) for row in rows if row["date"] and row["ranked"]),
        key=lambda pair: (pair[0], -pair[1]["rsum"], pair[1]["method"]),
    )


def _spread(
    ends: Sequence[tuple[Style, float, str]],
) -> list[tuple[Style, float, float, str]]:
    """Place the labels of lines inside the plot, so that none covers another."""
    ends = sorted(ends, key=lambda end: end[1])
    heights = [height for _, height, _ in ends]
    line = min(_LINE, (_BOTTOM - _TOP) / max(1, len(ends) - 1))
    for place in range(1, len(ends)):  # down from the top
        heights[place] = max(heights[place], heights[place - 1] + line)
    for place in range(len(ends) - 1, -1, -1):  # and up from the bottom
        below = heights[place + 1] - line if place + 1 < len(ends) else _BOTTOM
        heights[place] = round(min(heights[place], below), 2)
    return [(style, at, height, text)
            for (style, at, text), height in zip(ends, heights, strict=True)]  # fmt: skip


def _when(text: str) -> float:
    """Return a day as a fraction of years, and a bare year as its middle."""
    if len(text) == 4:
        return int(text) + 0.5
    day = date.fromisoformat(text)
    return day.year + (day.timetuple().tm_yday - 1) / 366


def _time_ticks(first: float, last: float, x: Callable[[float], float]) -> Ticks:
    """Make ticks by year, or by month for short times."""
    parts, most = (1, 6) if last - first > 2 else (12, 4)
    numbers = range(ceil(first * parts), floor(last * parts) + 1)
    every = max(1, ceil(len(numbers) / most))
    ticks = []
    for number in numbers[::every]:
        year, month = divmod(number, parts)
        text = str(year) if parts == 1 else f"{year}-{month + 1:02d}"
        ticks.append((x(number / parts), text))
    return [tick for tick in ticks if tick[0] > _LEFT + _CHARACTER] or ticks
