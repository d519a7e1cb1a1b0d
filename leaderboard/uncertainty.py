"""How far a score could be off by the choice of test pairs: intervals for recalls and rSum."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

import numpy as np
from jaxtyping import Float

REPLICATES = 10_000
SEED = 20240805
_Z95 = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """What resampling pairs says of rSum.

    Attributes:
        low: Lower end of the 95 % interval.
        high: Upper end.
        deviation: Standard deviation over the replicates.
    """

    low: float
    high: float
    deviation: float


def wilson(hits: float, n_pairs: int) -> tuple[float, float]:
    """Give the 95 % interval of a recall, in percent.

    Args:
        hits: Expected number of hits, 0 to ``n_pairs``.
        n_pairs: Queries.

    Source:
        Wilson, Probable Inference, the Law of Succession, and Statistical Inference, JASA 1927.
    """
    share, z2 = hits / n_pairs, _Z95**2
    middle = (share + z2 / (2 * n_pairs)) / (1 + z2 / n_pairs)
    spread = share * (1 - share) / n_pairs + z2 / (4 * n_pairs**2)
    half = _Z95 / (1 + z2 / n_pairs) * sqrt(spread)
    return 100 * max(0.0, middle - half), 100 * min(1.0, middle + half)


def bootstrap_rsum(
    per_image: Float[np.ndarray, " pairs"], replicates: int = REPLICATES, seed: int = SEED
) -> Bootstrap:
    """Resample pairs with both of their queries; the gallery, and so every rank, stays.

    A pair's image and caption are hit or missed together, so the two directions are not resampled
    apart. Pairs of equal hits are interchangeable: it is enough to draw how often each value
    occurs, which is the same distribution at a cost that does not grow with the split.

    Args:
        per_image: Hits of each image with its captions over both directions and all cutoffs, 0-6.
        replicates: Resamples.
        seed: Of PCG64.

    Source:
        Efron, Bootstrap Methods: Another Look at the Jackknife, 1979; percentile interval.
    """
    values, counts = np.unique(per_image, return_counts=True)
    generator = np.random.Generator(np.random.PCG64(seed))
    draws = generator.multinomial(len(per_image), counts / len(per_image), size=replicates)
    rsums = 100 * (draws @ values) / len(per_image)
    low, high = np.percentile(rsums, [2.5, 97.5])
    return Bootstrap(float(low), float(high), float(rsums.std()))


def closed_form_deviation(per_image: Float[np.ndarray, " pairs"]) -> float:
    """Give the standard error of rSum without resampling: the bootstrap's limit."""
    return float(100 * per_image.std() / sqrt(len(per_image)))


def least_deviation(recalls: list[Mapping[int, float]], n_pairs: int) -> float:
    """Give the least plausible standard error of an rSum of which only the recalls are known.

    The cutoffs of a direction are nested (a hit at 1 is a hit at 5), so their covariances follow
    from the recalls; the directions are taken as independent, though they help each other.

    Args:
        recalls: Of each direction: percent by cutoff.
        n_pairs: Queries of each direction.
    """
    variance = 0.0
    for way in recalls:
        shares = [way[cutoff] / 100 for cutoff in sorted(way)]
        for place, share in enumerate(shares):
            variance += share * (1 - share)
            variance += sum(2 * share * (1 - later) for later in shares[place + 1 :])
    return 100 * sqrt(variance / n_pairs)
