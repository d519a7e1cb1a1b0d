"""Measure the share of the first screen that is laid out but hidden: a script may show it soon."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool
from PIL import Image

from now_builder.formats.ink import contrasts, squares_of
from now_builder.formats.shard import HEIGHT, WIDTH, Element

_DRAWN = 3
"""Minimum contrast in levels of brightness of a square with text."""
_TRACE = 0.015
"""Minimum share of squares with contrast in a box that is not empty."""
_SMALL = 1024
"""Area of a box in pixels below which its text is for screen readers only."""
_OVER = 0.25
"""Minimum sum of the shares of a block and of its text that show something else, for the block to
be an alternative to it."""

_Squares = Bool[np.ndarray, "rows columns"]


def hidden_shares(
    elements: Sequence[Element], picture: Image.Image | None = None
) -> tuple[float, float]:
    """Return the shares of the screen and of its text that are laid out but hidden.

    Counts the outermost hidden blocks with text: transparent, hidden, covered, or without contrast
    in the picture. Excludes blocks at whose place other text is visible (or other pictures, if the
    block has pictures), such as closed menus, other slides of a carousel and pages behind a dialog;
    and fixed blocks, which open at a tap.
    """
    drawn = None if picture is None else contrasts(picture) >= _DRAWN
    shown = [element.visible and _has_contrast(element, drawn) for element in elements]
    texts, pictures = _shown_squares(elements, shown)
    screen = np.zeros_like(texts)
    letters = 0
    for number, hidden in _hidden_blocks(elements, shown).items():
        block = elements[number]
        text_squares = np.zeros_like(texts)
        for element in hidden:
            if element.text_box:
                text_squares[squares_of(element.text_box)] = True
        has_pictures = any(element.tag == "img" or element.background for element in hidden)
        visible = texts | pictures if has_pictures else texts
        within = visible[squares_of(block.box)]
        if _share(within) + _share(visible[text_squares]) < _OVER and not block.fixed:
            screen[squares_of(block.box)] = True
            letters += sum(len(element.text) for element in hidden if element.text_box)
    total = sum(len(element.text) for element in elements if element.text_box)
    return float(screen.mean()), letters / max(total, 1)


def _share(squares: Bool[np.ndarray, "..."]) -> float:
    return float(squares.mean()) if squares.size else 1.0


def _has_contrast(element: Element, drawn: _Squares | None) -> bool:
    if drawn is None:
        return True
    rows, columns = squares_of(element.text_box or element.box)
    inner = drawn[rows.start + 1 : rows.stop - 1, columns.start + 1 : columns.stop - 1]
    return _share(inner) >= _TRACE


def _hidden_blocks(elements: Sequence[Element], shown: Sequence[bool]) -> dict[int, list[Element]]:
    """Group hidden elements by their outermost hidden ancestor; keep groups with text."""
    outermost: list[int] = []
    blocks: dict[int, list[Element]] = {}
    with_text = set()
    for number, element in enumerate(elements):
        ancestor = outermost[element.parent] if element.parent >= 0 else -1
        outermost.append(-1 if shown[number] else number if ancestor < 0 else ancestor)
        if not shown[number]:
            blocks.setdefault(outermost[number], []).append(element)
            left, top, right, bottom = element.box
            if element.text_box and (right - left) * (bottom - top) >= _SMALL:
                with_text.add(outermost[number])
    return {number: blocks[number] for number in with_text}


def _shown_squares(elements: Sequence[Element], shown: Sequence[bool]) -> tuple[_Squares, _Squares]:
    """Return the squares with visible text, and those with visible pictures."""
    rows, columns = squares_of((0.0, 0.0, float(WIDTH), float(HEIGHT)))
    texts, pictures = (np.zeros((rows.stop, columns.stop), dtype=bool) for _ in range(2))
    for element, is_shown in zip(elements, shown, strict=True):
        if is_shown and element.text_box:
            texts[squares_of(element.text_box)] = True
        if is_shown and element.tag in ("img", "video"):
            pictures[squares_of(element.box)] = True
    return texts, pictures
