"""Measure how much of a screenshot is not blank."""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from now_builder.formats.shard import Box, Element

_SQUARE = 16
"""Side of a square in pixels: about half a line of text."""
_CONTRAST = 32
"""Minimum brightness range in a square with ink, of 256 levels."""
_BLANK = 0.015
"""Maximum share of a blank screen: about 30 squares, more than a spinner has, fewer than three
words have."""
_BARS = frozenset({
    "header", "banner", "nav", "navigation", "footer", "contentinfo", "aside", "complementary",
    "a", "link", "button",
})  # fmt: skip


def ink_shares(picture: Image.Image, elements: Sequence[Element] = ()) -> tuple[float, float]:
    """Return the share of squares with ink in a screenshot, and in its middle.

    A square of 16 x 16 px has ink if its brightness varies by 32 of 256 levels or more, as on text,
    lines and photos. Plain or gradient backgrounds, pale placeholder boxes and content that begins
    to fade in have none. The middle leaves out the upper and lower fifth, where headers, footers
    and bars are, except for the page's own text there.
    """
    ink = contrasts(picture) >= _CONTRAST
    rows = len(ink)
    middle = np.zeros_like(ink)
    middle[rows // 5 : rows - rows // 5] = True
    for box in _page_texts(elements):
        middle[squares_of(box)] = True
    return float(ink.mean()), float(ink[middle].mean())


def is_blank(ink_middle: float) -> bool:
    """Return whether the middle of a screenshot is blank; a spinner is ignored."""
    return ink_middle < _BLANK


def contrasts(picture: Image.Image) -> UInt8[np.ndarray, "rows columns"]:
    """Return the range of brightness levels in each square."""
    light = np.asarray(picture.convert("L"))
    rows, columns = (side // _SQUARE for side in light.shape)
    strips = light[: rows * _SQUARE, : columns * _SQUARE].reshape(rows, _SQUARE, -1)
    squares = (rows, columns, _SQUARE)  # reducing along pixel columns first is faster
    brightest = strips.max(axis=1).reshape(squares).max(axis=2)
    darkest = strips.min(axis=1).reshape(squares).min(axis=2)
    ranges: UInt8[np.ndarray, "rows columns"] = brightest - darkest
    return ranges


def squares_of(box: Box) -> tuple[slice, slice]:
    """Return the rows and columns of the squares that a box touches."""
    left, top = int(box[0]) // _SQUARE, int(box[1]) // _SQUARE
    right, bottom = -(-int(box[2]) // _SQUARE), -(-int(box[3]) // _SQUARE)
    return slice(top, max(bottom, top + 1)), slice(left, max(right, left + 1))


def _page_texts(elements: Sequence[Element]) -> Iterator[Box]:
    """Yield the boxes of texts outside headers, footers, bars, menus, links and buttons."""
    in_bars: list[bool] = []
    for element in elements:
        is_bar = element.fixed or element.tag in _BARS or element.role in _BARS
        in_bars.append(is_bar or (element.parent >= 0 and in_bars[element.parent]))
        if element.text_box and element.visible and not in_bars[-1]:
            yield element.text_box
