"""Features and captions of one split, as a layout stores them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from now_builder.errors import FormatError
from now_builder.formats.features import REGIONS


@dataclass(frozen=True, slots=True)
class SplitArrays:
    """A split before its features are checked and held in memory.

    Attributes:
        origin: Path of the features, for messages.
        regions: Array-like (images, 36, features).
        captions: Ids of each caption with ``<start>`` and ``<end>``.

    Raises:
        FormatError: If the features have another shape.
    """

    origin: Path
    regions: Any
    captions: list[Int[np.ndarray, " _"]]

    def __post_init__(self) -> None:
        shape = self.regions.shape
        if len(shape) != 3 or shape[1] != REGIONS:
            raise FormatError(
                self.origin, f"features of shape {shape}, expected (images, {REGIONS}, dim)"
            )
