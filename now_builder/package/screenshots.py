"""Find consent walls by the elements of a page."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from now_builder.formats.shard import HEIGHT, WIDTH, Element, read_plan, stream_elements
from now_builder.package.flags import word_patterns
from now_builder.program.progress import track_progress

_DIALOGS = frozenset({"dialog", "alertdialog"})
_LANDMARKS = frozenset({"main", "article", "nav", "navigation"})
_FIELDS = frozenset({"text", "email", "password", "tel", "search", "number", "url"})

_HEIGHT_SHARE = 0.35
"""Minimum share of the screen's height that a wall's text spans."""
_AREA_SHARE, _VISIBLE_BEHIND, _OFF_CENTRE = 0.5, 0.2, 0.2
"""Or: minimum share of the screen covered, with the maximum text left visible behind it, as a share
of its own text, or the maximum distance of its text from the centre, as a share of the height."""
_CHARACTERS_PER_WORD, _LINKED = 400, 0.8
"""Maximum number of characters per word of consent, and maximum share of text in links."""
_PAGE_TEXT = 0.6
"""Maximum share of all text in a wall that is not a dialog; a box with more is the page itself."""


def find_consent_walls(captures: Path, keys: frozenset[str]) -> frozenset[str]:
    """Return the pages with a consent wall, from their elements."""
    plan = read_plan(captures)
    shards = sorted({line.shard for line in plan if line.key in keys})
    pages = stream_elements(captures, keys, shards)
    pages = track_progress(pages, "consent walls", total=len(keys))
    return frozenset(key for key, elements in pages if has_consent_wall(elements))


def has_consent_wall(elements: Sequence[Element]) -> bool:
    """Return whether a box over the page asks for consent and covers most of the screen."""
    if not word_patterns()["consent"].search(_text(elements)):
        return False
    return any(
        element.visible and _is_wall(elements, number, end)
        for number, (element, end) in enumerate(zip(elements, _ends(elements), strict=True))
    )


def _is_wall(elements: Sequence[Element], start: int, end: int) -> bool:
    box, parts = elements[start], [part for part in elements[start:end] if part.visible]
    text = _text(parts)
    if not _asks_for_consent(parts, text) or any(map(_is_page_or_form, parts)):
        return False
    others = [*elements[:start], *elements[end:]]
    behind = [other for other in others if _is_within(other, box)]
    is_dialog = box.role in _DIALOGS or box.tag == "dialog"
    if not (is_dialog or box.fixed or not all(other.visible for other in behind)):
        return False
    if not is_dialog and len(text) > _PAGE_TEXT * (len(text) + len(_text(others))):
        return False
    visible = _text(other for other in behind if other.visible)
    return _is_large(box, parts, hides_page=len(visible) < _VISIBLE_BEHIND * len(text))


def _is_large(box: Element, parts: Sequence[Element], *, hides_page: bool) -> bool:
    """Return whether a box covers most of the screen; a large frame may have a small content."""
    boxes = [part.box if part.tag == "iframe" else part.text_box for part in parts]
    edges = [(part_box[1], part_box[3]) for part_box in boxes if part_box]
    if not edges:
        return False
    top, bottom = min(top for top, _ in edges), max(bottom for _, bottom in edges)
    is_central = abs((top + bottom) / 2 / HEIGHT - 0.5) < _OFF_CENTRE
    area = (box.box[2] - box.box[0]) * (box.box[3] - box.box[1])
    is_wide = area >= _AREA_SHARE * WIDTH * HEIGHT
    return bottom - top >= _HEIGHT_SHARE * HEIGHT or (is_wide and (hides_page or is_central))


def _asks_for_consent(parts: Sequence[Element], text: str) -> bool:
    """Return whether words of consent occur throughout a text, and not only in a menu's links."""
    linked = sum(len(part.text) for part in parts if part.tag == "a")
    count = sum(1 for _ in word_patterns()["consent"].finditer(text))
    return count > len(text) / _CHARACTERS_PER_WORD and linked < _LINKED * len(text)


def _is_page_or_form(part: Element) -> bool:
    """Return whether an element belongs to the page itself or a form, unlike a consent wall."""
    return part.tag in _LANDMARKS or part.role in _LANDMARKS or part.input_type in _FIELDS


def _is_within(other: Element, box: Element) -> bool:
    """Return whether the centre of an element's text is within a box."""
    if other.text_box is None:
        return False
    left, top, right, bottom = other.text_box
    x, y = (left + right) / 2, (top + bottom) / 2
    return box.box[0] < x < box.box[2] and box.box[1] < y < box.box[3]


def _text(elements: Iterable[Element]) -> str:
    return " ".join(element.text for element in elements if element.text).casefold()


def _ends(elements: Sequence[Element]) -> list[int]:
    """Return for each element the number after its last descendant."""
    ends = list(range(1, len(elements) + 1))
    for number in range(len(elements) - 1, -1, -1):
        parent = elements[number].parent
        if 0 <= parent < number:
            ends[parent] = max(ends[parent], ends[number])
    return ends
