"""Draw pairs at random and show them, with small pictures and outlines of their regions."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from heapq import nsmallest
from pathlib import Path

import numpy as np

from now_builder.errors import FormatError
from now_builder.formats.features import Features, open_features, source_name
from now_builder.formats.release import DATA_FOLDER, Pair
from now_builder.formats.screenshots import data_uri, find_screenshots
from now_builder.program.progress import track_progress

_LEAST = 0.02
"""Minimum weight of a pair in a weighted draw, so that probably clean pairs also occur."""


@dataclass(frozen=True, slots=True)
class ShownPair:
    """A pair on a page.

    Attributes:
        href: See :func:`link_of`.
        lang: Language code, for the browser's choice of glyphs; ``None`` if undecided.
        picture: The screenshot as a data URI.
        outlines: SVG paths of the boxes by origin; the detector's come last, on top.
    """

    pair: Pair
    href: str | None
    lang: str | None
    picture: str
    outlines: list[tuple[str, str]]


def drawn(pairs: Iterable[Pair], count: int) -> list[Pair]:
    """Draw pairs at random, in constant memory; a larger draw starts with a smaller one.

    The order of two pages does not depend on the other pages.
    """
    return nsmallest(count, pairs, key=_place)


def drawn_by_weight(
    pairs: Sequence[Pair], clean_prob: Mapping[str, float], count: int
) -> dict[Pair, float]:
    """Draw pairs at random, preferring those with a low clean probability; return weights.

    The probability of a draw is proportional to one minus the clean probability, or to 0.02 if that
    is more, up to 1. The weight is its inverse, so that weighted means over the draw estimate means
    over all pairs.

    Source:
        Ohlsson, Sequential Poisson Sampling, Journal of Official Statistics 1998.
    """
    size = np.maximum(1 - np.array([clean_prob[pair.key] for pair in pairs]), _LEAST)
    certain = np.full(len(pairs), count >= len(pairs))
    chance = certain.astype(np.float64)
    while not certain.all():
        rest = np.where(certain, 0, size)
        chance = np.where(certain, 1, (count - certain.sum()) * rest / rest.sum())
        if not (chance > 1).any():
            break
        certain |= chance > 1
    uniform = np.array([int.from_bytes(_place(pair)[:8]) / 2**64 for pair in pairs])
    rows = np.argsort(np.where(certain, 0, uniform / chance), kind="stable")[:count]
    return {pairs[row]: float(1 / chance[row]) for row in rows.tolist()}


def _place(pair: Pair) -> bytes:
    return hashlib.sha256(f"look\n0\n{pair.key}".encode()).digest()


def show(
    release: Path, captures: Path, pairs: Sequence[Pair], budget: float
) -> dict[str, ShownPair]:
    """Make pictures, of at most ``budget`` bytes each, and outlines of distinct pairs."""
    screenshots = find_screenshots(captures, pairs)
    with ExitStack() as stack:
        features = {
            split: stack.enter_context(open_features(release / DATA_FOLDER / f"{split}.h5"))
            for split in sorted({pair.split for pair in pairs})
        }
        return {
            pair.key: ShownPair(
                pair,
                link_of(pair),
                language_of(pair),
                data_uri(pair.key, screenshots[pair.key].read(), budget),
                _outlines(features[pair.split], pair),
            )
            for pair in track_progress(pairs, "pictures", "pair")
        }


def link_of(pair: Pair) -> str | None:
    """Return a pair's URL if it is http(s); a link with another scheme could run a script."""
    return pair.url if re.match(r"https?://", pair.url, re.IGNORECASE) else None


def language_of(pair: Pair) -> str | None:
    """Return a pair's language if it is a code other than ``und``."""
    is_code = re.fullmatch("[a-z]{2,3}", pair.lang or "") and pair.lang != "und"
    return pair.lang if is_code else None


def _outlines(features: Features, pair: Pair) -> list[tuple[str, str]]:
    row = slice(pair.pair_index, pair.pair_index + 1)
    if features.keys[row] != [pair.key]:
        raise FormatError(features.path, f"row {pair.pair_index} is not page {pair.key}")
    boxes, sources = features.column("boxes", row)[0], features.column("source", row)[0]
    paths: dict[str, str] = {}
    for box, source in zip(boxes.tolist(), sources.tolist(), strict=True):
        # NaN becomes 0 and infinity a large number; the picture's frame cuts off the rest.
        numbers = [min(1e5, max(-1e5, value)) if value == value else 0 for value in box]  # noqa: PLR0124
        left, top, right, bottom = (round(value) for value in numbers)
        name = source_name(source)
        path = f"M{left} {top}H{right}V{bottom}H{left}Z"
        paths[name] = paths.get(name, "") + path
    return sorted(paths.items(), key=lambda item: item[0] == "detector")
