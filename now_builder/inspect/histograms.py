"""Histograms: numbers sorted into bins, and the bars of a drawing."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Integer

_BINS = 30


@dataclass(frozen=True, slots=True)
class Histogram:
    """Distribution of a number over pairs: lower ends of bins, pairs in each, width of a bin."""

    edges: list[float]
    counts: list[int]
    width: float


def histogram_of(counts: Integer[np.ndarray, " pairs"]) -> Histogram:
    """Bin counts in steps of 1, 2 or 5 (times a power of ten), up to where 99 % of them are."""
    top = max(1.0, float(np.quantile(counts, 0.99)))
    width = next(
        step * 10**power
        for power in range(12)
        for step in (1, 2, 5)
        if step * 10**power * _BINS > top
    )
    bins = int(top // width) + 2
    found = np.bincount(np.minimum(counts // width, bins - 1), minlength=bins)
    return Histogram([float(place * width) for place in range(bins)], found.tolist(), float(width))


@dataclass(frozen=True, slots=True)
class HistogramBars:
    """A histogram for SVG, 300 wide and 90 tall.

    A bar has left, width, height and label; a tick has place, anchor and label.
    """

    bars: list[tuple[float, float, float, str]]
    ticks: list[tuple[float, str, str]]


def draw(histogram: Histogram, *, open_end: bool = False, decimals: int = 0) -> HistogramBars:
    """Draw a histogram, whose last bin holds all from there on if it has an open end."""
    step, top = 300 / len(histogram.counts), max(1, *histogram.counts)

    def label(value: float) -> str:
        return f"{value:,.{decimals}f}"

    def named(place: int) -> str:
        low, last = histogram.edges[place], histogram.edges[place] + histogram.width
        if open_end and place == len(histogram.counts) - 1:
            return f"{label(low)} or more"
        high = last if decimals else last - 1
        return label(low) if high == low else f"{label(low)} to {label(high)}"

    bars = [
        (
            round(place * step + 0.4, 2), round(step - 0.8, 2), round(90 * count / top, 2),
            f"{named(place)}: {count:,}",
        )
        for place, count in enumerate(histogram.counts)
    ]  # fmt: skip
    middle = len(bars) // 2
    last = f"{label(histogram.edges[-1])}+" if open_end else named(len(bars) - 1).split(" to ")[-1]
    ticks = [
        (0.0, "start", label(histogram.edges[0])),
        (round(middle * step, 2), "start", label(histogram.edges[middle])),
        (300.0, "end", last),
    ]
    return HistogramBars(bars, ticks)
