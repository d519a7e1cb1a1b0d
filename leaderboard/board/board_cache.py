"""Values computed once for an entry, or for two, and kept for later boards."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from jaxtyping import Float
from markupsafe import Markup

from leaderboard.core.uncertainty import resampled
from leaderboard.metrics import hits_per_image
from leaderboard.scoring.result import RankRecord
from leaderboard.store.relative import Pairs

Key: TypeAlias = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Hits:
    """Expected hits of an entry.

    Attributes:
        per_image: hits of each image and, on average, of its captions.
        drawn: their sums on resampled test sets, see
            :func:`leaderboard.core.uncertainty.resampled`.
    """

    per_image: Float[np.ndarray, " images"]
    drawn: Float[np.ndarray, " draws"]


class BoardCache:
    """Values that a board and the next one share. An entry's name identifies its content.

    Attributes:
        pairs: comparisons of entries with each other.
        rendered: rows as HTML, by board, then by all that they show.
        lock: held while a board or a page is made with the cache.
    """

    def __init__(self) -> None:
        self.pairs = Pairs()
        self.rendered: dict[str, dict[Key, Markup]] = {}
        self.lock = threading.RLock()
        self._hits: dict[Key, Hits] = {}

    def hits(self, records: Mapping[Key, RankRecord]) -> list[Hits]:
        """Return the hits of rank records, each by a key of its own."""
        fresh = [key for key in records if key not in self._hits]
        if fresh:
            hits = [hits_per_image(*records[key].read(), records[key].owner()) for key in fresh]
            drawn = resampled(np.stack(hits))
            self._hits |= dict(zip(fresh, map(Hits, hits, drawn), strict=True))
        return [self._hits[key] for key in records]
