"""DOM elements to detection labels: 18 classes, and the filters that noisy pages need."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from now_builder.formats.shard import HEIGHT, WIDTH, Box, Element

CLASSES: tuple[tuple[str, str], ...] = (
    ("text", "文本"),
    ("heading", "标题"),
    ("link", "链接"),
    ("button", "按钮"),
    ("icon", "图标"),
    ("image", "图片"),
    ("banner", "横幅"),
    ("input", "输入框"),
    ("select", "下拉框"),
    ("checkbox", "复选框"),
    ("switch", "开关"),
    ("tab", "标签页"),
    ("navigation bar", "导航栏"),
    ("list item", "列表项"),
    ("card", "卡片"),
    ("dialog", "弹窗"),
    ("media", "媒体"),
    ("page indicator", "页面指示器"),
)
"""English and Chinese name of each class; its place is its number.

Differs:
    The class names of MUI-zh, on which APT was trained, are not public; these are ours, as many.
"""

NAMES = tuple(english for english, _ in CLASSES)
_NUMBER = {name: number for number, name in enumerate(NAMES)}

_ROLES = {
    "alert": "dialog", "alertdialog": "dialog", "application": "media", "article": "card",
    "banner": "banner", "button": "button", "checkbox": "checkbox", "combobox": "select",
    "dialog": "dialog", "figure": "image", "heading": "heading", "iframe": "media", "img": "image",
    "link": "link", "listbox": "select", "listitem": "list item", "menubar": "navigation bar",
    "menuitem": "tab", "menuitemcheckbox": "checkbox", "menuitemradio": "checkbox",
    "meter": "page indicator", "navigation": "navigation bar", "option": "tab",
    "paragraph": "text", "progressbar": "page indicator", "radio": "checkbox", "row": "list item",
    "scrollbar": "page indicator", "searchbox": "input", "slider": "switch", "spinbutton": "input",
    "switch": "switch", "tab": "tab", "tablist": "navigation bar", "textbox": "input",
    "toolbar": "navigation bar", "tooltip": "dialog", "video": "media",
}  # fmt: skip
_TAGS = {
    "audio": "media", "button": "button", "canvas": "image", "dialog": "dialog", "embed": "media",
    "figure": "image", "h1": "heading", "h2": "heading", "h3": "heading", "h4": "heading",
    "h5": "heading", "h6": "heading", "iframe": "media", "img": "image", "li": "list item",
    "meter": "page indicator", "nav": "navigation bar", "object": "media", "picture": "image",
    "progress": "page indicator", "select": "select", "summary": "button", "svg": "image",
    "textarea": "input", "tr": "list item", "video": "media",
}  # fmt: skip
_INPUTS = {
    "button": "button", "checkbox": "checkbox", "image": "button", "radio": "checkbox",
    "range": "switch", "reset": "button", "submit": "button",
}  # fmt: skip
_UNSEEN_INPUTS = frozenset({"hidden", "file"})

_SPECIFIC = (
    "input", "select", "checkbox", "switch", "button", "tab", "link", "page indicator", "media",
    "image", "icon", "heading", "text", "card", "list item", "dialog", "navigation bar", "banner",
)  # fmt: skip
"""Of two boxes that coincide, the class that comes first here stays."""

_ICON = 96  # 48 CSS px
_SIDE, _AREA = 12, 256  # 6 CSS px and 64 CSS px²
_SEEN = 0.4
_WRAPPER = 0.8
_SAME = 0.9
_CAP = 40
_WALL = 0.6


@dataclass(frozen=True, slots=True)
class Labels:
    """What a page teaches.

    Attributes:
        boxes: In image px.
        classes: Index into :data:`CLASSES`, one per box.
        ignored: Boxes that are neither a class nor background: seen, but of no known kind.
    """

    boxes: list[Box]
    classes: list[int]
    ignored: list[Box]


def label(elements: Sequence[Element]) -> Labels | None:
    """Label one page, or give ``None`` for a page behind a wall (a dialog over most of it).

    Dropped: what cannot be seen or is clipped to less than 40 %; what is smaller than 6 CSS px or
    64 CSS px²; pictures without pixels; wrappers of more than 80 % of the screen; of boxes that
    coincide (IoU > 0.9) all but the most specific; beyond 40 of a class.
    """
    children = _children(elements)
    found: list[tuple[Box, str]] = []
    ignored: list[Box] = []
    for index, element in enumerate(elements):
        if not _seen(element):
            continue
        name = _class(elements, children, index)
        box = _tight(element, name)
        if name == "dialog" and _area(box) > _WALL * WIDTH * HEIGHT:
            return None
        if _area(box) > _WRAPPER * WIDTH * HEIGHT or _small(box):
            continue
        if name is None:
            if _is_unknown(element):
                ignored.append(box)
        elif element.loaded or name not in ("image", "icon", "media"):
            found.append((box, name))
        else:
            ignored.append(box)
    kept = _capped(_distinct(found))
    return Labels([box for box, _ in kept], [_NUMBER[name] for _, name in kept], ignored)


def _seen(element: Element) -> bool:
    return element.visible and element.visible_fraction >= _SEEN


def _is_unknown(element: Element) -> bool:
    """Whether an unlabelled element is drawn: has a role, can be used, or has a picture behind."""
    return bool(element.role or element.interactive or element.background)


def _class(
    elements: Sequence[Element], children: Sequence[Sequence[int]], index: int
) -> str | None:
    element = elements[index]
    name = _plain_class(element)
    if name == "link":
        return _link_class(elements, children, index)
    if name == "image":
        return "icon" if max(_sides(element.box)) <= _ICON else "image"
    if name == "card" or (name in (None, "list item") and _is_card(elements, children, index)):
        return "card"
    if name in (None, "banner"):
        return _by_looks(element, name)
    return name


def _plain_class(element: Element) -> str | None:
    if element.tag == "input":
        kind = element.input_type or "text"
        if element.role == "switch":
            return "switch"
        return None if kind in _UNSEEN_INPUTS else _INPUTS.get(kind, "input")
    return _ROLES.get(element.role) or _TAGS.get(element.tag)


def _link_class(
    elements: Sequence[Element], children: Sequence[Sequence[int]], index: int
) -> str | None:
    """A link is a button when it is padded round its text, a card when it wraps picture and text.

    A link that wraps nothing but a picture is left to the picture.
    """
    element = elements[index]
    if _is_card(elements, children, index):
        return "card"
    if element.text_box is None:
        below = list(_subtree(children, index))
        if not any(elements[i].text for i in below):
            return None
        return "link"
    width, height = _sides(element.box)
    text_width, text_height = _sides(element.text_box)
    padded = width > text_width + 24 and height > text_height + 16
    return "button" if padded and height <= 160 else "link"


def _is_card(elements: Sequence[Element], children: Sequence[Sequence[int]], index: int) -> bool:
    """Tell a block with picture and text that has a sibling of its kind and size."""
    element = elements[index]
    if element.fixed or element.tag in ("body", "main", "nav", "header", "footer", "ul", "ol"):
        return False
    below = [elements[i] for i in _subtree(children, index)]
    pictured = any(_plain_class(item) == "image" for item in below)
    if not pictured or not any(item.text for item in [element, *below]):
        return False
    siblings = children[element.parent] if element.parent >= 0 else []
    width, height = _sides(element.box)
    return any(
        other != index
        and elements[other].tag == element.tag
        and abs(_sides(elements[other].box)[0] - width) <= 8
        and abs(_sides(elements[other].box)[1] - height) <= 0.5 * height
        for other in siblings
    )


def _by_looks(element: Element, name: str | None) -> str | None:
    """Tell bars, overlays, banners and texts of elements whose tag says nothing."""
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


def _tight(element: Element, name: str | None) -> Box:
    """Give the lines' box for text, whose block box spans the page; else the border box."""
    if name in ("text", "heading", "link") and element.text_box is not None:
        return element.text_box
    return element.box


def _distinct(found: Sequence[tuple[Box, str]]) -> list[tuple[Box, str]]:
    """Drop all but the most specific of boxes that coincide, keeping document order."""
    order = sorted(range(len(found)), key=lambda i: (_SPECIFIC.index(found[i][1]), i))
    kept: list[int] = []
    for i in order:
        if all(_iou(found[i][0], found[k][0]) <= _SAME for k in kept):
            kept.append(i)
    return [found[i] for i in sorted(kept)]


def _capped(found: Sequence[tuple[Box, str]]) -> list[tuple[Box, str]]:
    counts: dict[str, int] = {}
    kept = []
    for box, name in found:
        counts[name] = counts.get(name, 0) + 1
        if counts[name] <= _CAP:
            kept.append((box, name))
    return kept


def _children(elements: Sequence[Element]) -> list[list[int]]:
    children: list[list[int]] = [[] for _ in elements]
    for index, element in enumerate(elements):
        if 0 <= element.parent < len(elements) and element.parent != index:
            children[element.parent].append(index)
    return children


def _subtree(children: Sequence[Sequence[int]], index: int) -> Iterator[int]:
    """Yield the descendants of an element, at most 200, safe against loops in a broken record."""
    waiting, seen = list(children[index]), {index}
    while waiting and len(seen) <= 200:
        current = waiting.pop()
        if current not in seen:
            seen.add(current)
            waiting.extend(children[current])
            yield current


def _sides(box: Box) -> tuple[float, float]:
    return box[2] - box[0], box[3] - box[1]


def _area(box: Box) -> float:
    width, height = _sides(box)
    return max(width, 0.0) * max(height, 0.0)


def _small(box: Box) -> bool:
    width, height = _sides(box)
    return min(width, height) < _SIDE or width * height < _AREA


def _iou(a: Box, b: Box) -> float:
    common = _area((max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])))
    return common / max(_area(a) + _area(b) - common, 1e-6)
