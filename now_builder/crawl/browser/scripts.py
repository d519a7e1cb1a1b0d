"""The scripts that are evaluated in a page, away from the page's own scripts."""

from importlib.resources import files

from now_builder.formats.shard import HEIGHT, WIDTH


def _read(name: str) -> str:
    return files("now_builder.crawl.browser").joinpath(name).read_text(encoding="utf-8")


_LIMITS = (
    "{quiet: 150, moved: 400, frames: 6, sandboxed: 1000, burst: 50, bursts: 2, late: 1500,"
    " endless: 2000, share: 0.005, finished: 200, slide: 1000}"
)
"""Milliseconds without a change until a page is at rest (``quiet``), or one that changes in bursts
(``moved``), with frames drawn since, unless it draws none (``sandboxed``). Milliseconds for late
scripts and pictures, and until a changing element counts as endless. Share of the screen below
which changes are ignored. Maximum animations brought to their end; milliseconds shown of one
without end."""

WATCH = f"void (globalThis.watched = ({_read('settle.js')})({_LIMITS}))"
WATCHED = "globalThis.watched?.()"
"""Start to watch the document; then its state: whether it is at rest, the number of changes so far.
The state is undefined before the start."""

FREEZE = f"({_read('freeze.js')})({_LIMITS})"
"""Stop animations; the value is the document's address, type, encoding and ``<meta>`` tags."""

HIDE_OVERLAYS = f"({_read('overlays.js')})({_read('overlays.json')})"
"""Hide cookie and consent overlays, found by listed rules or by their texts, without a click; the
value is the names of the rules used."""

ELEMENTS = (
    f"({_read('elements.js')})({{width: {WIDTH}, height: {HEIGHT}, count: 3000, text: 200, "
    "milliseconds: 1500})"
)
"""The value is the DOM elements on the first screen, as the browser laid them out."""
