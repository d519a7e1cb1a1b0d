"""Noise files: the image assigned to each training caption. This module only reads them."""

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
    """Noise injected into the training captions.

    Attributes:
        protocol: ``captions``: single captions were shuffled; ``images``: images were shuffled with
            all their captions, which is harder; ``either``: there is one caption per image.
        sha256: Hash of the noise file.
        mismatch: Share of captions with a wrong image.
    """

    protocol: Literal["captions", "images", "either"]
    sha256: Sha256
    mismatch: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


def read_noise(path: Path, captions: int, images: int) -> Int[np.ndarray, " captions"]:
    """Read the image of each training caption."""
    stored = map_array(path, "no such noise file; `pc2-baseline make-noise` makes one")
    if stored.ndim != 1 or stored.dtype.kind not in "iu":
        problem = f"found {stored.dtype} {stored.shape}, expected integers ({captions},)"
        raise FormatError(path, problem)
    if len(stored) != captions:
        problem = f"{len(stored)} entries for {captions} training captions, expected as many"
        raise FormatError(path, problem)
    noise: Int[np.ndarray, " captions"] = np.array(stored, dtype=np.int64)
    wrong = np.flatnonzero((noise < 0) | (noise >= images))
    if len(wrong):
        entry = f"entry {wrong[0]} is {noise[wrong[0]]}"
        raise FormatError(path, f"{entry}, expected an image from 0 to {images - 1}")
    return noise


def images_of_captions(captions: int, images: int) -> Int[np.ndarray, " captions"]:
    """Return the true image of each caption; images have equally many captions, in order."""
    return np.arange(captions) // (captions // images)


def matched(noise: Int[np.ndarray, " captions"], images: int) -> Bool[np.ndarray, " captions"]:
    """Return whether each caption has its true image."""
    return np.asarray(noise == images_of_captions(len(noise), images))


def describe(path: Path, noise: Int[np.ndarray, " captions"], images: int) -> Noise:
    """Describe a noise file for the record of a run.

    The protocol is ``images`` if all captions of each image have the same image, else ``captions``;
    it is ``either`` with one caption per image or without noise. ``path`` is hashed.
    """
    wrong = ~matched(noise, images)
    groups = noise.reshape(images, -1)
    together = bool((groups == groups[:, :1]).all())
    differs = groups.shape[1] > 1 and wrong.any()
    return Noise(
        protocol=("images" if together else "captions") if differs else "either",
        sha256=sha256_of(path),
        mismatch=float(wrong.mean()),
    )
