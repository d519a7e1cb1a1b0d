"""What needs screenshots or elements: blank screens, consent walls, screenshots alike."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import UInt64
from tqdm import tqdm

from now_builder.formats.shard import (
    HEIGHT,
    WIDTH,
    Element,
    open_screenshot,
    read_captures,
    read_plan,
)
from now_builder.package.flags import consent_words

_ONE_COLOUR = 0.99
_WALL = 0.5
_DIALOGS = frozenset({"dialog", "alertdialog"})


def measure(captures: Path, keys: frozenset[str]) -> dict[str, frozenset[str]]:
    """Find blank screens and consent walls among captured pages; reads their shards through.

    Returns:
        ``blank``, ``consent_wall`` or both, of the pages that have one of them.

    Raises:
        FormatError: If a shard is torn.
    """
    plan = read_plan(captures)
    shards = sorted({line.shard for line in plan if line.key in keys})
    skip = frozenset(line.key for line in plan) - keys
    found = {}
    captures_read = read_captures(captures, skip, shards)
    for capture in tqdm(captures_read, total=len(keys), desc="looking", unit="page", disable=None):
        blank = is_blank(capture.screenshot, capture.key)
        measured = {"blank": blank, "consent_wall": has_consent_wall(capture.elements)}
        if any(measured.values()):
            found[capture.key] = frozenset(name for name, there in measured.items() if there)
    return found


def is_blank(screenshot: bytes, key: str) -> bool:
    """Whether 99 % of a screenshot are of one colour, to a sixteenth of each channel.

    Raises:
        FormatError: If it is not a readable picture.
    """
    pixels = np.asarray(open_screenshot(screenshot, key), dtype=np.uint16) >> 4
    colours = (pixels[..., 0] << 8) | (pixels[..., 1] << 4) | pixels[..., 2]
    return bool(np.bincount(colours.ravel()).max() >= _ONE_COLOUR * colours.size)


def has_consent_wall(elements: Sequence[Element]) -> bool:
    """Whether a dialog, or a box that stays in place, asks for consent over half the screen.

    Args:
        elements: Elements of the page in document order; parents come before their children.
    """
    inside: dict[int, int] = {}
    texts: dict[int, list[str]] = {}
    for number, element in enumerate(elements):
        wall = inside.get(element.parent)
        if wall is None and _covers(element):
            wall = number
        if wall is not None:
            inside[number] = wall
            texts.setdefault(wall, []).append(element.text)
    return any(consent_words().search(" ".join(text).casefold()) for text in texts.values())


def _covers(element: Element) -> bool:
    stays = element.fixed or element.role in _DIALOGS or element.tag == "dialog"
    left, top, right, bottom = element.box
    return stays and element.visible and (right - left) * (bottom - top) >= _WALL * WIDTH * HEIGHT


class PhashIndex:
    """Perceptual hashes, searched for one that differs in so many of its 64 bits at most."""

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._hashes: UInt64[np.ndarray, " room"] = np.zeros(1024, np.uint64)
        self._keys: list[str] = []

    def find(self, phash: str) -> tuple[str, int] | None:
        """Return the nearest page and its distance in bits, the first of equals, else ``None``."""
        known = self._hashes[: len(self._keys)]
        if not len(known):
            return None
        bits = np.bitwise_count(known ^ np.uint64(int(phash, 16)))
        nearest = int(bits.argmin())
        distance = int(bits[nearest])
        return (self._keys[nearest], distance) if distance <= self._bits else None

    def add(self, key: str, phash: str) -> None:
        """Add a page."""
        if len(self._keys) == len(self._hashes):
            self._hashes = np.concatenate([self._hashes, np.zeros_like(self._hashes)])
        self._hashes[len(self._keys)] = np.uint64(int(phash, 16))
        self._keys.append(key)
