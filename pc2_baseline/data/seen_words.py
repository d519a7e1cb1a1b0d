"""Words on both sides of a pair: columns of the regions, and the same vectors of the captions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from now_builder.formats.captions import SPECIALS
from now_builder.formats.word_vectors import WIDTH, count_units, text_of_tokens, unit_vector


@dataclass(frozen=True)
class SeenWords:
    """What a detector that reads has stored, and what to compare it with.

    Attributes:
        columns: Columns of a region that hold the words on it.
        captions: Ids of each caption.
        tokens: Token of each id, which is text.
        tokenizer: The track.
    """

    columns: slice
    captions: Sequence[Int[np.ndarray, " _"]]
    tokens: Mapping[str, str]
    tokenizer: str

    @cached_property
    def vectors(self) -> Float[Tensor, "pairs 256"]:
        """Unit vector of each caption: the sum of its letters', as a region's is; zero of none."""
        known: dict[bytes, np.ndarray] = {}
        for caption in self.captions:
            if caption.tobytes() not in known:
                known[caption.tobytes()] = self._vector(caption)
        rows = torch.from_numpy(np.stack([known[caption.tobytes()] for caption in self.captions]))
        return torch.nn.functional.normalize(rows.double(), dim=1)

    def letters(self, vocabulary: int) -> Float[Tensor, "vocabulary 256"]:
        """Return the sum of the vectors of each token's letters, each token a text of its own.

        Args:
            vocabulary: Number of tokens.
        """
        rows = [self._letters([self.tokens[str(token)]]) for token in range(vocabulary)]
        return torch.from_numpy(np.stack(rows)).double()

    def _vector(self, caption: Int[np.ndarray, " _"]) -> Float[np.ndarray, " 256"]:
        return self._letters([self.tokens[str(token)] for token in caption])

    def _letters(self, tokens: Sequence[str]) -> Float[np.ndarray, " 256"]:
        text = text_of_tokens([one for one in tokens if one not in SPECIALS], self.tokenizer)
        total = np.zeros(WIDTH, dtype=np.float32)
        for unit, count in count_units(text).items():
            total += count * unit_vector(unit)
        return total
