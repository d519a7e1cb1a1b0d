"""Consent walls, and screenshots that look the same."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from now_builder.formats.shard import Element
from now_builder.formats.statistics import near_hashes
from now_builder.package.screenshots import has_consent_wall

FULL = (0.0, 0.0, 720.0, 1280.0)
NEWS = "Bread of the week needs flour, water, salt and the patience that a good loaf asks for. "
ASKS = "We use cookies to measure visits."


def line(text: str, top: float, parent: int, tag: str = "p", **more) -> Element:
    box = (40.0, float(top), 680.0, float(top) + 60.0)
    return Element(box, tag, text=text, text_box=box, parent=parent, **more)


def screen(*box: Element, seen: bool = False) -> list[Element]:
    """A page of news, and a box over it, which hides what lies beneath or does not."""
    news = [line(NEWS * 2, top, 0, visible=seen) for top in range(100, 1200, 100)]
    return [Element(FULL, "body"), *news, *box]


def wall(text: str, *more: Element, seen: bool = False, **changes) -> list[Element]:
    """A box over the page, and in a child of its child a text and a button."""
    box = Element(**{"box": FULL, "tag": "div", "fixed": True, "parent": 0} | changes)
    inner = Element((40.0, 300.0, 680.0, 900.0), "div", parent=12)
    button = line("OK", 840.0, 13, "button")
    return screen(box, inner, line(text, 300.0, 13), button, *more, seen=seen)


@pytest.mark.parametrize(
    "text",
    ["We use cookies to improve", "COOKIES?", "本网站使用Cookie，请同意",
     "当サイトではCookieを使用", "クッキーの使用", "쿠키 정책", "Nous demandons votre consentement",
     "Nos partenaires utilisent des traceurs",
     "Wir brauchen Ihre Einwilligung", "Die Cookiedienste sind notwendig", "Мы используем куки",
     "Ми використовуємо файли кукі", "Ova stranica koristi kolačiće", "Naudojami slapukai",
     "Weboldalunk sütiket használ", "Käytämme evästeitä", "Сайтът използва бисквитки",
     "Giv samtykke til statistik", "این سایت از کوکی‌ها استفاده می‌کند", "हम कुकीज़ का उपयोग करते हैं"],
)  # fmt: skip
def test_a_large_box_that_asks_for_consent_is_a_wall(text: str) -> None:
    assert has_consent_wall(wall(text))
    assert has_consent_wall(wall(text, fixed=False, role="dialog"))
    assert has_consent_wall(wall(text, fixed=False, tag="dialog"))
    assert has_consent_wall(wall(text, fixed=False))  # put over the page by position: absolute


SHEET = (0.0, 500.0, 720.0, 1280.0)
WALLS = {
    "a dialog over a page that is dimmed": wall(ASKS, seen=True),
    "a low sheet that hides the page": wall(ASKS, box=SHEET),
    "a frame": screen(
        Element(FULL, "div", fixed=True, parent=0),
        Element((40.0, 300.0, 680.0, 1000.0), "iframe", text="Consent message", parent=12),
    ),
    "words in the parts of a line": screen(
        Element(SHEET, "div", fixed=True, parent=0), line("We value your", 600.0, 12),
        line("priv", 620.0, 13, "b"), line("acy", 620.0, 14, "i"),
        line("and process personal", 700.0, 12), line("data", 700.0, 12, "em"),
        line("Agree", 1100.0, 12, "a"),
    ),
    "no page beneath a dialog": [Element(FULL, "body"), line(ASKS, 500.0, 2, role="dialog"),
                                 line("Accept", 990.0, 1)],
}  # fmt: skip


@pytest.mark.parametrize("form", WALLS)
def test_a_wall_has_many_forms(form: str) -> None:
    assert has_consent_wall(WALLS[form])


POLICY = "A cookie is a small file. We use cookies with your consent. "
LINKS = ["Shop", "Bread", "Rolls", "About", "Cookies", "Privacy"]
SHOP = [line(name, 200 + 60 * number, 12, "a") for number, name in enumerate(LINKS)]
OTHERS = {
    "of another subject": wall("Subscribe to our letter"),
    "in the page": wall("Cookies", fixed=False, seen=True),
    "hidden": screen(*[replace(part, visible=False) for part in wall(ASKS)[12:]], seen=True),
    "a bar": screen(
        Element((0.0, 1100.0, 720.0, 1280.0), "div", fixed=True, parent=0), line(ASKS, 1150.0, 12),
    ),
    "a bar in a frame as large as the screen": screen(
        Element(FULL, "div", fixed=True, parent=0), line(ASKS, 1150.0, 12), seen=True,
    ),
    "a letter's form": wall(ASKS, line("E-mail", 500.0, 13, "input", input_type="email")),
    "the page in a box": [
        Element(FULL, "body"), Element(FULL, "div", fixed=True, parent=0),
        *[line(POLICY * 3, top, 1) for top in range(100, 1200, 100)],
    ],
    "an article in a box": screen(
        Element(FULL, "div", fixed=True, parent=0), Element(FULL, "main", parent=12),
        *[line(POLICY * 3, top, 13) for top in range(100, 1200, 100)],
    ),
    "a menu": screen(Element(FULL, "div", fixed=True, parent=0), *SHOP),
    "one word in much text": wall("cookie " + NEWS * 6),
    "a recipe": [line("Cookies with chocolate", 0.0, -1)],
    "nothing": [],
}  # fmt: skip


@pytest.mark.parametrize("form", OTHERS)
def test_other_boxes_are_no_walls(form: str) -> None:
    assert not has_consent_wall(OTHERS[form])


def test_elements_whose_parents_are_nonsense_end_all_the_same() -> None:
    box = Element(FULL, "div", text=ASKS, text_box=FULL, fixed=True, parent=7)
    has_consent_wall([box, box, Element(FULL, "p", parent=-5)])


@given(
    st.lists(st.integers(0, 2**64 - 1), max_size=40),
    st.lists(st.integers(0, 2**64 - 1), max_size=20),
    st.integers(0, 30),
)
def test_near_hashes_equal_those_of_all_comparisons(later: list, earlier: list, bits: int) -> None:
    found = near_hashes(np.array(later, dtype=np.uint64), np.array(earlier, dtype=np.uint64), bits)
    assert found.tolist() == [
        any((one ^ other).bit_count() <= bits for other in earlier) for one in later
    ]
