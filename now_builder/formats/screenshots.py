"""Screenshots of a release's pairs, from the captures that it was packaged from."""

import base64
import hashlib
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from now_builder.errors import FormatError
from now_builder.formats.release import Pair
from now_builder.formats.shard import (
    HEIGHT,
    WIDTH,
    ScreenshotPlace,
    complete_shards,
    locate_screenshots,
    open_screenshot,
    read_place,
    read_rows,
    torn,
)

_SIZES = (360, 70), (300, 60), (240, 50), (180, 40), (120, 30), (90, 15), (45, 5)
"""Widths in pixels and WebP qualities, tried in this order until a picture fits its budget."""


@dataclass(frozen=True, slots=True)
class Screenshot:
    """A stored screenshot, unread.

    Attributes:
        key: Key of the page.
        place: Position in the shard's tar.
        sha256: Hash of the bytes; ``None`` if the captures lack it.
    """

    key: str
    place: ScreenshotPlace
    sha256: str | None

    def read(self) -> bytes:
        """Read the bytes and check their hash."""
        content = read_place(self.place)
        if self.sha256 is not None and hashlib.sha256(content).hexdigest() != self.sha256:
            raise torn(self.place.path, f"screenshot of {self.key} differs from its sha256")
        return content


def find_screenshots(captures: Path, pairs: Iterable[Pair]) -> dict[str, Screenshot]:
    """Return the screenshots of pairs by key.

    Raises:
        FormatError: If one is missing, or its page has another URL or perceptual hash than the
            pair, as in captures of another crawl.
    """
    by_key = {pair.key: pair for pair in pairs}
    screenshots = _matching_screenshots(captures, by_key)
    missing = [pair for key, pair in by_key.items() if key not in screenshots]
    if missing:
        raise FormatError(
            captures,
            f"no screenshot of {len(missing)} of {len(by_key)} pairs, such as {missing[0].key} "
            f"({missing[0].url:.80}): {_OTHER_CAPTURES}",
        )
    return screenshots


def find_some_screenshots(captures: Path, pairs: Iterable[Pair]) -> dict[str, Screenshot]:
    """Return the screenshots of pairs by key, without missing ones; there must be at least one."""
    by_key = {pair.key: pair for pair in pairs}
    screenshots = _matching_screenshots(captures, by_key)
    if not screenshots:
        problem = f"no screenshot of any of the {len(by_key)} pages shown: {_OTHER_CAPTURES}"
        raise FormatError(captures, problem)
    return screenshots


_OTHER_CAPTURES = "not the captures that the release was packaged from?"


def _matching_screenshots(captures: Path, pairs: Mapping[str, Pair]) -> dict[str, Screenshot]:
    if not captures.is_dir():
        raise FormatError(captures, "no such captures folder; `now-builder crawl` makes it")
    screenshots: dict[str, Screenshot] = {}
    shards = {key.partition("_")[0] for key in pairs}
    for shard in complete_shards(captures):
        if f"{shard:05d}" not in shards:
            continue
        places = locate_screenshots(captures, shard)
        for row in read_rows(captures, shard):
            pair = pairs.get(row.key)
            if pair and (pair.url, pair.phash) == (row.url, row.phash) and row.key in places:
                screenshots[row.key] = Screenshot(row.key, places[row.key], row.sha256)
    return screenshots


def data_uri(key: str, screenshot: bytes, budget: float) -> str:
    """Shrink a screenshot to a data URI of at most ``budget`` bytes, or the smallest possible."""
    image = open_screenshot(screenshot, key)
    text = ""
    for width, quality in _SIZES:
        file = io.BytesIO()
        size = (width, width * HEIGHT // WIDTH)
        image.resize(size, Image.Resampling.LANCZOS, reducing_gap=2.0).save(
            file, "WEBP", quality=quality, method=2
        )
        text = base64.b64encode(file.getvalue()).decode()
        if len(text) <= budget:
            break
    return f"data:image/webp;base64,{text}"
