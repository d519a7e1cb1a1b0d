"""The DOM elements on the first screen, as the browser laid them out, in one in-page call."""

from importlib.resources import files
from typing import Any

from now_builder.formats.shard import HEIGHT, WIDTH, Element

_COUNT = 3000
_TEXT = 200
_MILLISECONDS = 1500

SCRIPT = files("now_builder.crawl.browser").joinpath("elements.js").read_text(encoding="utf-8")
"""A function of its limits; to run in an isolated world, away from the page's scripts."""


def elements_expression() -> str:
    """Return the JavaScript expression to evaluate in the page."""
    return (
        f"({SCRIPT})({{width: {WIDTH}, height: {HEIGHT}, count: {_COUNT}, text: {_TEXT}, "
        f"milliseconds: {_MILLISECONDS}}})"
    )


def read_elements(value: dict[str, Any]) -> list[Element]:
    """Parse the result of :func:`elements_expression`."""
    return [_element(item) for item in value["elements"]]


def _element(item: dict[str, Any]) -> Element:
    left, top, right, bottom = map(float, item.pop("box"))
    text_box = item.pop("text_box")
    item["visible_fraction"] = float(item["visible_fraction"])
    return Element(
        box=(left, top, right, bottom),
        text_box=None if text_box is None else tuple(map(float, text_box)),  # type: ignore[arg-type]
        **item,
    )
