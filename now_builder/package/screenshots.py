"""Consent walls, by a page's elements."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from now_builder.formats.shard import HEIGHT, WIDTH, Element, read_plan, stream_elements
from now_builder.package.flags import consent_words
from now_builder.program.progress import track_progress

_DIALOGS = frozenset({"dialog", "alertdialog"})
_LANDMARKS = frozenset({"main", "article", "nav", "navigation"})
_FIELDS = frozenset({"text", "email", "password", "tel", "search", "number", "url"})

_TALL = 0.35
"""Minimum share of the screen's height that the text of a wall spans, without its edges."""
_WALL, _BESIDE, _CENTRE = 0.5, 0.2, 0.2
"""Or it covers so much of the screen, and hides what is beneath but for so little beside its own
text, or stands so near the centre."""
_ONCE_IN, _LINKED = 400, 0.8
"""It has a word of consent once in so many characters, and less of its text in links."""
_PAGE = 0.6
"""A box with more of all text than this is the page itself, unless it is a dialog."""


def find_consent_walls(captures: Path, keys: frozenset[str]) -> frozenset[str]:
    """Return which pages show a consent wall; reads their elements, and no picture."""
    plan = read_plan(captures)
    shards = sorted({line.shard for line in plan if line.key in keys})
    pages = stream_elements(captures, keys, shards)
    seen = track_progress(pages, "consent walls", total=len(keys))
    return frozenset(key for key, elements in seen if has_consent_wall(elements))


def has_consent_wall(elements: Sequence[Element]) -> bool:
    """Whether a box over the page asks for consent, and takes or hides most of the screen."""
    if not consent_words().search(_said(elements)):
        return False
    return any(
        element.visible and _is_wall(elements, number, end)
        for number, (element, end) in enumerate(zip(elements, _ends(elements), strict=True))
    )


def _is_wall(elements: Sequence[Element], start: int, end: int) -> bool:
    box, parts = elements[start], [part for part in elements[start:end] if part.visible]
    said = _said(parts)
    if not _asks(parts, said) or any(map(_is_of_page, parts)):
        return False
    others = [*elements[:start], *elements[end:]]
    beneath = [other for other in others if _is_within(other, box)]
    is_dialog = box.role in _DIALOGS or box.tag == "dialog"
    if not (is_dialog or box.fixed or not all(other.visible for other in beneath)):
        return False
    if not is_dialog and len(said) > _PAGE * (len(said) + len(_said(others))):
        return False
    hides = len(_said(other for other in beneath if other.visible)) < _BESIDE * len(said)
    return _takes(box, parts, hides=hides)


def _takes(box: Element, parts: Sequence[Element], *, hides: bool) -> bool:
    """Whether a box takes most of the screen, though it may be a frame around a small one."""
    seen = [part.box if part.tag == "iframe" else part.text_box for part in parts]
    edges = [(there[1], there[3]) for there in seen if there]
    if not edges:
        return False
    top, bottom = min(top for top, _ in edges), max(bottom for _, bottom in edges)
    is_central = abs((top + bottom) / 2 / HEIGHT - 0.5) < _CENTRE
    area = (box.box[2] - box.box[0]) * (box.box[3] - box.box[1])
    is_large = area >= _WALL * WIDTH * HEIGHT
    return bottom - top >= _TALL * HEIGHT or (is_large and (hides or is_central))


def _asks(parts: Sequence[Element], said: str) -> bool:
    """Whether a box speaks of consent throughout, in more than the links of a menu."""
    linked = sum(len(part.text) for part in parts if part.tag == "a")
    found = sum(1 for _ in consent_words().finditer(said))
    return found > len(said) / _ONCE_IN and linked < _LINKED * len(said)


def _is_of_page(part: Element) -> bool:
    """Whether an element is of the page itself or of a form: no part of a consent wall."""
    return part.tag in _LANDMARKS or part.role in _LANDMARKS or part.input_type in _FIELDS


def _is_within(other: Element, box: Element) -> bool:
    """Whether the middle of an element's text lies within a box."""
    if other.text_box is None:
        return False
    left, top, right, bottom = other.text_box
    across, down = (left + right) / 2, (top + bottom) / 2
    return box.box[0] < across < box.box[2] and box.box[1] < down < box.box[3]


def _said(elements: Iterable[Element]) -> str:
    return " ".join(element.text for element in elements if element.text).casefold()


def _ends(elements: Sequence[Element]) -> list[int]:
    """Return for each element the number behind the last one that it contains."""
    ends = list(range(1, len(elements) + 1))
    for number in range(len(elements) - 1, -1, -1):
        parent = elements[number].parent
        if 0 <= parent < number:
            ends[parent] = max(ends[parent], ends[number])
    return ends
