"""The share of the first screen that has its place, but is not shown: a script may be about to."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool
from PIL import Image

from now_builder.formats.ink import contrasts, squares_of
from now_builder.formats.shard import HEIGHT, WIDTH, Element

_DRAWN = 3
"""Levels by which the brightness varies in a square of the palest text."""
_TRACE = 0.015
"""Share of squares with a trace of something below which a box is empty."""
_SMALL = 1024
"""Area of a box in pixels below which its text is for screen readers alone."""
_OVER = 0.25
"""Sum of the shares of a block, and of its text, on which something else is seen, if the two are
never seen at once."""

_Squares = Bool[np.ndarray, "rows columns"]


def hidden_shares(
    elements: Sequence[Element], picture: Image.Image | None = None
) -> tuple[float, float]:
    """Return the shares of the screen and of its text that are laid out and not shown.

    Counts the outermost hidden blocks with text: transparent, hidden or covered, or without a trace
    in the picture, if there is one. Not those on which other text is seen (other pictures, if the
    block has some), such as closed menus, the other slides of a carousel, and what a dialog covers;
    nor fixed ones, which open at a tap.
    """
    drawn = None if picture is None else contrasts(picture) >= _DRAWN
    shown = [element.visible and _has_trace(element, drawn) for element in elements]
    texts, pictures = _shown_squares(elements, shown)
    screen = np.zeros_like(texts)
    letters = 0
    for number, hidden in _hidden_blocks(elements, shown).items():
        block = elements[number]
        own = np.zeros_like(texts)
        for element in hidden:
            if element.text_box:
                own[squares_of(element.text_box)] = True
        has_pictures = any(element.tag == "img" or element.background for element in hidden)
        seen = texts | pictures if has_pictures else texts
        within = seen[squares_of(block.box)]
        if _share(within) + _share(seen[own]) < _OVER and not block.fixed:
            screen[squares_of(block.box)] = True
            letters += sum(len(element.text) for element in hidden if element.text_box)
    everything = sum(len(element.text) for element in elements if element.text_box)
    return float(screen.mean()), letters / max(everything, 1)


def _share(squares: Bool[np.ndarray, "..."]) -> float:
    return float(squares.mean()) if squares.size else 1.0


def _has_trace(element: Element, drawn: _Squares | None) -> bool:
    if drawn is None:
        return True
    rows, columns = squares_of(element.text_box or element.box)
    inner = drawn[rows.start + 1 : rows.stop - 1, columns.start + 1 : columns.stop - 1]
    return _share(inner) >= _TRACE


def _hidden_blocks(elements: Sequence[Element], shown: Sequence[bool]) -> dict[int, list[Element]]:
    """Return what is hidden by the number of the outermost element that is, if that has text."""
    outermost: list[int] = []
    blocks: dict[int, list[Element]] = {}
    with_text = set()
    for number, element in enumerate(elements):
        above = outermost[element.parent] if element.parent >= 0 else -1
        outermost.append(-1 if shown[number] else number if above < 0 else above)
        if not shown[number]:
            blocks.setdefault(outermost[number], []).append(element)
            left, top, right, bottom = element.box
            if element.text_box and (right - left) * (bottom - top) >= _SMALL:
                with_text.add(outermost[number])
    return {number: blocks[number] for number in with_text}


def _shown_squares(elements: Sequence[Element], shown: Sequence[bool]) -> tuple[_Squares, _Squares]:
    """Return the squares where text is seen, and those where pictures are."""
    rows, columns = squares_of((0.0, 0.0, float(WIDTH), float(HEIGHT)))
    texts, pictures = (np.zeros((rows.stop, columns.stop), dtype=bool) for _ in range(2))
    for element, is_shown in zip(elements, shown, strict=True):
        if is_shown and element.text_box:
            texts[squares_of(element.text_box)] = True
        if is_shown and element.tag in ("img", "video"):
            pictures[squares_of(element.box)] = True
    return texts, pictures
