"""What a figure is fine enough for: a place in spite of ties, an answer of an open blind round."""

from math import floor, log10, sqrt

MAX_TIE_WIDTH = 5.0
"""Maximum number of rSum points that ties may decide in a ranked result."""


def steps_of(pairs: int) -> tuple[float, float]:
    """Return the steps of a recall in percent and of rSum, by the number of pairs.

    Each is the number of 1, 2, 5, 10, 20, … nearest to the largest standard error that the figure
    can have: a hit is 0 or 1, the hits of a pair in both directions and at three cutoffs 0 to 6.
    With 1,000 pairs they are 2 and 10, so that a recall is no count any more.

    Source:
        Blum and Hardt, The Ladder: A Reliable Leaderboard for Machine Learning Competitions, ICML
        2015, whose step is near one standard error too.
    """
    return _round_number(50 / sqrt(pairs)), _round_number(300 / sqrt(pairs))


def to_step(value: float, step: float) -> float:
    """Return the multiple of a step that is nearest to a value."""
    return round(step * round(value / step), 6)


def _round_number(value: float) -> float:
    unit: float = 10.0 ** floor(log10(value))
    return min((unit, 2 * unit, 5 * unit, 10 * unit), key=lambda step: abs(log10(step / value)))
