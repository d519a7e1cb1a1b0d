"""DOM elements to detection labels: 18 classes, and the filters that noisy pages need."""

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
"""Classes by precedence: of boxes that coincide the first class is kept."""

_INLINE = frozenset({
    "abbr", "b", "bdi", "bdo", "cite", "code", "del", "dfn", "em", "font", "i", "ins", "kbd",
    "mark", "q", "s", "samp", "small", "span", "strong", "sub", "sup", "time", "u", "var",
})  # fmt: skip
"""Tags inside a text: its parts are no elements of their own."""
_ICON = 96  # 48 CSS px
SMALLEST = 12
"""Shortest side of a labelled element, px of the screen; 6 CSS px."""
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
        classes: Index into the classes of the mapping, one per box.
        ignored: Boxes that are neither a class nor background: visible, but of no known kind.
    """

    boxes: list[Box]
    classes: list[int]
    ignored: list[Box]


def label(elements: Sequence[Element], mapping: ClassMapping = DEFAULT) -> Labels | None:
    """Label one page; return ``None`` for a page behind a wall (a dialog over most of it).

    Dropped: hidden elements and those clipped to less than 40 %; those smaller than 6 CSS px or
    64 CSS px²; wrappers of more than 80 % of the screen; of boxes that coincide (IoU > 0.9) all but
    the most specific; parts of a text, heading or link that only look different. Ignored: pictures
    without pixels; unknown kinds; beyond 40 of a class.
    """
    page = _Page(elements, _children(elements), mapping)
    labelled: list[tuple[Box, str]] = []
    ignored: list[Box] = []
    whole: set[int] = set()  # texts, headings and links, and their parts
    for index, element in enumerate(elements):
        if not _seen(element):
            continue
        kind = _kind(page, index)
        part = kind == "text" and element.tag in _INLINE and element.parent in whole
        if part or kind in ("text", "heading", "link"):
            whole.add(index)
        if part or not all(map(math.isfinite, tight := _tight(page, index, kind))):
            continue
        left, top, right, bottom = tight
        box = max(left, 0.0), max(top, 0.0), min(right, float(WIDTH)), min(bottom, float(HEIGHT))
        if kind == "dialog" and _area(box) > _WALL * WIDTH * HEIGHT:
            return None
        plain = not (element.role or element.interactive or element.background)
        small = min(_sides(box)) < SMALLEST or _area(box) < _AREA
        if (kind is None and plain) or small or _area(box) > _WRAPPER * WIDTH * HEIGHT:
            continue  # background: neither labelled nor ignored
        unloaded = not element.loaded and kind in ("image", "icon", "media")
        if kind is None or unloaded or mapping.final(kind) == IGNORE:
            ignored.append(box)
        else:
            labelled.append((box, kind))
    labels = Labels([], [], ignored)
    for box, kind in _distinct(labelled):
        number = mapping.class_names.index(mapping.final(kind))
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
        """Return an element and what its text is made of, links included: some 200 at most."""
        found = [index]
        for each in found:
            if len(found) > 200:
                break
            below = (child for child in self.children[each] if child > each)
            found += [child for child in below if self.elements[child].tag in {*_INLINE, "a"}]
        return [self.elements[each] for each in found]

    def pictured(self, elements: Sequence[Element]) -> bool:
        return any(_plain_kind(item, self.mapping) == "image" for item in elements)


def _seen(element: Element) -> bool:
    return element.visible and element.visible_fraction >= _SEEN


def _kind(page: _Page, index: int) -> str | None:
    element = page.elements[index]
    name = _plain_kind(element, page.mapping)
    if name == "link":
        return _link_kind(page, index)
    if name == "image":
        return "icon" if max(_sides(element.box)) <= _ICON else "image"
    if name == "card" or (name in (None, "list item") and _is_card(page, index)):
        return "card"
    if name in (None, "banner"):
        return _by_looks(element, name)
    return name


def _plain_kind(element: Element, mapping: ClassMapping) -> str | None:
    if element.tag == "input":
        kind = element.input_type or "text"
        if element.role == "switch":
            return "switch"
        return None if kind in _UNSEEN_INPUTS else mapping.inputs.get(kind, "input")
    return mapping.roles.get(element.role) or mapping.tags.get(element.tag)


def _link_kind(page: _Page, index: int) -> str | None:
    """Return the kind of a link: a button if its text is padded, a card if it has picture and text.

    A link with nothing but a picture has no kind: the picture is labelled.
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
    """Return whether a block has picture and text, and a sibling of its kind and size."""
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
    """Return the kind (bar, overlay, banner, text …) of an element whose tag has none."""
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


def _tight(page: _Page, index: int, kind: str | None) -> Box:
    """Return the box of the lines for text, whose block spans the page; else the border box.

    Parts of the text count. For text whose strings are all in descendants it is the box of their
    lines, unless there are pictures among them.
    """
    element = page.elements[index]
    if kind not in ("text", "heading", "link"):
        return element.box
    below = page.below(index) if element.text_box is None else page.parts(index)
    lines = [item.text_box for item in below if item.text_box is not None and _seen(item)]
    if not lines or (element.text_box is None and page.pictured(below)):
        return element.box
    lefts, tops, rights, bottoms = zip(*lines, strict=True)
    return min(lefts), min(tops), max(rights), max(bottoms)


def _distinct(labelled: Sequence[tuple[Box, str]]) -> list[tuple[Box, str]]:
    """Drop all but the most specific of boxes that coincide; keep document order.

    A user's own kinds come first.
    """
    ranks = [_SPECIFIC.index(kind) if kind in _SPECIFIC else -1 for _, kind in labelled]
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
