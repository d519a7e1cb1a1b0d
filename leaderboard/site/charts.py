"""Geometry of the pages' charts: recall over K, histogram of ranks, and progress over time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from math import floor, log
from typing import Literal

import numpy as np
from jaxtyping import Float

from leaderboard.board.tables import Row, Section
from leaderboard.core.uncertainty import recall_interval
from leaderboard.metrics import Ranks, expected_hits
from leaderboard.scoring.result import RankRecord

WIDTH, HEIGHT = 400.0, 240.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 38.0, 12.0, 12.0, 34.0
_KS = (*range(1, 11), 12, 15, 20, 25, 30, 40, 50, 60, 80, 100)
_TABLE_KS = (1, 2, 3, 5, 10, 20, 50, 100)
_EDGES = (1, 5, 10, 20, 50, 100, 500, 1000, 5000, 10000)
_STEPS = (1.0, 2.0, 5.0, 10.0, 20.0, 25.0, 50.0, 100.0)
_MOST_TICKS = 6
_CLEAR = 14
_FAR_BELOW = 0.8

Style = Literal["a", "b", "quiet"]
Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Tick:
    """A tick of an axis, in units of the drawing."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Polyline:
    """A line through points, with its band as a closed polygon."""

    style: Style
    label: str
    points: Points
    band: Points = ()


@dataclass(frozen=True, slots=True)
class Box:
    """A bar of a histogram."""

    style: Style
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Dot:
    """A point that represents a row."""

    style: Style
    x: float
    y: float
    label: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart, and its data as a table, whose first cells are the heads of the rows.

    The name is unique on its page, the title for screen readers.
    """

    name: str
    title: str
    x_label: str
    y_label: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    head: tuple[str, ...]
    table: tuple[tuple[str, ...], ...]
    lines: tuple[Polyline, ...] = ()
    boxes: tuple[Box, ...] = ()
    dots: tuple[Dot, ...] = ()
    legend: tuple[tuple[Style, str], ...] = ()
    left: float = _LEFT
    right: float = WIDTH - _RIGHT
    bottom: float = HEIGHT - _BOTTOM
    width: float = WIDTH
    height: float = HEIGHT


@dataclass(frozen=True, slots=True)
class Curve:
    """Recall at K of one direction of one entry, and its 95 % interval, by K."""

    style: Style
    label: str
    recalls: dict[int, float]
    intervals: dict[int, tuple[float, float]]


def curves_of(
    record: RankRecord, styles: tuple[Style, Style], labels: tuple[str, str]
) -> list[Curve]:
    """Compute recall at K of both directions, up to the length of gallery and lists."""
    ways, curves = record.read(), []
    for way, other, style, label in zip(ways, ways[::-1], styles, labels, strict=True):
        n, last = len(way.greater), len(other.greater)
        last = min(last, record.depth or last)
        hits = {k: float(_hits(way, k).sum()) for k in sorted({*_KS, *_TABLE_KS}) if k <= last}
        recalls = {k: 100 * found / n for k, found in hits.items()}
        intervals = {k: recall_interval(found, n) for k, found in hits.items()}
        curves.append(Curve(style, label, recalls, intervals))
    return curves


def _hits(ranks: Ranks, cutoff: int) -> Float[np.ndarray, " queries"]:
    """Compute :func:`expected_hits`, faster for queries with one right candidate."""
    hits = np.clip((cutoff - ranks.greater) / (ranks.equal + 1), 0.0, 1.0)
    several = (ranks.right > 1) & (ranks.equal > 0)
    if several.any():
        parts = (ranks.greater, ranks.equal, ranks.later, ranks.right)
        hits[several] = expected_hits(Ranks(*(part[several] for part in parts)), cutoff)
    return np.asarray(hits)


def recall_chart(name: str, title: str, curves: Sequence[Curve]) -> Chart:
    """Draw recall over K, from 1 to 100 on a logarithmic axis."""
    last = max(max(curve.recalls) for curve in curves)
    x = _scale(log(1), log(max(last, 2)), _LEFT, WIDTH - _RIGHT)
    y = _scale(0.0, 100.0, HEIGHT - _BOTTOM, _TOP)
    ks = [k for k in _TABLE_KS if k <= last]
    return Chart(
        name=name,
        title=title,
        x_label="K",
        y_label="R@K, %",
        x_ticks=tuple(Tick(x(log(k)), str(k)) for k in ks if k != 3),
        y_ticks=tuple(Tick(y(v), f"{v:.0f}") for v in (0.0, 20.0, 40.0, 60.0, 80.0, 100.0)),
        lines=tuple(_line(curve, lambda k: x(log(k)), y) for curve in curves),
        legend=tuple((curve.style, curve.label) for curve in curves),
        head=("K", *(curve.label for curve in curves)),
        table=tuple((str(k), *(_recall(curve, k) for curve in curves)) for k in ks),
    )


def _line(curve: Curve, x: Callable[[int], float], y: Callable[[float], float]) -> Polyline:
    upper = [(x(k), y(high)) for k, (_, high) in curve.intervals.items()]
    lower = [(x(k), y(low)) for k, (low, _) in curve.intervals.items()]
    return Polyline(
        curve.style,
        curve.label,
        tuple((x(k), y(value)) for k, value in curve.recalls.items()),
        tuple(upper + lower[::-1]),
    )


def _recall(curve: Curve, k: int) -> str:
    if k not in curve.recalls:
        return "–"
    low, high = curve.intervals[k]
    return f"{curve.recalls[k]:.1f} ({low:.1f} – {high:.1f})"


def rank_chart(name: str, record: RankRecord, labels: tuple[str, str]) -> Chart:
    """Draw a histogram of the ranks of right candidates; a tie counts as its middle rank."""
    ways = record.read()
    most = max(len(way.greater) for way in ways)
    edges = [edge for edge in _EDGES if edge < most] + [most]
    starts = [1, *(edge + 1 for edge in edges[:-1])]
    names = [f"{a}" if a == b else f"{a}–{b}" for a, b in zip(starts, edges, strict=True)]
    shares = [_shares(way, edges, record.depth) for way in ways]
    highest = max(max(way) for way in shares)
    top = next((end for end in _STEPS[2:] if highest <= end), _STEPS[-1])
    y = _scale(0.0, top, HEIGHT - _BOTTOM, _TOP)
    step = (WIDTH - _RIGHT - _LEFT) / len(edges)
    styles: tuple[Style, Style] = ("a", "b")
    return Chart(
        name=name,
        title="Queries by the rank of their correct match, in percent",
        x_label="rank of the correct match",
        y_label="queries, %",
        x_ticks=tuple(
            Tick(_LEFT + step * (place + 0.5), _range(start, edge))
            for place, (start, edge) in enumerate(zip(starts, edges, strict=True))
        ),
        y_ticks=tuple(Tick(y(top * n / 5), f"{top * n / 5:g}") for n in range(6)),
        boxes=tuple(
            Box(
                style,
                _LEFT + step * (place + 0.12 + 0.38 * number),
                y(share),
                step * 0.36,
                y(0.0) - y(share),
            )
            for number, (style, way) in enumerate(zip(styles, shares, strict=True))
            for place, share in enumerate(way)
        ),
        legend=tuple(zip(styles, labels, strict=True)),
        head=("Rank", *labels),
        table=tuple(
            (name, *(f"{way[place]:.1f}" for way in shares)) for place, name in enumerate(names)
        ),
    )


def _shares(ranks: Ranks, edges: Sequence[int], depth: int | None) -> list[float]:
    middle = ranks.greater + (ranks.equal + ranks.right + 1) / (ranks.right + 1)
    bins = np.searchsorted(np.array(edges), np.floor(middle))
    if depth is not None:  # a list says nothing of ranks behind its end
        bins = np.where(ranks.greater >= depth, len(edges) - 1, bins)
    counts = np.bincount(np.minimum(bins, len(edges) - 1), minlength=len(edges))
    return [float(100 * count / len(middle)) for count in counts]


def _range(first: int, last: int) -> str:
    """Return a range of ranks as a tick's text, short for large ranks."""
    return str(first) if first == last else f"{_short(first)}–{_short(last)}"


def _short(value: int) -> str:
    return f"{value / 1000:.3g}k" if value >= 1000 else str(value)


def progress_chart(name: str, section: Section) -> Chart | None:
    """Draw the best rSum so far over time; None if all rows have the same date.

    Claims that somebody sent are dots, and do not move the line. Rows far below the best are only
    in the table; reported rows are placed in the middle of their year.
    """
    dated = sorted(
        ((_when(row), row) for row in section.rows if row.date and row.ranked),
        key=lambda pair: (pair[0], -pair[1].rsum, pair[1].method),
    )
    if len(dated) < 2 or dated[0][0] == dated[-1][0]:
        return None
    first, end = dated[0][0], dated[-1][0]
    margin = max((end - first) * 0.06, 0.01)
    x = _scale(first - margin, end + margin, _LEFT, WIDTH - _RIGHT)
    high = max(row.rsum for _, row in dated)
    low = min(dated[0][1].rsum, *(row.rsum for _, row in dated if row.rsum > _FAR_BELOW * high))
    step = next((s for s in _STEPS if (high - low) / s < _MOST_TICKS - 1), _STEPS[-1])
    bottom, top = step * floor(low / step), step * (floor(high / step) + 1)
    y = _scale(bottom, top, HEIGHT - _BOTTOM, _TOP)
    n_ticks = round((top - bottom) / step) + 1
    kinds = {row.reported is not None for _, row in dated}
    legend: dict[bool, tuple[Style, str]] = {
        False: ("a", "scored here"),
        True: ("quiet", "reported by a paper"),
    }
    return Chart(
        name=name,
        title=f"Best proof or reported rSum so far, {len(dated)} rows",
        x_label="",
        y_label="rSum",
        x_ticks=_years(dated, x) or _time_ticks(first - margin, end + margin, x),
        y_ticks=tuple(Tick(y(bottom + n * step), f"{bottom + n * step:g}") for n in range(n_ticks)),
        lines=(Polyline("a", "best proof or report", _best_so_far(dated, end, x, y)),),
        dots=tuple(_dot(row, x(when), y(row.rsum)) for when, row in dated if row.rsum >= bottom),
        legend=tuple(legend[kind] for kind in sorted(kinds)),
        head=("Method", "rSum", "Date"),
        table=tuple((row.method, f"{row.rsum:.1f}", row.date or "") for _, row in dated),
    )


def _years(dated: Sequence[tuple[float, Row]], x: Callable[[float], float]) -> tuple[Tick, ...]:
    """Make a tick per year if all rows are reported."""
    if any(row.reported is None for _, row in dated):
        return ()
    years = range(floor(dated[0][0]), floor(dated[-1][0]) + 1)
    return tuple(Tick(x(year + 0.5), str(year)) for year in years)


def _dot(row: Row, x: float, y: float) -> Dot:
    style: Style = "quiet" if row.entry is None else "a"
    return Dot(style, x, y, f"{row.method}: {row.rsum:.1f}, {row.date}")


def _best_so_far(
    dated: Sequence[tuple[float, Row]],
    end: float,
    x: Callable[[float], float],
    y: Callable[[float], float],
) -> Points:
    points: list[tuple[float, float]] = []
    best = 0.0
    for when, row in dated:
        if row.rsum > best and (row.proof or row.reported) and not row.equal_to:
            points += [(x(when), y(best))] if points else []
            points.append((x(when), y(row.rsum)))
            best = row.rsum
    return (*points, (x(end), y(best))) if points else ()


def _when(row: Row) -> float:
    text = row.date or ""
    return int(text) + 0.5 if row.reported else _year(date.fromisoformat(text))


def _year(day: date) -> float:
    start, end = date(day.year, 1, 1), date(day.year + 1, 1, 1)
    return day.year + (day - start).days / (end - start).days


def _time_ticks(first: float, last: float, x: Callable[[float], float]) -> tuple[Tick, ...]:
    """Make ticks by year, or by quarter, month or week for short times."""
    for parts in (1, 4, 12, 52):
        every = max(1, round((last - first) * parts / _MOST_TICKS)) if parts == 1 else 1
        at = [n for n in range(floor(first * parts) + 1, floor(last * parts) + 1) if n % every == 0]
        if len(at) >= 2 or parts == 52:
            ticks = [Tick(x(n / parts), _time_name(n, parts)) for n in at[:8]]
            return tuple(tick for tick in ticks if tick.at > _LEFT + _CLEAR)
    return ()


def _time_name(number: int, parts: int) -> str:
    year, part = divmod(number, parts)
    if parts == 1:
        return str(year)
    if parts == 52:
        day = date.fromordinal(date(year, 1, 1).toordinal() + round(part * 365 / 52))
        return f"{day:%m-%d}"
    return f"{year}-{part * 12 // parts + 1:02d}"


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Map a range of values onto a range of the drawing, to a hundredth of a unit."""
    return lambda value: round(start + (value - low) / (high - low) * (end - start), 2)
