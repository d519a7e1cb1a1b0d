"""New noise files, by the two protocols of the field; the only place that makes any."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Int

from now_builder.config import build
from now_builder.errors import ConfigError
from now_builder.formats.benchmarks import NOW_NAMES, PRECOMP
from now_builder.formats.io import replacing
from now_builder.formats.noise import Noise, describe, own_images
from pc2_baseline.config import DataSettings
from pc2_baseline.data.readers import make_reader

Protocol = Literal["captions", "images"]


@dataclass(frozen=True, slots=True)
class Draw:
    """Protocol, share and seed of a noise file.

    Attributes:
        mismatch: Share that is drawn to be shuffled, 0 to 1.
        protocol: ``captions``: of all captions, one by one, so that an image mostly keeps some of
            its own. ``images``: of all images, each with all its captions, which is harder.
        seed: Seed of the draw.
    """

    mismatch: float
    protocol: Protocol
    seed: int


def make_noise(release: Path, path: Path, draw: Draw, name: str | None, *, force: bool) -> Noise:
    """Write a noise file for the training split of a data set, under exactly this name.

    The layout ``name`` is ``data.name``; without it, :func:`find_name` finds it. The share of
    mismatched captions that is returned is counted.

    Raises:
        ConfigError: If there is such a file and ``force`` is not given, the layout is unknown, or
            the mismatch is not a share.
        FormatError: If the training split cannot be read.
    """
    if path.exists() and not force:
        raise ConfigError(f"{path}: exists; runs may have been trained with it (--force replaces)")
    data = build(DataSettings, {"name": name or find_name(release)}, "--name")
    captions, images = make_reader(release, data).count_train()
    noise = draw_noise(captions, images, draw)
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.lib.format.write_array(file, np.asarray(noise, dtype="<i8"), allow_pickle=False)
    return describe(path, noise, images)


def find_name(release: Path) -> str:
    """Find a data set's layout by the name of its folder; without such a name it is NoW's."""
    names = [*PRECOMP, *NOW_NAMES]
    own = release.resolve().name
    found = [own] if own in names else [name for name in names if (release / name).is_dir()]
    if len(found) > 1:
        raise ConfigError(f"{release}: holds {' and '.join(found)}; --name says which is meant")
    return found[0] if found else DataSettings().name


def draw_noise(captions: int, images: int, draw: Draw) -> Int[np.ndarray, " captions"]:
    """Shuffle a share of the captions' images; a few land on their own again.

    Source:
        ``captions``: NCR (Huang et al., NeurIPS 2021); ``images``: DECL (Qin et al., ACM MM 2022).
    """
    if not 0 <= draw.mismatch <= 1:
        raise ConfigError(f"--mismatch {draw.mismatch:g}: expected 0 to 1")
    generator = np.random.default_rng(draw.seed)
    own = own_images(captions, images)
    of = own.copy() if draw.protocol == "captions" else np.arange(images)
    count = int(round(draw.mismatch * len(of), 6))  # 0.29 * 100 is 28.999…
    chosen = generator.permutation(len(of))[:count]
    of[chosen] = of[generator.permutation(chosen)]
    return of if draw.protocol == "captions" else of[own]
