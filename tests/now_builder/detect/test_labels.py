"""DOM records become labels; each filter drops what it should."""

from now_builder.detect.labels import NAMES, label
from now_builder.formats.shard import Element


def names(*elements):
    found = label(elements)
    return None if found is None else [NAMES[number] for number in found.classes]


def test_tags_and_roles_give_the_classes():
    box = (100.0, 100.0, 400.0, 160.0)
    cases = {
        "heading": {"tag": "h2"},
        "input": {"tag": "input", "input_type": "search"},
        "select": {"tag": "select"},
        "checkbox": {"tag": "input", "input_type": "radio"},
        "switch": {"tag": "input", "input_type": "range"},
        "button": {"tag": "input", "input_type": "submit"},
        "tab": {"tag": "div", "role": "tab"},
        "navigation bar": {"tag": "nav"},
        "list item": {"tag": "li"},
        "media": {"tag": "video"},
        "image": {"tag": "img"},
        "page indicator": {"tag": "progress"},
        "dialog": {"tag": "div", "role": "dialog"},
    }
    for name, fields in cases.items():
        assert names(Element(box, **fields)) == [name], name


def test_a_picture_of_48_css_px_or_less_is_an_icon():
    assert names(Element((0.0, 0.0, 96.0, 96.0), "svg")) == ["icon"]
    assert names(Element((0.0, 0.0, 98.0, 96.0), "svg")) == ["image"]


def test_a_padded_link_is_a_button_and_a_bare_one_a_link():
    text = (40.0, 40.0, 200.0, 70.0)
    padded = Element((0.0, 20.0, 240.0, 90.0), "a", "link", "Buy", text, interactive=True)
    bare = Element((40.0, 38.0, 200.0, 72.0), "a", "link", "Buy", text, interactive=True)
    assert names(padded) == ["button"]
    assert names(bare) == ["link"]


def test_text_takes_the_box_of_its_lines_not_of_its_block():
    lines = (24.0, 100.0, 180.0, 130.0)
    found = label([Element((0.0, 90.0, 720.0, 140.0), "p", "paragraph", "hello", lines)])
    assert found.boxes == [lines]


def test_the_invisible_the_clipped_and_the_tiny_are_dropped():
    box = (100.0, 100.0, 300.0, 200.0)
    assert names(Element(box, "img", visible=False)) == []
    assert names(Element(box, "img", visible_fraction=0.3)) == []
    assert names(Element(box, "img", visible_fraction=0.5)) == ["image"]
    assert names(Element((0.0, 0.0, 10.0, 300.0), "img")) == []
    assert names(Element((0.0, 0.0, 12.0, 20.0), "img")) == []


def test_of_nested_duplicates_the_most_specific_stays():
    box = (100.0, 100.0, 400.0, 160.0)
    item = Element(box, "li", "listitem")
    link = Element(box, "a", "link", "Buy", (110.0, 105.0, 395.0, 158.0), parent=0)
    button = Element(box, "button", "button", parent=1)
    assert names(item, link, button) == ["link", "button"]  # the link's text is smaller than 0.9
    assert names(item, button) == ["button"]


def test_a_wrapper_of_most_of_the_screen_is_no_label():
    assert names(Element((0.0, 0.0, 720.0, 1280.0), "article", "article")) == []
    assert names(Element((0.0, 0.0, 720.0, 1000.0), "article", "article")) == ["card"]


def test_a_picture_without_pixels_is_ignored_not_background():
    found = label([Element((0.0, 0.0, 300.0, 300.0), "img", loaded=False)])
    assert (found.boxes, found.ignored) == ([], [(0.0, 0.0, 300.0, 300.0)])


def test_an_element_of_an_unknown_role_is_ignored_not_background():
    found = label([Element((0.0, 0.0, 300.0, 300.0), "div", "feed")])
    assert (found.boxes, found.ignored) == ([], [(0.0, 0.0, 300.0, 300.0)])


def test_no_more_than_forty_of_a_class_are_kept():
    rows = [
        Element((x * 60.0, y * 60.0, x * 60.0 + 50, y * 60.0 + 50), "img")
        for y in range(10) for x in range(10)
    ]  # fmt: skip
    assert names(*rows) == ["icon"] * 40


def test_a_page_behind_a_dialog_is_left_out():
    assert names(Element((0.0, 100.0, 720.0, 1200.0), "div", "dialog")) is None


def test_repeated_blocks_of_picture_and_text_are_cards():
    elements = [Element((0.0, 0.0, 720.0, 640.0), "div")]
    for i in range(2):
        left = 24.0 + 344 * i
        elements.append(Element((left, 20.0, left + 328, 320.0), "div", parent=0))
        elements.append(Element((left, 20.0, left + 328, 220.0), "img", parent=1 + 3 * i))
        text = (left, 240.0, left + 100, 270.0)
        elements.append(Element(text, "span", text="x", text_box=text, parent=1 + 3 * i))
    assert names(*elements) == ["card", "image", "text"] * 2


def test_a_fixed_bar_is_a_navigation_bar_and_a_fixed_block_a_dialog():
    assert names(Element((0.0, 1180.0, 720.0, 1280.0), "div", fixed=True)) == ["navigation bar"]
    assert names(Element((60.0, 300.0, 660.0, 900.0), "div", fixed=True)) == ["dialog"]


def test_a_background_picture_is_an_image_when_small_and_a_banner_when_wide():
    assert names(Element((0.0, 0.0, 200.0, 200.0), "div", background=True)) == ["image"]
    assert names(Element((0.0, 0.0, 500.0, 200.0), "div", background=True)) == ["banner"]


def test_a_broken_record_with_a_loop_of_parents_does_not_hang():
    box = (0.0, 0.0, 300.0, 300.0)
    assert names(Element(box, "div", parent=1), Element(box, "li", parent=0)) == ["list item"]
