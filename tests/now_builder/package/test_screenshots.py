"""Blank screens, consent walls, and screenshots that look alike."""

import io
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from now_builder.errors import FormatError
from now_builder.formats.perceptual_hash import alike
from now_builder.formats.shard import Element
from now_builder.package.screenshots import PhashIndex, has_consent_wall, is_blank

FULL = (0.0, 0.0, 720.0, 1280.0)


def picture(boxes: list[tuple[int, int, int, int]], kind: str = "PNG") -> bytes:
    image = Image.new("RGB", (720, 1280), "white")
    for box in boxes:
        ImageDraw.Draw(image).rectangle(box, fill="navy")
    file = io.BytesIO()
    image.save(file, kind, lossless=True)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_a_screen_of_one_colour_is_blank_and_one_with_a_line_of_text_is_not(kind: str) -> None:
    assert is_blank(picture([], kind), "a")
    assert is_blank(picture([(340, 620, 380, 660)], kind), "a")  # 0.2 %: a spinner
    assert not is_blank(picture([(0, 0, 720, 40)], kind), "a")  # 3 %: a header


def test_noise_that_nobody_sees_is_one_colour() -> None:
    pixels = np.random.default_rng(0).integers(240, 256, (1280, 720, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    assert is_blank(file.getvalue(), "a")


def wall(text: str, **more) -> list[Element]:
    """A page with a dialog: its text stands in a child of a child."""
    return [
        Element(FULL, "body"),
        Element((40.0, 40.0, 680.0, 200.0), "p", text="News of the day", parent=0),
        Element(**{"box": FULL, "tag": "div", "fixed": True, "parent": 0} | more),
        Element((40.0, 300.0, 680.0, 900.0), "div", parent=2),
        Element((40.0, 300.0, 680.0, 900.0), "p", text=text, parent=3),
    ]


@pytest.mark.parametrize(
    "text",
    ["We use cookies to improve", "COOKIES?", "本网站使用 Cookie，请同意", "クッキーの使用",
     "쿠키 정책", "Nous demandons votre consentement", "Wir brauchen Ihre Einwilligung",
     "Мы используем куки"],
)  # fmt: skip
def test_a_large_box_that_asks_for_consent_is_a_wall(text: str) -> None:
    assert has_consent_wall(wall(text))
    assert has_consent_wall(wall(text, fixed=False, role="dialog"))
    assert has_consent_wall(wall(text, fixed=False, tag="dialog"))


def test_other_boxes_are_no_walls() -> None:
    assert not has_consent_wall(wall("Subscribe to our letter"))
    assert not has_consent_wall(wall("Cookies", fixed=False))
    assert not has_consent_wall(wall("Cookies", visible=False))
    assert not has_consent_wall(wall("Cookies", box=(0.0, 900.0, 720.0, 1280.0)))
    recipe = Element((0.0, 0.0, 720.0, 90.0), "p", text="Cookies with chocolate")
    assert not has_consent_wall([recipe])
    assert not has_consent_wall([])


@given(st.lists(st.integers(0, 2**64 - 1), max_size=30), st.integers(0, 20))
def test_the_index_finds_what_comparing_all_finds(hashes: list[int], bits: int) -> None:
    index = PhashIndex(bits)
    for number, value in enumerate(hashes):
        near = [((value ^ other).bit_count(), at) for at, other in enumerate(hashes[:number])]
        nearest = min(near, default=(99, 0))
        expected = (str(nearest[1]), nearest[0]) if nearest[0] <= bits else None
        assert index.find(f"{value:016x}") == expected
        index.add(str(number), f"{value:016x}")


def test_the_index_grows() -> None:
    index, draw = PhashIndex(3), random.Random(0)
    hashes = [draw.getrandbits(64) for _ in range(3000)]
    for number, value in enumerate(hashes):
        index.add(str(number), f"{value:016x}")
    assert index.find(f"{hashes[2900] ^ 0b101:016x}") == ("2900", 2)


@given(
    st.lists(st.integers(0, 2**64 - 1), max_size=40),
    st.lists(st.integers(0, 2**64 - 1), max_size=20),
    st.integers(0, 30),
)
def test_alike_is_what_comparing_all_gives(later: list, earlier: list, bits: int) -> None:
    found = alike(np.array(later, dtype=np.uint64), np.array(earlier, dtype=np.uint64), bits)
    assert found.tolist() == [
        any((one ^ other).bit_count() <= bits for other in earlier) for one in later
    ]


def test_a_screenshot_that_is_none_is_named() -> None:
    with pytest.raises(FormatError, match="00000_0001: not a picture"):
        is_blank(b"no picture", "00000_0001")
