"""What is computed once of an entry, or of two, and kept for all later boards."""

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


class Kept:
    """What the boards of one set of entries and of the next have in common.

    An entry's name stands for its content, so that nothing kept is ever wrong.

    Attributes:
        pairs: comparisons of entries with each other.
        rendered: rows as HTML, by board, then by all that they show.
        lock: held by whoever makes a board or a page with it.
    """

    def __init__(self) -> None:
        self.pairs = Pairs()
        self.rendered: dict[str, dict[Key, Markup]] = {}
        self.lock = threading.RLock()
        self._hits: dict[Key, Hits] = {}

    def hits(self, records: Mapping[Key, RankRecord]) -> list[Hits]:
        """Return the hits of entries; keys are their names and what else tells records apart."""
        fresh = [key for key in records if key not in self._hits]
        if fresh:
            found = [hits_per_image(*records[key].read(), records[key].owner()) for key in fresh]
            drawn = resampled(np.stack(found))
            self._hits |= dict(zip(fresh, map(Hits, found, drawn), strict=True))
        return [self._hits[key] for key in records]
