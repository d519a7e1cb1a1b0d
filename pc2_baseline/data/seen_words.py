"""Words on both sides of a pair: columns of the regions, and the same vectors of the captions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float

from now_builder.formats.word_vectors import WIDTH, count_units, letter_vector, unit_vector


@dataclass(frozen=True)
class SeenWords:
    """Columns of a region that hold the words read on it, and the text of each pair's caption.

    The texts are read when they are first asked for: most methods need none.
    """

    columns: slice
    read_texts: Callable[[], Sequence[str]]

    @cached_property
    def texts(self) -> Sequence[str]:
        """The text of each caption."""
        return self.read_texts()

    @cached_property
    def letters(self) -> Float[np.ndarray, "pairs 256"]:
        """A unit vector of each caption: the sum of its letters', as a region's is.

        Each letter also counts by itself. A caption without letters has a vector of zeros.
        """
        known = {text: _letters(text) for text in dict.fromkeys(self.texts)}
        return np.stack([known[text] for text in self.texts])


_ALONE = 0.6
"""Weight of each letter by itself: a reader that errs in its neighbours still reads it."""


def _letters(text: str) -> Float[np.ndarray, " 256"]:
    total = np.zeros(WIDTH, dtype=np.float32)
    for unit, count in count_units(text).items():
        total += count * (unit_vector(unit) + _ALONE * letter_vector(unit[1]))
    scaled: np.ndarray = total / max(np.linalg.norm(total), np.float32(1e-12))
    return scaled
