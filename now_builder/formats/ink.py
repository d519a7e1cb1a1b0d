"""How much there is to see on a screenshot."""

import numpy as np
from PIL import Image

_SQUARE = 16
"""Side of a square in pixels: about half a line of text."""
_CONTRAST = 32
_BLANK = 0.015


def ink_shares(picture: Image.Image) -> tuple[float, float]:
    """Return the share of a screenshot that has ink, and that of its middle.

    A square of 16 x 16 px has ink where its brightness varies by 32 of 256 levels or more, as on
    text, lines and photos; not on a ground of one colour or a gradient, on grey boxes in place of
    content, and on what has hardly begun to fade in. The middle is without the upper and the lower
    fifth, where headers, footers and bars stand.
    """
    light = np.asarray(picture.convert("L"))
    rows, columns = (side // _SQUARE for side in light.shape)
    strips = light[: rows * _SQUARE, : columns * _SQUARE].reshape(rows, _SQUARE, -1)
    squares = (rows, columns, _SQUARE)  # first along columns of pixels, which is fast
    brightest = strips.max(axis=1).reshape(squares).max(axis=2)
    darkest = strips.min(axis=1).reshape(squares).min(axis=2)
    ink = brightest - darkest >= _CONTRAST
    return float(ink.mean()), float(ink[rows // 5 : rows - rows // 5].mean())


def is_blank(ink_middle: float) -> bool:
    """Whether a screenshot shows nothing in its middle, but for a spinner perhaps."""
    return ink_middle < _BLANK
