"""Perceptual hashes: which screenshots look alike."""

import numpy as np
from jaxtyping import Bool, UInt64

ALIKE = 4
"""Bits of 64 in which the perceptual hashes of screenshots that look alike differ at most."""

_ROWS = 64


def alike(
    later: UInt64[np.ndarray, " later"], earlier: UInt64[np.ndarray, " earlier"], bits: int
) -> Bool[np.ndarray, " later"]:
    """Find the perceptual hashes that have one within ``bits`` bits among earlier ones."""
    found = np.zeros(len(later), dtype=bool)
    if len(earlier):
        for start in range(0, len(later), _ROWS):
            part = later[start : start + _ROWS]
            bits_apart = np.bitwise_count(part[:, None] ^ earlier[None])
            found[start : start + _ROWS] = (bits_apart <= bits).any(axis=1)
    return found
