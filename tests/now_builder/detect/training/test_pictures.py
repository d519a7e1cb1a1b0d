"""The sheet of pages that shows labels beside regions."""

import numpy as np

from now_builder.detect.training.measure import Found, Labels
from now_builder.detect.training.pictures import _BETWEEN_PAGES, _GAP, _SIZE, _TITLE, draw_sheet
from now_builder.formats.shard import HEIGHT, WIDTH


def test_panels_have_titles_and_stand_apart():
    """On black screens everything white is sheet: the gaps are empty, above each panel is text."""
    page = Found(Labels([], [], []), np.zeros((0, 4)), np.zeros(0), np.zeros(0, np.int64))
    sheet = draw_sheet([np.zeros((3, HEIGHT, WIDTH), np.uint8)] * 2, [page, page], ("text",))
    pixels, (width, height) = np.asarray(sheet.convert("L")), _SIZE
    lefts = [0, width + _GAP]
    lefts += [left + 2 * width + _GAP + _BETWEEN_PAGES for left in lefts]
    assert pixels.shape == (_TITLE + height, lefts[-1] + width)
    for left in lefts:
        assert (pixels[_TITLE:, left : left + width] == 0).all()
        assert (pixels[:_TITLE, left : left + width] < 128).any()
        assert (pixels[:, left + width : left + width + _GAP] == 255).all()
