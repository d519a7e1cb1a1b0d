"""Noise files: which image each training caption is given; read as they are, never made here."""

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from jaxtyping import Bool, Int
from pydantic import Field

from now_builder.config import Sha256, Strict
from now_builder.errors import FormatError
from now_builder.formats.io import sha256_of
from now_builder.formats.release import map_array


class Noise(Strict):
    """Which training captions were given wrong images on purpose.

    Attributes:
        protocol: ``captions`` were shuffled one by one; ``images`` with all their captions, which
            is harder; ``either`` where that is the same: one caption an image.
        sha256: Hash of the noise file.
        mismatch: Share of captions whose image is not their own, as counted.
    """

    protocol: Literal["captions", "images", "either"]
    sha256: Sha256
    mismatch: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


def read_noise(path: Path, captions: int, images: int) -> Int[np.ndarray, " captions"]:
    """Read the image of each training caption; nothing is ever created."""
    stored = map_array(path, "no such noise file; `pc2-baseline make-noise` makes one")
    if stored.ndim != 1 or stored.dtype.kind not in "iu":
        raise FormatError(
            path, f"found {stored.dtype} {stored.shape}, expected integers ({captions},)"
        )
    if len(stored) != captions:
        raise FormatError(
            path, f"{len(stored)} entries for {captions} training captions, expected as many"
        )
    noise: Int[np.ndarray, " captions"] = np.array(stored, dtype=np.int64)
    wrong = np.flatnonzero((noise < 0) | (noise >= images))
    if len(wrong):
        found = f"entry {wrong[0]} is {noise[wrong[0]]}"
        raise FormatError(path, f"{found}, expected an image from 0 to {images - 1}")
    return noise


def images_of_captions(captions: int, images: int) -> Int[np.ndarray, " captions"]:
    """Return the image that each caption was written for: as many captions for each, in order."""
    return np.arange(captions) // (captions // images)


def matched(noise: Int[np.ndarray, " captions"], images: int) -> Bool[np.ndarray, " captions"]:
    """Whether each caption has its own image."""
    return np.asarray(noise == images_of_captions(len(noise), images))


def describe(path: Path, noise: Int[np.ndarray, " captions"], images: int) -> Noise:
    """Describe a noise file for the record of a run.

    Its protocol is ``images`` where all captions of each image go to one image, ``captions``
    where some go apart, and ``either`` where both are the same: one caption an image, or
    nothing shuffled. ``path`` is that of the file, for its hash.
    """
    wrong = ~matched(noise, images)
    groups = noise.reshape(images, -1)
    together = bool((groups == groups[:, :1]).all())
    tells = groups.shape[1] > 1 and wrong.any()
    return Noise(
        protocol=("images" if together else "captions") if tells else "either",
        sha256=sha256_of(path),
        mismatch=float(wrong.mean()),
    )
