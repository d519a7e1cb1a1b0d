"""Shares of a screen that are laid out but hidden, with hand-worked boxes."""

import pytest
from PIL import Image, ImageDraw

from now_builder.crawl.browser.hidden import hidden_shares
from now_builder.formats.shard import Element

TITLE = Element(
    (0.0, 0.0, 720.0, 160.0), "h1", text="Bicycles", text_box=(40.0, 40.0, 400.0, 120.0)
)
MAIN = Element((0.0, 320.0, 720.0, 960.0), "main", visible=False)
LINE = Element(
    (40.0, 480.0, 680.0, 544.0), "p", text="to hire.", text_box=(40.0, 480.0, 680.0, 544.0),
    visible=False, parent=1,
)  # fmt: skip
OVER_IT = Element(LINE.box, "p", text="Menu of pages", text_box=LINE.text_box)
HIDDEN = 0.5, 0.5
"""640 of 1,280 rows of pixels, 8 of 16 letters."""


@pytest.mark.parametrize(
    ("elements", "shares"),
    [
        ([TITLE, MAIN, LINE], HIDDEN),
        ([TITLE], (0.0, 0.0)),
        ([TITLE, MAIN], (0.0, 0.0)),  # nothing to read in it
        ([TITLE, MAIN, LINE, OVER_IT], (0.0, 0.0)),
        ([TITLE, Element(MAIN.box, "nav", visible=False, fixed=True), LINE], (0.0, 0.0)),
        ([], (0.0, 0.0)),
    ],
)
def test_blocks_that_may_be_shown_next_count(
    elements: list[Element], shares: tuple[float, float]
) -> None:
    assert hidden_shares(elements) == shares


def test_text_without_contrast_in_the_picture_is_hidden_whatever_its_style() -> None:
    picture = Image.new("RGB", (720, 1280), "white")
    draw = ImageDraw.Draw(picture)
    for left in range(40, 400, 8):
        draw.line((left, 40, left, 120), "black")
    main = Element(MAIN.box, "main")
    elements = [TITLE, main, Element(LINE.box, "p", text=LINE.text, text_box=LINE.box, parent=1)]
    assert hidden_shares(elements) == (0.0, 0.0)
    assert hidden_shares(elements, picture) == HIDDEN
    for left in range(40, 680, 8):
        draw.line((left, 480, left, 544), "#f8f8f8")  # pale, and there
    assert hidden_shares(elements, picture) == (0.0, 0.0)
