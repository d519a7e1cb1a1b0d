"""The screenshots of a release's pairs, in the captures that it was packaged from."""

import base64
import hashlib
import io
from collections.abc import Iterable
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

_TRIES = (360, 70), (300, 60), (240, 50), (180, 40), (120, 30), (90, 15), (45, 5)
"""Widths and WebP qualities, until a picture fits its budget."""


@dataclass(frozen=True, slots=True)
class Screenshot:
    """A stored screenshot, unread.

    Attributes:
        key: Key of its page.
        place: Its bytes in a shard's tar.
        sha256: Hash of these bytes, where the captures know it.
    """

    key: str
    place: ScreenshotPlace
    sha256: str | None

    def read(self) -> bytes:
        """Read the bytes."""
        content = read_place(self.place)
        if self.sha256 is not None and hashlib.sha256(content).hexdigest() != self.sha256:
            raise torn(self.place.path, f"screenshot of {self.key} differs from its sha256")
        return content


def find_screenshots(captures: Path, pairs: Iterable[Pair]) -> dict[str, Screenshot]:
    """Find the screenshots of pairs by key, and make sure that they are of the same pages.

    Raises:
        FormatError: If one is missing, or its page has another URL or perceptual hash than the
            pair, as in captures of another crawl.
    """
    wanted = {pair.key: pair for pair in pairs}
    found = screenshots_there(captures, wanted.values())
    missing = [key for key in wanted if key not in found]
    if missing:
        raise FormatError(
            captures,
            f"no screenshot of {len(missing)} of {len(wanted)} pairs, such as {missing[0]} "
            f"({wanted[missing[0]].url:.80}): not the captures that the release was packaged from?",
        )
    return found


def find_some_screenshots(captures: Path, pairs: Iterable[Pair]) -> dict[str, Screenshot]:
    """Find those screenshots of pairs that are there, by key, and make sure that there are some."""
    wanted = list(pairs)
    found = screenshots_there(captures, wanted)
    if not found:
        raise FormatError(
            captures,
            f"no screenshot of any of the {len(wanted)} pages shown: not the captures that the "
            "release was packaged from?",
        )
    return found


def screenshots_there(captures: Path, pairs: Iterable[Pair]) -> dict[str, Screenshot]:
    """Find those screenshots of pairs that are there, by key, as :func:`find_screenshots` does."""
    if not captures.is_dir():
        raise FormatError(captures, "no such captures folder; `now-builder crawl` makes it")
    wanted = {pair.key: pair for pair in pairs}
    found: dict[str, Screenshot] = {}
    shards = {key.partition("_")[0] for key in wanted}
    for shard in complete_shards(captures):
        if f"{shard:05d}" not in shards:
            continue
        places = locate_screenshots(captures, shard)
        for row in read_rows(captures, shard):
            pair = wanted.get(row.key)
            if pair and (pair.url, pair.phash) == (row.url, row.phash) and row.key in places:
                found[row.key] = Screenshot(row.key, places[row.key], row.sha256)
    return found


def data_uri(key: str, screenshot: bytes, budget: float) -> str:
    """Shrink a screenshot until its data URI has at most ``budget`` bytes, if it ever has."""
    whole = open_screenshot(screenshot, key)
    text = ""
    for width, quality in _TRIES:
        file = io.BytesIO()
        size = (width, width * HEIGHT // WIDTH)
        whole.resize(size, Image.Resampling.LANCZOS, reducing_gap=2.0).save(
            file, "WEBP", quality=quality, method=2
        )
        text = base64.b64encode(file.getvalue()).decode()
        if len(text) <= budget:
            break
    return f"data:image/webp;base64,{text}"
