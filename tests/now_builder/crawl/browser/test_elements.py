"""Elements in image px: clipping, covering, text lines, shadow roots, roles."""

import re
from pathlib import Path

import pytest

from now_builder.crawl.browser import scripts
from now_builder.formats.shard import Element, read_captures
from tests.now_builder.crawl.awkward import Awkward, page
from tests.now_builder.crawl.crawls import visit

pytestmark = [pytest.mark.browser]

GEOMETRY = Path(__file__).with_name("geometry.html").read_text("utf-8")
OLD = (
    b"<html><head><meta name=description content=old></head><body style='margin:0'>"
    b"<div role=banner style='position:absolute;left:0;top:0;width:490px;height:98px'>half"
    b"</div></body></html>"
)


SCRIPTS = sorted(Path(scripts.__file__).parent.glob("*.js"))
PROPERTIES = sorted({name for path in SCRIPTS for name in re.findall(r"\.(\w+)", path.read_text())})
CLOBBERED = """\
<script>addEventListener('load', () => setTimeout(() => {
  HTMLElement.prototype.focus.call(one); Element.prototype.setAttribute.call(one, 'class', 'new');
  Element.prototype.append.call(one, Node.prototype.cloneNode.call(two, true));
}))</script>⟦pictures⟧
<form id=one role=main tabindex=0 style="position: relative">⟦fields⟧<h2>Book a room</h2>
<div><template shadowrootmode=open><form>⟦fields⟧<b>in shadow</b></form></template></div></form>
<form id=two>⟦fields⟧<p>Roses</p></form>
<form style="position: fixed; inset: 500px 0 0; background: #fff">⟦fields⟧<p>We use cookies.</p>
<button>Accept</button></form>"""


def clobbered(before: str) -> bytes:
    """Return a page with fields, and pictures, of all names of properties that scripts read."""
    tags = {"fields": "<input type=hidden name={}>", "pictures": "<img hidden name={}>"}
    body = CLOBBERED
    for what, tag in tags.items():
        many = "".join(tag.format(before + name) for name in PROPERTIES)
        body = body.replace(f"⟦{what}⟧", many)
    return page("clobbered", body)


@pytest.fixture(scope="module")
def elements(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Element]]:
    folder = tmp_path_factory.mktemp("elements")
    with Awkward() as server:
        server.pages["/geometry"] = page("geometry", GEOMETRY).replace(
            b"width=device-width", b"width=device-width, minimum-scale=1"
        )
        server.pages["/old"] = OLD
        server.pages["/fields"], server.pages["/clobbered"] = clobbered("a-"), clobbered("")
        paths = ["/geometry", "/old", "/huge", "/tampered", "/fields", "/clobbered"]
        visit(folder, server, paths, page_timeout_s=30.0, overlays="hide")
    found = list(read_captures(folder / "captures"))
    return {path: capture.elements for path, capture in zip(paths, found, strict=True)}


def by_role(elements: list[Element], role: str) -> Element:
    (found,) = [element for element in elements if element.role == role]
    return found


def test_boxes_are_in_image_px(elements) -> None:
    button = next(element for element in elements["/geometry"] if element.text == "Press")
    assert button.box == (240, 40, 400, 120)
    assert (button.tag, button.role, button.interactive, button.visible) == (
        "button", "button", True, True,
    )  # fmt: skip


def test_what_overflows_is_clipped_by_its_ancestors(elements) -> None:
    assert by_role(elements["/geometry"], "note").box == (120, 180, 220, 260)
    assert by_role(elements["/geometry"], "note").visible_fraction == pytest.approx(0.2)
    assert not [element for element in elements["/geometry"] if element.role == "row"]


def test_the_screen_clips_and_what_is_below_it_is_left_out(elements) -> None:
    assert by_role(elements["/geometry"], "banner").box == (600, 640, 720, 720)
    assert not [element for element in elements["/geometry"] if element.role == "main"]


def test_what_is_covered_is_not_visible_but_a_clear_cover_does_not_count(elements) -> None:
    assert not by_role(elements["/geometry"], "navigation").visible
    assert by_role(elements["/geometry"], "alert").visible
    assert by_role(elements["/geometry"], "menubar").visible
    assert by_role(elements["/geometry"], "menubar").visible_fraction == 1


def test_hidden_and_transparent_are_not_visible(elements) -> None:
    assert not by_role(elements["/geometry"], "status").visible
    assert not by_role(elements["/geometry"], "timer").visible
    assert not [element for element in elements["/geometry"] if element.role == "log"]


def test_text_boxes_are_those_of_the_lines(elements) -> None:
    plain = next(element for element in elements["/geometry"] if element.text == "Plain text")
    left, top, right, bottom = plain.text_box
    assert (left, top) == (20, pytest.approx(40, abs=4))
    assert 100 < right - left < 200
    assert 30 <= bottom - top <= 44
    lines = by_role(elements["/geometry"], "term").text_box
    assert lines[3] - lines[1] > 100


def test_open_shadow_roots_are_looked_into(elements) -> None:
    found = elements["/geometry"]
    button = next(element for element in found if element.text == "in shadow")
    assert button.box == (250, 770, 370, 810)
    assert button.visible
    assert found[button.parent].tag == "x-card"
    assert any(element.text == "slotted" for element in found)


def test_a_frame_is_known_by_what_it_is_called(elements) -> None:
    frames = [element for element in elements["/geometry"] if element.tag == "iframe"]
    assert [(frame.text, frame.text_box) for frame in frames] == [("A map", None), ("shop", None)]


def test_pictures_and_controls_say_what_they_are(elements) -> None:
    pictures = [element for element in elements["/geometry"] if element.tag == "img"]
    assert [(picture.role, picture.loaded) for picture in pictures] == [
        ("img", True), ("presentation", False),
    ]  # fmt: skip
    checkbox = by_role(elements["/geometry"], "checkbox")
    assert (checkbox.input_type, checkbox.interactive) == ("checkbox", True)
    assert by_role(elements["/geometry"], "textbox").text == "Search here"
    assert by_role(elements["/geometry"], "article").fixed


def test_parents_come_before_their_children(elements) -> None:
    for found in elements.values():
        assert all(element.parent < place for place, element in enumerate(found))


def test_a_page_made_for_desktops_is_scaled_to_the_screen(elements) -> None:
    box = by_role(elements["/old"], "banner").box
    assert box == pytest.approx((0, 0, 360, 72), abs=1)


def test_a_huge_page_gives_only_what_is_on_the_screen(elements) -> None:
    assert 10 < len(elements["/huge"]) <= 3000


def test_a_page_that_changes_the_built_ins_is_read_all_the_same(elements) -> None:
    assert any(element.text == "text" for element in elements["/tampered"])


def test_fields_and_pictures_named_as_properties_hide_nothing(elements) -> None:
    texts = [element.text for element in elements["/clobbered"]]
    assert {"Book a room", "in shadow", "Roses"} <= {*texts}
    assert not {"Accept", "We use cookies."} & {*texts}
    assert elements["/clobbered"] == elements["/fields"]
