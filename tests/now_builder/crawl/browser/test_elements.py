"""Elements in image px: clipping, covering, text lines, shadow roots, roles."""

import pytest

from now_builder.formats.shard import Element
from tests.now_builder.crawl.odd import LAID_OUT, Odd

pytestmark = [pytest.mark.browser]


def by_role(elements: list[Element], role: str) -> Element:
    (element,) = [element for element in elements if element.role == role]
    return element


@pytest.fixture
def elements(odd: Odd) -> list[Element]:
    """The elements of a page of hand-worked boxes."""
    return odd.shots["/geometry"].elements


def test_boxes_are_in_image_px_clipped_by_ancestors_and_the_screen(elements: list[Element]) -> None:
    button = next(element for element in elements if element.text == "Press")
    assert button.box == (240, 40, 400, 120)
    assert (button.tag, button.role, button.interactive, button.visible) == (
        "button", "button", True, True,
    )  # fmt: skip
    assert by_role(elements, "note").box == (120, 180, 220, 260)
    assert by_role(elements, "note").visible_fraction == pytest.approx(0.2)
    assert by_role(elements, "banner").box == (600, 640, 720, 720)
    assert not {"row", "main", "log"} & {element.role for element in elements}


def test_covered_hidden_and_transparent_elements_are_not_visible_except_under_a_clear_cover(
    elements: list[Element],
) -> None:
    roles = {role: by_role(elements, role).visible for role in
             ("navigation", "status", "timer", "alert", "menubar")}  # fmt: skip
    assert list(roles.values()) == [False, False, False, True, True]
    assert by_role(elements, "menubar").visible_fraction == 1


def test_text_boxes_are_those_of_the_lines(elements: list[Element]) -> None:
    plain = next(element for element in elements if element.text == "Plain text")
    left, top, right, bottom = plain.text_box
    assert (left, top) == (20, pytest.approx(40, abs=4))
    assert 100 < right - left < 200
    assert 30 <= bottom - top <= 44
    lines = by_role(elements, "term").text_box
    assert lines[3] - lines[1] > 100


def test_open_shadow_roots_are_looked_into(elements: list[Element]) -> None:
    button = next(element for element in elements if element.text == "in shadow")
    assert (button.box, button.visible) == ((250, 770, 370, 810), True)
    assert elements[button.parent].tag == "x-card"
    assert any(element.text == "slotted" for element in elements)


def test_frames_pictures_and_controls_say_what_they_are(elements: list[Element]) -> None:
    frames = [element for element in elements if element.tag == "iframe"]
    assert [(frame.text, frame.text_box) for frame in frames] == [("A map", None), ("shop", None)]
    pictures = [element for element in elements if element.tag == "img"]
    assert [(picture.role, picture.loaded) for picture in pictures] == [
        ("img", True), ("presentation", False),
    ]  # fmt: skip
    checkbox = by_role(elements, "checkbox")
    assert (checkbox.input_type, checkbox.interactive) == ("checkbox", True)
    assert by_role(elements, "textbox").text == "Search here"
    assert by_role(elements, "article").fixed


def test_odd_pages_are_laid_out_on_the_screen(odd: Odd) -> None:
    """Made for desktops, huge, and one that changes the built-ins."""
    for path in LAID_OUT:
        parents = [element.parent for element in odd.shots[path].elements]
        assert all(parent < place for place, parent in enumerate(parents))
    box = by_role(odd.shots["/old"].elements, "banner").box
    assert box == pytest.approx((0, 0, 360, 72), abs=1)
    assert 10 < len(odd.shots["/huge"].elements) <= 3000
    assert any(element.text == "text" for element in odd.shots["/tampered"].elements)


def test_fields_and_pictures_named_as_properties_hide_nothing(odd: Odd) -> None:
    texts = [element.text for element in odd.shots["/clobbered"].elements]
    assert {"Book a room", "in shadow", "Roses"} <= {*texts}
    assert not {"Accept", "We use cookies."} & {*texts}
    assert odd.shots["/clobbered"].elements == odd.shots["/fields"].elements
