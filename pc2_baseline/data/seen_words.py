"""Words on both sides of a pair: columns of the regions, and the same vectors of the captions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from now_builder.formats.captions import SPECIALS
from now_builder.formats.word_vectors import WIDTH, count_units, text_of_tokens, unit_vector


@dataclass(frozen=True)
class SeenWords:
    """Columns of a region that hold the words read on it, and the tokens of captions as text."""

    columns: slice
    tokens: Mapping[str, str]
    tokenizer: str
    _known: dict[bytes, np.ndarray] = field(default_factory=dict, init=False, repr=False)

    def vectors(self, captions: Sequence[Int[np.ndarray, " _"]]) -> Float[Tensor, "captions 256"]:
        """Return a unit vector of each caption: the sum of its letters', as a region's is.

        Args:
            captions: Ids of each; one without letters has a vector of zeros.
        """
        for caption in captions:
            if caption.tobytes() not in self._known:
                self._known[caption.tobytes()] = self._vector(caption)
        rows = np.stack([self._known[caption.tobytes()] for caption in captions])
        return torch.nn.functional.normalize(torch.from_numpy(rows).double(), dim=1)

    def knowing(self, tokens: Mapping[int, str]) -> "SeenWords":
        """Return the same with tokens of further ids."""
        further = {str(number): token for number, token in tokens.items()}
        return replace(self, tokens={**self.tokens, **further})

    def letters(self, ids: Iterable[int]) -> Float[Tensor, "tokens 256"]:
        """Return the sum of the vectors of each token's letters, each token a text of its own."""
        rows = [self._letters([self.tokens[str(number)]]) for number in ids]
        return torch.from_numpy(np.stack(rows)).double()

    def _vector(self, caption: Int[np.ndarray, " _"]) -> Float[np.ndarray, " 256"]:
        return self._letters([self.tokens[str(token)] for token in caption])

    def _letters(self, tokens: Sequence[str]) -> Float[np.ndarray, " 256"]:
        text = text_of_tokens([one for one in tokens if one not in SPECIALS], self.tokenizer)
        total = np.zeros(WIDTH, dtype=np.float32)
        for unit, count in count_units(text).items():
            total += count * unit_vector(unit)
        return total
