"""New noise files, by the field's two protocols and two that counting can't find.

This is the only place that makes any.
"""

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
        mismatch: Share that is drawn to be shuffled, 0 to 1.
        protocol: ``captions``: of all captions, one by one, so that an image mostly keeps some of
            its own. ``images``: of all images, each with all its captions, which is harder.
            ``site``, ``language``: pages of one site and language, or of one language, exchange
            captions in pairs, never two copies of a caption.
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
        ConfigError: If there is such a file and ``force`` is not given, the layout is unknown, the
            mismatch is not a share or more than the protocol can reach, or a data set has no sites.
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
    own = images_of_captions(captions, images)
    of = own.copy() if draw.protocol == "captions" else np.arange(images)
    count = int(round(draw.mismatch * len(of), 6))  # 0.29 * 100 is 28.999…
    chosen = generator.permutation(len(of))[:count]
    of[chosen] = of[generator.permutation(chosen)]
    return of if draw.protocol == "captions" else of[own]


def exchange_captions(pairs: Sequence[Pair], draw: Draw) -> Int[np.ndarray, " captions"]:
    """Let pairs exchange their captions within a site and language, or within a language.

    Each image keeps one caption, in a language that its site or the whole split has as often as
    before, and two that exchange have different captions. So neither the language nor a count of
    copies tells which pairs were drawn.

    Raises:
        ConfigError: If fewer pairs than the mismatch asks for can exchange, or it is no share.
    """
    if not 0 <= draw.mismatch <= 1:
        raise ConfigError(f"--mismatch {draw.mismatch:g}: expected 0 to 1")
    generator = np.random.default_rng(draw.seed)
    groups: dict[tuple[str | None, ...], list[int]] = {}
    for row, pair in enumerate(pairs):
        site = pair.site if draw.protocol == "site" else ""
        groups.setdefault((site, pair.lang), []).append(row)
    twos = [two for rows in groups.values() for two in _twos(rows, pairs, generator)]
    wanted = round(draw.mismatch * len(pairs) / 2)
    if wanted > len(twos):
        raise ConfigError(
            f"--mismatch {draw.mismatch:g}: only {2 * len(twos) / len(pairs):.3f} of the training"
            f" pairs have a partner of their {draw.protocol} with another caption. Ask for less."
        )
    images = np.arange(len(pairs))
    for first, second in (twos[index] for index in generator.permutation(len(twos))[:wanted]):
        images[[first, second]] = second, first
    return images


def _twos(
    rows: Sequence[int], pairs: Sequence[Pair], generator: np.random.Generator
) -> list[tuple[int, int]]:
    """Put a group's rows in twos of different captions, as many as there can be, at random."""
    by_caption: dict[str, list[int]] = {}
    for row in generator.permutation(rows):
        by_caption.setdefault(pairs[row].caption, []).append(int(row))
    copies = sorted(by_caption.values(), key=len, reverse=True)
    copies[0] = copies[0][: len(rows) - len(copies[0])]
    # No caption has more than half of the rows now, so that rows half the list apart differ.
    ordered = [row for same in copies for row in same]
    half = len(ordered) // 2
    return list(zip(ordered[:half], ordered[half : 2 * half], strict=True))


def _train_pairs(release: Path, captions: int) -> list[Pair]:
    """Return the training pairs of a release in order.

    Raises:
        ConfigError: If it is no release of ``now-builder package``.
        FormatError: If ``pairs.parquet`` has another number of training pairs than the captions.
    """
    if not is_ours(release):
        raise ConfigError(
            f"{release}: names no site and language of a pair. --protocol site and language need"
            " a release of now-builder package."
        )
    pairs = read_split_pairs(release, "train")
    if len(pairs) != captions:
        raise FormatError(
            release / "pairs.parquet", f"{len(pairs)} training pairs, the captions have {captions}"
        )
    return pairs
