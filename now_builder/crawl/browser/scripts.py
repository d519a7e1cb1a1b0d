"""The scripts that are evaluated in a page, away from the page's own scripts."""

from importlib.resources import files

from now_builder.formats.shard import HEIGHT, WIDTH


def _read(name: str) -> str:
    return files("now_builder.crawl.browser").joinpath(name).read_text(encoding="utf-8")


SETTLE, FREEZE = _read("settle.js"), _read("freeze.js")
"""Functions: one waits until the page is at rest, the other stops what moves."""

HIDE_OVERLAYS = f"({_read('overlays.js')})({_read('overlays.json')})"
"""Hides cookie and consent overlays, found by listed rules or by what they say, never clicked; its
value is the names of the rules used."""

ELEMENTS = (
    f"({_read('elements.js')})({{width: {WIDTH}, height: {HEIGHT}, count: 3000, text: 200, "
    "milliseconds: 1500})"
)
"""Its value is the DOM elements on the first screen, as the browser laid them out."""
