"""How much there is to see: text and pictures, not grounds, placeholders and what fades in."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from now_builder.formats.ink import ink_shares, is_blank
from now_builder.formats.shard import Element

SIZE = 720, 1280
FONT = ImageFont.load_default(32)  # 16 CSS px
LINE = "Our bakery opens again in May"


def screen(ground: str = "white") -> tuple[Image.Image, ImageDraw.ImageDraw]:
    image = Image.new("RGB", SIZE, ground)
    return image, ImageDraw.Draw(image)


def blank(image: Image.Image) -> bool:
    return is_blank(ink_shares(image)[1])


def slowly(image: Image.Image) -> tuple[float, float]:
    """The definition, square by square."""
    light = np.asarray(image.convert("L")).astype(int)
    found = [
        [np.ptp(light[top : top + 16, left : left + 16]) >= 32 for left in range(0, 720, 16)]
        for top in range(0, 1280, 16)
    ]
    return float(np.mean(found)), float(np.mean(found[16:64]))


def test_a_screen_of_one_colour_is_blank_and_one_with_a_line_of_text_is_not() -> None:
    for ground in ("white", "#123", "black"):
        image, draw = screen(ground)
        assert ink_shares(image) == (0.0, 0.0)
        draw.ellipse((328, 608, 392, 672), outline="#888", width=6)  # a spinner
        assert ink_shares(image)[1] > 0
        assert blank(image)
        draw.text((60, 700), LINE, "#888", FONT)
        assert not blank(image)


@pytest.mark.parametrize("kind", ["RGB", "RGBA", "P", "L"])
def test_shares_are_those_of_the_squares_one_by_one(kind: str) -> None:
    image, draw = screen()
    draw.text((60, 100), LINE, "black", FONT)
    draw.text((60, 700), LINE, "navy", FONT)
    draw.rectangle((100, 800, 600, 1111), fill="teal")
    image = image.convert(kind)
    assert ink_shares(image) == pytest.approx(slowly(image))


def test_a_page_of_a_header_and_a_footer_alone_is_blank() -> None:
    image, draw = screen()
    draw.rectangle((0, 0, 720, 150), fill="#222")
    draw.text((60, 60), "Anna's bakery", "white", FONT)
    draw.rectangle((0, 1120, 720, 1280), fill="#eee")
    draw.text((60, 1180), "Home   Shop   About", "black", FONT)
    ink, middle = ink_shares(image)
    assert ink > 0.015
    assert middle == 0
    assert blank(image)


def test_a_line_at_the_top_is_the_page_s_own_where_it_stands_in_no_bar() -> None:
    image, draw = screen()
    draw.text((60, 60), LINE, "black", FONT)
    text = Element((40.0, 40.0, 680.0, 110.0), "p", text=LINE, text_box=(60.0, 60.0, 560.0, 100.0))
    assert blank(image)
    assert not is_blank(ink_shares(image, [text])[1])
    for bar in ({"tag": "header"}, {"role": "navigation"}, {"tag": "a"}, {"fixed": True}):
        above = replace(text, **{"text_box": None} | bar)
        assert is_blank(ink_shares(image, [above, replace(text, parent=0)])[1])
    assert is_blank(ink_shares(image, [replace(text, visible=False)])[1])
    assert is_blank(ink_shares(screen()[0], [text])[1])  # laid out, and not drawn yet


def test_placeholders_gradients_noise_and_what_hardly_shows_are_no_ink() -> None:
    image, draw = screen()
    for top in range(300, 1200, 120):
        draw.rounded_rectangle((40, top, 680, top + 80), 16, fill="#ececec")
        draw.text((60, top), LINE, "#e4e4e4", FONT)  # fading in
    assert ink_shares(image) == (0.0, 0.0)
    assert blank(Image.linear_gradient("L").resize(SIZE))
    noise = np.random.default_rng(0).integers(230, 256, (1280, 720, 3), dtype=np.uint8)
    assert blank(Image.fromarray(noise))
    rough = np.random.default_rng(0).integers(0, 256, (40, 24, 3), dtype=np.uint8)
    assert not blank(Image.fromarray(rough).resize(SIZE)), "a photo"
