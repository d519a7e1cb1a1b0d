"""Make noise files, by two protocols of the literature and two that counting cannot detect."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Int

from now_builder.config import build
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.benchmarks import NOW_NAMES, PRECOMP
from now_builder.formats.io import atomic_write
from now_builder.formats.noise import Noise, describe, images_of_captions
from now_builder.formats.release import Pair, is_ours, read_split_pairs
from pc2_baseline.config import DataSettings
from pc2_baseline.data.readers import make_reader

Protocol = Literal["captions", "images", "site", "language"]


@dataclass(frozen=True, slots=True)
class Draw:
    """Protocol, share and seed of a noise file.

    Attributes:
        mismatch: Share of the captions or images to shuffle, 0 to 1.
        protocol: ``captions``: shuffle single captions; most images keep some of their own.
            ``images``: shuffle images with all their captions, which is harder. ``site``,
            ``language``: exchange different captions between two pages of one site and language,
            or of one language.
        seed: Seed of the draw.
    """

    mismatch: float
    protocol: Protocol
    seed: int


def make_noise(release: Path, path: Path, draw: Draw, name: str | None, *, force: bool) -> Noise:
    """Write a noise file for the training split of a data set, and return its description.

    ``name`` is the layout (``data.name``), by default that of :func:`find_name`. The returned share
    of mismatched captions is counted after the draw.

    Raises:
        ConfigError: If the file exists and ``force`` is not set, the layout is unknown, the share
            is not in [0, 1] or more than the protocol can reach, or the data set has no sites.
        FormatError: If the training split cannot be read.
    """
    if path.exists() and not force:
        raise ConfigError(f"{path}: exists; runs may have been trained with it (--force replaces)")
    data = build(DataSettings, {"name": name or find_name(release)}, "--name")
    captions, images = make_reader(release, data).count_train()
    if draw.protocol in {"site", "language"}:
        noise = exchange_captions(_train_pairs(release, captions), draw)
    else:
        noise = draw_noise(captions, images, draw)
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        np.lib.format.write_array(file, np.asarray(noise, dtype="<i8"), allow_pickle=False)
    return describe(path, noise, images)


def find_name(release: Path) -> str:
    """Infer the layout of a data set from the name of its folder; default: NoW's."""
    names = [*PRECOMP, *NOW_NAMES]
    folder = release.resolve().name
    layouts = [folder] if folder in names else [name for name in names if (release / name).is_dir()]
    if len(layouts) > 1:
        raise ConfigError(f"{release}: contains {' and '.join(layouts)}; choose one with --name")
    return layouts[0] if layouts else DataSettings().name


def draw_noise(captions: int, images: int, draw: Draw) -> Int[np.ndarray, " captions"]:
    """Shuffle the images of a share of the captions; a few get their own image again.

    Source:
        ``captions``: NCR (Huang et al., NeurIPS 2021); ``images``: DECL (Qin et al., ACM MM 2022).
    """
    if not 0 <= draw.mismatch <= 1:
        raise ConfigError(f"--mismatch {draw.mismatch:g}: expected 0 to 1")
    generator = np.random.default_rng(draw.seed)
    image_of = images_of_captions(captions, images)
    shuffled = image_of.copy() if draw.protocol == "captions" else np.arange(images)
    count = int(round(draw.mismatch * len(shuffled), 6))  # 0.29 * 100 is 28.999…
    chosen = generator.permutation(len(shuffled))[:count]
    shuffled[chosen] = shuffled[generator.permutation(chosen)]
    return shuffled if draw.protocol == "captions" else shuffled[image_of]


def exchange_captions(pairs: Sequence[Pair], draw: Draw) -> Int[np.ndarray, " captions"]:
    """Exchange captions between two pages of one site and language, or of one language.

    The two captions differ, but have the same language: neither languages nor counts of copies
    reveal the mismatched pairs.

    Raises:
        ConfigError: If the share is not in [0, 1], or too few pairs can exchange captions.
    """
    if not 0 <= draw.mismatch <= 1:
        raise ConfigError(f"--mismatch {draw.mismatch:g}: expected 0 to 1")
    generator = np.random.default_rng(draw.seed)
    groups: dict[tuple[str | None, ...], list[int]] = {}
    for row, pair in enumerate(pairs):
        site = pair.site if draw.protocol == "site" else ""
        groups.setdefault((site, pair.lang), []).append(row)
    twos = [two for rows in groups.values() for two in _pair_up(rows, pairs, generator)]
    count = round(draw.mismatch * len(pairs) / 2)
    if count > len(twos):
        raise ConfigError(
            f"--mismatch {draw.mismatch:g}: only {2 * len(twos) / len(pairs):.3f} of the training"
            f" pairs have a partner of their {draw.protocol} with another caption. Ask for less."
        )
    images = np.arange(len(pairs))
    for first, second in (twos[index] for index in generator.permutation(len(twos))[:count]):
        images[[first, second]] = second, first
    return images


def _pair_up(
    rows: Sequence[int], pairs: Sequence[Pair], generator: np.random.Generator
) -> list[tuple[int, int]]:
    """Pair the rows of a group at random, as many as possible, with different captions."""
    by_caption: dict[str, list[int]] = {}
    for row in generator.permutation(rows):
        by_caption.setdefault(pairs[row].caption, []).append(int(row))
    copies = sorted(by_caption.values(), key=len, reverse=True)
    copies[0] = copies[0][: len(rows) - len(copies[0])]
    # No caption has more than half of the rows now: rows half the list apart differ.
    ordered = [row for same in copies for row in same]
    half = len(ordered) // 2
    return list(zip(ordered[:half], ordered[half : 2 * half], strict=True))


def _train_pairs(release: Path, captions: int) -> list[Pair]:
    """Return the training pairs of a release in order."""
    if not is_ours(release):
        raise ConfigError(
            f"{release}: does not name the site and language of a pair. --protocol site and"
            " language need a release of now-builder package."
        )
    pairs = read_split_pairs(release, "train")
    if len(pairs) != captions:
        problem = f"{len(pairs)} training pairs for {captions} captions"
        raise FormatError(release / "pairs.parquet", problem)
    return pairs
