"""Intervals of shares."""

from math import sqrt

Z95 = 1.959963984540054
"""Standard errors on either side of a 95 % interval."""


def wilson(hits: float, total: int) -> tuple[float, float]:
    """Return the 95 % interval of the share of hits, in [0, 1].

    Source:
        Wilson, Probable Inference, the Law of Succession, and Statistical Inference, JASA 1927.
    """
    share, z2 = hits / total, Z95**2
    middle = (share + z2 / (2 * total)) / (1 + z2 / total)
    half = Z95 / (1 + z2 / total) * sqrt(share * (1 - share) / total + z2 / (4 * total**2))
    return (
        0.0 if hits == 0 else max(0.0, middle - half),
        1.0 if hits == total else min(1.0, middle + half),
    )
