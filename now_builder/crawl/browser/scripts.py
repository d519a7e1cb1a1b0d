"""The scripts that are evaluated in a page, away from the page's own scripts."""

from importlib.resources import files

from now_builder.formats.shard import HEIGHT, WIDTH


def _read(name: str) -> str:
    return files("now_builder.crawl.browser").joinpath(name).read_text(encoding="utf-8")


_LIMITS = (
    "{quiet: 150, moved: 400, frames: 6, sandboxed: 1000, burst: 50, bursts: 2, late: 1500,"
    " endless: 2000, share: 0.005, finished: 200, slide: 1000}"
)
"""Milliseconds without a change until a page is at rest, and where it changes in bursts that far
apart; frames it must have drawn since, unless it draws none (``sandboxed``: for so long). For how
long a page may still fetch scripts and pictures, and an element may change until it counts as one
that never ends. Share of the screen below which an element may change unnoticed. Most animations
that are brought to their end. Milliseconds at which one without end is shown."""

WATCH = f"void (globalThis.watched = ({_read('settle.js')})({_LIMITS}))"
WATCHED = "globalThis.watched?.()"
"""Watches the document; and whether it is at rest, with the number of changes so far, or nothing
where it is not watched yet."""

FREEZE = f"({_read('freeze.js')})({_LIMITS})"
"""Stops what moves; its value is the document's address, type, encoding and ``<meta>`` tags."""

HIDE_OVERLAYS = f"({_read('overlays.js')})({_read('overlays.json')})"
"""Hides cookie and consent overlays, found by listed rules or by what they say, never clicked; its
value is the names of the rules used."""

ELEMENTS = (
    f"({_read('elements.js')})({{width: {WIDTH}, height: {HEIGHT}, count: 3000, text: 200, "
    "milliseconds: 1500})"
)
"""Its value is the DOM elements on the first screen, as the browser laid them out."""
