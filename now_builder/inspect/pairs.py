"""Pairs to look at: drawn at random, with small pictures and the outlines of their regions."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from heapq import nsmallest
from pathlib import Path

from now_builder.errors import FormatError
from now_builder.formats.features import Features, open_features, source_name
from now_builder.formats.release import DATA_FOLDER, Pair
from now_builder.formats.screenshots import data_uri, find_screenshots
from now_builder.program.progress import track_progress


@dataclass(frozen=True, slots=True)
class ShownPair:
    """A pair on a page.

    Attributes:
        href: See :func:`link_of`.
        lang: Language code for the browser's choice of glyphs, if it is one.
        picture: The screenshot as a data URI.
        outlines: SVG paths of the boxes, by origin, the detector's own last and so on top.
    """

    pair: Pair
    href: str | None
    lang: str | None
    picture: str
    outlines: list[tuple[str, str]]


def drawn(pairs: Iterable[Pair], count: int) -> list[Pair]:
    """Draw pairs at random, holding no more than these; a larger draw begins with a smaller one.

    A page's place in the draw is the same whatever else is in the release.
    """

    def place(pair: Pair) -> bytes:
        return hashlib.sha256(f"look\n0\n{pair.key}".encode()).digest()

    return nsmallest(count, pairs, key=place)


def show(
    release: Path, captures: Path, pairs: Sequence[Pair], budget: float
) -> dict[str, ShownPair]:
    """Make pictures, of at most ``budget`` bytes each, and outlines of some pairs, none twice."""
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
    """Return a pair's URL if it is one of the web: a click must do nothing but visit it."""
    return pair.url if re.match(r"https?://", pair.url, re.IGNORECASE) else None


def language_of(pair: Pair) -> str | None:
    """Return a pair's language if it is a code; ``und`` and the like are none."""
    known = re.fullmatch("[a-z]{2,3}", pair.lang or "") and pair.lang != "und"
    return pair.lang if known else None


def _outlines(features: Features, pair: Pair) -> list[tuple[str, str]]:
    row = slice(pair.pair_index, pair.pair_index + 1)
    if features.keys[row] != [pair.key]:
        raise FormatError(features.path, f"row {pair.pair_index} is not page {pair.key}")
    boxes, sources = features.column("boxes", row)[0], features.column("source", row)[0]
    paths: dict[str, str] = {}
    for box, source in zip(boxes.tolist(), sources.tolist(), strict=True):
        # What is not finite draws nothing; what is outside is cut off by the picture's frame.
        numbers = [min(1e5, max(-1e5, value)) if value == value else 0 for value in box]  # noqa: PLR0124
        left, top, right, bottom = (round(value) for value in numbers)
        name = source_name(source)
        path = f"M{left} {top}H{right}V{bottom}H{left}Z"
        paths[name] = paths.get(name, "") + path
    return sorted(paths.items(), key=lambda item: item[0] == "detector")
