"""Elements in image px: clipping, covering, text lines, shadow roots, roles."""

import pytest

from now_builder.formats.shard import Element
from tests.now_builder.crawl.odd import LAID_OUT, Odd

pytestmark = [pytest.mark.browser]


def by_role(elements: list[Element], role: str) -> Element:
    (found,) = [element for element in elements if element.role == role]
    return found


def test_boxes_are_in_image_px(odd: Odd) -> None:
    button = next(element for element in odd.shots["/geometry"].elements if element.text == "Press")
    assert button.box == (240, 40, 400, 120)
    assert (button.tag, button.role, button.interactive, button.visible) == (
        "button", "button", True, True,
    )  # fmt: skip


def test_what_overflows_is_clipped_by_its_ancestors(odd: Odd) -> None:
    assert by_role(odd.shots["/geometry"].elements, "note").box == (120, 180, 220, 260)
    assert by_role(odd.shots["/geometry"].elements, "note").visible_fraction == pytest.approx(0.2)
    assert not [element for element in odd.shots["/geometry"].elements if element.role == "row"]


def test_the_screen_clips_and_what_is_below_it_is_left_out(odd: Odd) -> None:
    assert by_role(odd.shots["/geometry"].elements, "banner").box == (600, 640, 720, 720)
    assert not [element for element in odd.shots["/geometry"].elements if element.role == "main"]


def test_what_is_covered_is_not_visible_but_a_clear_cover_does_not_count(odd: Odd) -> None:
    assert not by_role(odd.shots["/geometry"].elements, "navigation").visible
    assert by_role(odd.shots["/geometry"].elements, "alert").visible
    assert by_role(odd.shots["/geometry"].elements, "menubar").visible
    assert by_role(odd.shots["/geometry"].elements, "menubar").visible_fraction == 1


def test_hidden_and_transparent_are_not_visible(odd: Odd) -> None:
    assert not by_role(odd.shots["/geometry"].elements, "status").visible
    assert not by_role(odd.shots["/geometry"].elements, "timer").visible
    assert not [element for element in odd.shots["/geometry"].elements if element.role == "log"]


def test_text_boxes_are_those_of_the_lines(odd: Odd) -> None:
    found = odd.shots["/geometry"].elements
    plain = next(element for element in found if element.text == "Plain text")
    left, top, right, bottom = plain.text_box
    assert (left, top) == (20, pytest.approx(40, abs=4))
    assert 100 < right - left < 200
    assert 30 <= bottom - top <= 44
    lines = by_role(found, "term").text_box
    assert lines[3] - lines[1] > 100


def test_open_shadow_roots_are_looked_into(odd: Odd) -> None:
    found = odd.shots["/geometry"].elements
    button = next(element for element in found if element.text == "in shadow")
    assert button.box == (250, 770, 370, 810)
    assert button.visible
    assert found[button.parent].tag == "x-card"
    assert any(element.text == "slotted" for element in found)


def test_a_frame_is_known_by_what_it_is_called(odd: Odd) -> None:
    frames = [element for element in odd.shots["/geometry"].elements if element.tag == "iframe"]
    assert [(frame.text, frame.text_box) for frame in frames] == [("A map", None), ("shop", None)]


def test_pictures_and_controls_say_what_they_are(odd: Odd) -> None:
    pictures = [element for element in odd.shots["/geometry"].elements if element.tag == "img"]
    assert [(picture.role, picture.loaded) for picture in pictures] == [
        ("img", True), ("presentation", False),
    ]  # fmt: skip
    checkbox = by_role(odd.shots["/geometry"].elements, "checkbox")
    assert (checkbox.input_type, checkbox.interactive) == ("checkbox", True)
    assert by_role(odd.shots["/geometry"].elements, "textbox").text == "Search here"
    assert by_role(odd.shots["/geometry"].elements, "article").fixed


def test_parents_come_before_their_children(odd: Odd) -> None:
    for path in LAID_OUT:
        found = odd.shots[path].elements
        assert all(element.parent < place for place, element in enumerate(found))


def test_a_page_made_for_desktops_is_scaled_to_the_screen(odd: Odd) -> None:
    box = by_role(odd.shots["/old"].elements, "banner").box
    assert box == pytest.approx((0, 0, 360, 72), abs=1)


def test_a_huge_page_gives_only_what_is_on_the_screen(odd: Odd) -> None:
    assert 10 < len(odd.shots["/huge"].elements) <= 3000


def test_a_page_that_changes_the_built_ins_is_read_all_the_same(odd: Odd) -> None:
    assert any(element.text == "text" for element in odd.shots["/tampered"].elements)


def test_fields_and_pictures_named_as_properties_hide_nothing(odd: Odd) -> None:
    texts = [element.text for element in odd.shots["/clobbered"].elements]
    assert {"Book a room", "in shadow", "Roses"} <= {*texts}
    assert not {"Accept", "We use cookies."} & {*texts}
    assert odd.shots["/clobbered"].elements == odd.shots["/fields"].elements
