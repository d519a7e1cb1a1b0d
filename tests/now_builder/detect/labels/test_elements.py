"""DOM records become labels; each filter drops what it should."""

import math

import pytest

from now_builder.detect.labels.elements import label
from now_builder.detect.labels.mapping import NAMES, ClassMapping
from now_builder.formats.shard import Element


def names(*elements):
    found = label(elements)
    return None if found is None else [NAMES[number] for number in found.classes]


BOX = (100.0, 100.0, 400.0, 160.0)
TEXT = (40.0, 40.0, 200.0, 70.0)
LINK = {"tag": "a", "role": "link", "text": "Buy", "text_box": TEXT}


@pytest.mark.parametrize(
    ("box", "fields", "expected"),
    [
        (BOX, {"tag": "h2"}, ["heading"]),
        (BOX, {"tag": "input", "input_type": "search"}, ["input"]),
        (BOX, {"tag": "input", "input_type": "radio"}, ["checkbox"]),
        (BOX, {"tag": "div", "role": "tab"}, ["tab"]),
        (BOX, {"tag": "li"}, ["list item"]),
        (BOX, {"tag": "img"}, ["image"]),
        (BOX, {"tag": "img", "role": "presentation"}, ["image"]),  # pitfall 10: semantics lie
        (BOX, {"tag": "div", "role": "dialog"}, ["dialog"]),
        ((0, 0, 96, 96), {"tag": "svg"}, ["icon"]),  # 48 CSS px or less
        ((0, 0, 98, 96), {"tag": "svg"}, ["image"]),
        ((0, 20, 240, 90), LINK, ["button"]),  # padded, as is the next, a div that can be pressed
        ((20, 30, 220, 80), {**LINK, "tag": "div", "role": "", "interactive": True}, ["button"]),
        ((40, 38, 200, 72), LINK, ["link"]),
        ((0, 1180, 720, 1280), {"tag": "div", "fixed": True}, ["navigation bar"]),
        ((60, 300, 660, 900), {"tag": "div", "fixed": True}, ["dialog"]),
        ((0, 100, 720, 1200), {"tag": "div", "role": "dialog"}, None),  # a wall
        ((0, 0, 200, 200), {"tag": "div", "background": True}, ["image"]),
        ((0, 0, 500, 200), {"tag": "div", "background": True}, ["banner"]),
        ((0, 0, 720, 1280), {"tag": "article", "role": "article"}, []),  # a wrapper
        ((0, 0, 720, 1000), {"tag": "article", "role": "article"}, ["card"]),
        (BOX, {"tag": "img", "visible": False}, []),
        # Pitfalls 4 and 5: the crawler's grid of 3 x 3 points finds 3 of 9 free, or 4.
        (BOX, {"tag": "button", "visible_fraction": 3 / 9}, []),
        (BOX, {"tag": "button", "visible_fraction": 4 / 9}, ["button"]),
        ((0, 0, 10, 300), {"tag": "img"}, []),
        ((0, 0, 12, 20), {"tag": "img"}, []),
        ((math.nan, 0, 300, 300), {"tag": "img"}, []),
        ((-math.inf, 0, 300, 300), {"tag": "img"}, []),
    ],
)
def test_an_element_is_of_a_class_or_none_by_tag_role_and_look(box, fields, expected):
    element = Element(tuple(map(float, box)), **fields)
    assert names(element) == expected
    assert expected is None or not label([element]).ignored


def test_text_takes_the_box_of_its_lines_not_of_its_block():
    lines = (24.0, 100.0, 180.0, 130.0)
    found = label([Element((0.0, 90.0, 720.0, 140.0), "p", "paragraph", "hello", lines)])
    assert found.boxes == [lines]


def test_of_nested_duplicates_the_most_specific_stays():
    box = (100.0, 100.0, 400.0, 160.0)
    item = Element(box, "li", "listitem")
    link = Element(box, "a", "link", "Buy", (110.0, 105.0, 395.0, 158.0), parent=0)
    button = Element(box, "button", "button", parent=1)
    assert names(item, link, button) == ["link", "button"]  # the link's text is smaller than 0.9
    assert names(item, button) == ["button"]


def test_what_is_seen_but_of_no_class_is_ignored_not_background():
    """Pitfall 8: backgrounds of odd shape and unknown widgets are not to be learned as nothing."""
    box = (0.0, 0.0, 90.0, 90.0)
    for element in (
        Element(box, "img", loaded=False),
        Element(box, "div", "feed"),
        Element(box, "div", background=True),
        Element(box, "x-map", interactive=True),
    ):
        found = label([element, Element(box, "div")])
        assert (found.boxes, found.ignored) == ([], [box])


def test_of_a_class_forty_are_kept_and_the_others_ignored_not_background():
    """Pitfall 11: the cap must not teach that the forty-first icon is nothing."""
    rows = [
        Element((x * 60.0, y * 60.0, x * 60.0 + 50, y * 60.0 + 50), "img")
        for y in range(10) for x in range(10)
    ]  # fmt: skip
    assert names(*rows) == ["icon"] * 40
    assert label(rows).ignored == [row.box for row in rows[40:]]


def test_repeated_blocks_of_picture_and_text_are_cards():
    elements = [Element((0.0, 0.0, 720.0, 640.0), "div")]
    for i in range(2):
        left = 24.0 + 344 * i
        elements.append(Element((left, 20.0, left + 328, 320.0), "div", parent=0))
        elements.append(Element((left, 20.0, left + 328, 220.0), "img", parent=1 + 3 * i))
        text = (left, 240.0, left + 100, 270.0)
        elements.append(Element(text, "span", text="x", text_box=text, parent=1 + 3 * i))
    assert names(*elements) == ["card", "image", "text"] * 2


def test_a_broken_record_with_a_loop_of_parents_does_not_hang():
    box = (0.0, 0.0, 300.0, 300.0)
    assert names(Element(box, "div", parent=1), Element(box, "li", parent=0)) == ["list item"]


def test_boxes_are_image_px_cut_to_the_screen():
    """Pitfall 1, scale: the crawler multiplies by the scale; what stands out is cut here."""
    found = label([Element((-50.0, 1000.0, 800.0, 1400.0), "img")])
    assert found.boxes == [(0.0, 1000.0, 720.0, 1280.0)]


def test_a_heading_whose_text_stands_in_elements_below_takes_the_box_of_their_lines():
    """Pitfall 7: the block box of a heading spans the page, whoever holds its string."""
    block = (0.0, 90.0, 720.0, 180.0)
    one, two = (24.0, 95.0, 180.0, 130.0), (24.0, 135.0, 90.0, 170.0)
    elements = [
        Element(block, "h1", "heading"),
        Element(one, "span", text="a", text_box=one, parent=0),
        Element(two, "span", text="b", text_box=two, parent=0),
        Element(block, "span", text="c", text_box=block, parent=0, visible=False),
    ]  # fmt: skip
    found = label(elements)
    assert found.boxes[0] == (24.0, 95.0, 180.0, 170.0)
    assert [NAMES[number] for number in found.classes] == ["heading"]
    logo = Element((24.0, 95.0, 140.0, 175.0), "img", parent=0)
    assert label([*elements, logo]).boxes[0] == block


def test_parts_of_a_text_that_only_look_different_are_not_cut_from_it():
    """Bold words, spans and links stand in a paragraph's or heading's own lines."""
    block, line = (0.0, 90.0, 720.0, 180.0), (24.0, 95.0, 180.0, 130.0)
    bold, link = (180.0, 95.0, 240.0, 130.0), (24.0, 135.0, 90.0, 170.0)
    for tag, role, name in (("p", "paragraph", "text"), ("h2", "heading", "heading")):
        elements = [
            Element(block, tag, role, "some", line),
            Element(bold, "b", text="bold", text_box=bold, parent=0),
            Element(bold, "span", text="x", text_box=bold, parent=1),
            Element(link, "a", "link", "a link", link, parent=0),
        ]
        assert names(*elements) == [name, "link"]
        assert label(elements).boxes == [(24.0, 95.0, 240.0, 170.0), link]
    tags = [Element(each, "span", text="a", text_box=each, parent=0) for each in (line, link)]
    assert names(Element(block, "div"), *tags) == ["text", "text"]  # nobody's parts
    deep = [Element(line, "span", text="a", text_box=line, parent=i - 1) for i in range(3000)]
    assert names(*deep) == ["text"]


def test_a_mapping_gives_classes_of_its_own_by_role_tag_and_input():
    mapping = ClassMapping(
        classes=(("price", "价格"), ("button", "按钮"), ("field", "栏")),
        roles={"status": "price", "tooltip": "ignore"},
        inputs={"search": "field"},
    )
    boxes = [(0.0, 100.0 * i, 300.0, 100.0 * i + 80) for i in range(5)]
    found = label(
        [
            Element(boxes[0], "div", "status"),
            Element(boxes[1], "button"),
            Element(boxes[2], "input", input_type="search"),
            Element(boxes[3], "div", "tooltip"),
            Element(boxes[4], "img"),
        ],
        mapping,
    )
    assert found.classes == [0, 1, 2]
    assert found.ignored == boxes[3:]


def test_of_boxes_that_coincide_a_class_of_the_users_own_stays():
    mapping = ClassMapping(classes=(("text", "文本"), ("price", "价格")), roles={"status": "price"})
    box = (0.0, 0.0, 100.0, 40.0)
    text = Element(box, "span", text="9.99", text_box=box)
    assert label([text, Element(box, "div", "status")], mapping).classes == [1]
