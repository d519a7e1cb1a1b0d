"""The share of a screenshot that shows something."""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from now_builder.formats.shard import Box, Element

_SQUARE = 16
"""Side of a square in pixels: about half a line of text."""
_CONTRAST = 32
_BLANK = 0.015
"""Some thirty squares: more than a spinner, fewer than a line of three words has."""
_BARS = frozenset({
    "header", "banner", "nav", "navigation", "footer", "contentinfo", "aside", "complementary",
    "a", "link", "button",
})  # fmt: skip


def ink_shares(picture: Image.Image, elements: Sequence[Element] = ()) -> tuple[float, float]:
    """Return the share of a screenshot that has ink, and that of its middle.

    A square of 16 x 16 px has ink where its brightness varies by 32 of 256 levels or more, as on
    text, lines and photos; not on a ground of one colour or a gradient, on pale boxes in place of
    content, and on what has hardly begun to fade in. The middle is without the upper and the lower
    fifth, where headers, footers and bars stand, but for the page's own text in them.
    """
    ink = contrasts(picture) >= _CONTRAST
    rows = len(ink)
    middle = np.zeros_like(ink)
    middle[rows // 5 : rows - rows // 5] = True
    for box in _own_texts(elements):
        middle[squares_of(box)] = True
    return float(ink.mean()), float(ink[middle].mean())


def is_blank(ink_middle: float) -> bool:
    """Whether a screenshot shows nothing in its middle, but for a spinner perhaps."""
    return ink_middle < _BLANK


def contrasts(picture: Image.Image) -> UInt8[np.ndarray, "rows columns"]:
    """Return by how many levels the brightness of each square varies."""
    light = np.asarray(picture.convert("L"))
    rows, columns = (side // _SQUARE for side in light.shape)
    strips = light[: rows * _SQUARE, : columns * _SQUARE].reshape(rows, _SQUARE, -1)
    squares = (rows, columns, _SQUARE)  # first along columns of pixels, which is fast
    brightest = strips.max(axis=1).reshape(squares).max(axis=2)
    darkest = strips.min(axis=1).reshape(squares).min(axis=2)
    varies: UInt8[np.ndarray, "rows columns"] = brightest - darkest
    return varies


def squares_of(box: Box) -> tuple[slice, slice]:
    """Return the rows and columns of the squares that a box touches."""
    left, top = int(box[0]) // _SQUARE, int(box[1]) // _SQUARE
    across, down = -(-int(box[2]) // _SQUARE), -(-int(box[3]) // _SQUARE)
    return slice(top, max(down, top + 1)), slice(left, max(across, left + 1))


def _own_texts(elements: Sequence[Element]) -> Iterator[Box]:
    """Yield where text is that is in no header, footer, bar, menu, link or button."""
    in_bars: list[bool] = []
    for element in elements:
        is_bar = element.fixed or element.tag in _BARS or element.role in _BARS
        in_bars.append(is_bar or (element.parent >= 0 and in_bars[element.parent]))
        if element.text_box and element.visible and not in_bars[-1]:
            yield element.text_box
