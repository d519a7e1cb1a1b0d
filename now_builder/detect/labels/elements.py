"""Convert DOM elements to detection labels of 18 classes, with filters for noisy pages."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from now_builder.detect.labels.mapping import DEFAULT, IGNORE, ClassMapping
from now_builder.formats.shard import HEIGHT, WIDTH, Box, Element

_UNSEEN_INPUTS = frozenset({"hidden", "file"})

_SPECIFIC = (
    "input", "select", "checkbox", "switch", "button", "tab", "link", "page indicator", "media",
    "image", "icon", "heading", "text", "card", "list item", "dialog", "navigation bar", "banner",
)  # fmt: skip
"""Classes by precedence, to choose one of several boxes that coincide."""

_INLINE = frozenset({
    "abbr", "b", "bdi", "bdo", "cite", "code", "del", "dfn", "em", "font", "i", "ins", "kbd",
    "mark", "q", "s", "samp", "small", "span", "strong", "sub", "sup", "time", "u", "var",
})  # fmt: skip
"""Tags of inline markup, which is part of the text around it."""
_ICON = 96  # 48 CSS px
SMALLEST = 12
"""Minimum side of a labelled element in image px (6 CSS px)."""
_AREA = 256  # 64 CSS px²
_SEEN = 0.4
_WRAPPER = 0.8
_SAME = 0.9
_CAP = 40
_WALL = 0.6


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels of one page.

    Attributes:
        boxes: Boxes in image px.
        classes: Index of each box's class in the mapping.
        ignored: Boxes of visible elements without a class, which are not background either.
    """

    boxes: list[Box]
    classes: list[int]
    ignored: list[Box]


def label(elements: Sequence[Element], mapping: ClassMapping = DEFAULT) -> Labels | None:
    """Label one page; return ``None`` for a page behind a wall (a dialog over most of it).

    Dropped: hidden elements and those clipped to less than 40 %; those smaller than 6 CSS px or
    64 CSS px²; wrappers of more than 80 % of the screen; all but the most specific of boxes that
    coincide (IoU > 0.9); inline markup in a text, heading or link. Ignored: pictures that did not
    load; elements without a class; any beyond 40 of a class.
    """
    page = _Page(elements, _children(elements), mapping)
    labelled: list[tuple[Box, str]] = []
    ignored: list[Box] = []
    whole: set[int] = set()  # texts, headings and links, and their parts
    for index, element in enumerate(elements):
        if not _seen(element):
            continue
        name = _class_name(page, index)
        is_text = name in {"text", "heading", "link"}
        part = name == "text" and element.tag in _INLINE and element.parent in whole
        if is_text:
            whole.add(index)
        if part or not all(map(math.isfinite, tight := _tight(page, index, is_text=is_text))):
            continue
        left, top, right, bottom = tight
        box = max(left, 0.0), max(top, 0.0), min(right, float(WIDTH)), min(bottom, float(HEIGHT))
        if name == "dialog" and _area(box) > _WALL * WIDTH * HEIGHT:
            return None
        plain = not (element.role or element.interactive or element.background)
        small = min(_sides(box)) < SMALLEST or _area(box) < _AREA
        if (name is None and plain) or small or _area(box) > _WRAPPER * WIDTH * HEIGHT:
            continue  # background: neither labelled nor ignored
        unloaded = not element.loaded and name in ("image", "icon", "media")
        if name is None or unloaded or mapping.final(name) == IGNORE:
            ignored.append(box)
        else:
            labelled.append((box, name))
    labels = Labels([], [], ignored)
    for box, name in _distinct(labelled):
        number = mapping.class_names.index(mapping.final(name))
        if labels.classes.count(number) < _CAP:
            labels.boxes.append(box)
            labels.classes.append(number)
        else:
            ignored.append(box)
    return labels


def dom_boxes(elements: Sequence[Element]) -> list[Box]:
    """Return the boxes of visible elements, labelled or ignored; none of a page behind a wall."""
    labels = label(elements)
    return [] if labels is None else [*labels.boxes, *labels.ignored]


@dataclass(frozen=True, slots=True)
class _Page:
    elements: Sequence[Element]
    children: Sequence[Sequence[int]]
    mapping: ClassMapping

    def below(self, index: int) -> list[Element]:
        """Return the descendants, at most 200, safe against loops in a broken record."""
        waiting, seen = list(self.children[index]), [index]
        while waiting and len(seen) <= 200:
            current = waiting.pop()
            if current not in seen:
                seen.append(current)
                waiting.extend(self.children[current])
        return [self.elements[each] for each in seen[1:]]

    def parts(self, index: int) -> list[Element]:
        """Return an element and the inline elements and links in it, about 200 at most."""
        indices = [index]
        for each in indices:
            if len(indices) > 200:
                break
            below = (child for child in self.children[each] if child > each)
            indices += [child for child in below if self.elements[child].tag in {*_INLINE, "a"}]
        return [self.elements[each] for each in indices]

    def pictured(self, elements: Sequence[Element]) -> bool:
        return any(_mapped_class(item, self.mapping) == "image" for item in elements)


def _seen(element: Element) -> bool:
    return element.visible and element.visible_fraction >= _SEEN


def _class_name(page: _Page, index: int) -> str | None:
    element = page.elements[index]
    name = _mapped_class(element, page.mapping)
    if name == "link":
        return _link_class(page, index)
    if name == "image":
        return "icon" if max(_sides(element.box)) <= _ICON else "image"
    if name == "card" or (name in (None, "list item") and _is_card(page, index)):
        return "card"
    if name in (None, "banner"):
        return _by_looks(element, name)
    return name


def _mapped_class(element: Element, mapping: ClassMapping) -> str | None:
    """Return the class of an element by role, tag and input type, whatever it looks like."""
    if element.tag == "input":
        if element.role == "switch":
            return "switch"
        input_type = element.input_type or "text"
        return None if input_type in _UNSEEN_INPUTS else mapping.inputs.get(input_type, "input")
    return mapping.roles.get(element.role) or mapping.tags.get(element.tag)


def _link_class(page: _Page, index: int) -> str | None:
    """Return the class of a link: button if its text is padded, card if it has picture and text.

    A link with only a picture has no class: the picture is labelled instead.
    """
    if _is_card(page, index):
        return "card"
    element = page.elements[index]
    if element.text_box is None:
        return "link" if any(item.text for item in page.below(index)) else None
    width, height = _sides(element.box)
    text_width, text_height = _sides(element.text_box)
    padded = width > text_width + 24 and height > text_height + 16
    return "button" if padded and height <= 160 else "link"


def _is_card(page: _Page, index: int) -> bool:
    """Return whether a block has picture and text, and a sibling with its tag and size."""
    element = page.elements[index]
    if element.fixed or element.tag in ("body", "main", "nav", "header", "footer", "ul", "ol"):
        return False
    below = page.below(index)
    if not page.pictured(below) or not any(item.text for item in [element, *below]):
        return False
    siblings = page.children[element.parent] if element.parent >= 0 else []
    width, height = _sides(element.box)
    return any(
        other != index
        and page.elements[other].tag == element.tag
        and abs(_sides(page.elements[other].box)[0] - width) <= 8
        and abs(_sides(page.elements[other].box)[1] - height) <= 0.5 * height
        for other in siblings
    )


def _by_looks(element: Element, name: str | None) -> str | None:
    """Return the class (bar, dialog, banner, text …) of an element by its appearance."""
    width, height = _sides(element.box)
    if element.fixed and width >= 0.9 * WIDTH and height <= 0.2 * HEIGHT:
        return "navigation bar"
    if element.fixed and width >= 0.5 * WIDTH and height >= 0.2 * HEIGHT:
        return "dialog"
    if name == "banner" or (element.background and width >= 0.5 * WIDTH and height >= 120):
        return "banner"
    if element.background and not element.text.strip() and min(width, height) > _ICON:
        return "image"
    if element.text.strip() and element.text_box is not None:
        return "button" if element.interactive and width > 40 and height <= 160 else "text"
    return None


def _tight(page: _Page, index: int, *, is_text: bool) -> Box:
    """Return the box of a text's lines, since its block may span the page; else the border box.

    If all strings are in descendants, these give the lines, unless there are pictures among them.
    """
    element = page.elements[index]
    if not is_text:
        return element.box
    below = page.below(index) if element.text_box is None else page.parts(index)
    lines = [item.text_box for item in below if item.text_box is not None and _seen(item)]
    if not lines or (element.text_box is None and page.pictured(below)):
        return element.box
    lefts, tops, rights, bottoms = zip(*lines, strict=True)
    return min(lefts), min(tops), max(rights), max(bottoms)


def _distinct(labelled: Sequence[tuple[Box, str]]) -> list[tuple[Box, str]]:
    """Keep the most specific of boxes that coincide, in document order.

    Classes of a user's mapping take precedence.
    """
    ranks = [_SPECIFIC.index(name) if name in _SPECIFIC else -1 for _, name in labelled]
    kept: list[int] = []
    for i in sorted(range(len(labelled)), key=ranks.__getitem__):
        if all(_iou(labelled[i][0], labelled[k][0]) <= _SAME for k in kept):
            kept.append(i)
    return [labelled[i] for i in sorted(kept)]


def _children(elements: Sequence[Element]) -> list[list[int]]:
    children: list[list[int]] = [[] for _ in elements]
    for index, element in enumerate(elements):
        if 0 <= element.parent < len(elements) and element.parent != index:
            children[element.parent].append(index)
    return children


def _sides(box: Box) -> tuple[float, float]:
    return box[2] - box[0], box[3] - box[1]


def _area(box: Box) -> float:
    width, height = _sides(box)
    return max(width, 0.0) * max(height, 0.0)


def _iou(a: Box, b: Box) -> float:
    common = _area((max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])))
    return common / max(_area(a) + _area(b) - common, 1e-6)
