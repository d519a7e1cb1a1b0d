"""Words on both sides of a pair: columns of the regions, the captions, and texts of the pages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float

from now_builder.formats.word_vectors import text_vector


@dataclass(frozen=True)
class SeenWords:
    """Columns of a region that hold the words read on it, and the text of each pair's caption.

    The texts are read when they are first asked for: most methods need none. ``read_pages`` reads
    those on the pages; ``None`` where they are not known.
    """

    columns: slice
    read_texts: Callable[[], Sequence[str]]
    read_pages: Callable[[], Sequence[str]] | None = None

    @cached_property
    def texts(self) -> Sequence[str]:
        """The text of each caption."""
        return self.read_texts()

    @cached_property
    def letters(self) -> Float[np.ndarray, "pairs 256"]:
        """A unit vector of each caption: the sum of its letters', as a region's is.

        Each letter also counts by itself. A caption without letters has a vector of zeros.
        """
        known = {text: text_vector(text) for text in dict.fromkeys(self.texts)}
        return np.stack([known[text] for text in self.texts])
