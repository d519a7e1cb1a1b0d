"""The scripts that are evaluated in a page, away from the page's own scripts."""

from importlib.resources import files

from now_builder.formats.shard import HEIGHT, WIDTH

_DOM = """
const dom = (node) => node instanceof HTMLFormElement || node instanceof HTMLFrameSetElement
  || node instanceof Document ? new Proxy(node, { get: (_, name) => {
    const value = Reflect.get(Object.getPrototypeOf(node), name, node);
    return typeof value === "function" ? value.bind(node) : value;
  } }) : node;
const document = dom(window.document);
"""
"""Ahead of each script: ``dom(node)`` is a node for reading its properties, where forms, frame sets
and documents would give a control, frame or picture of that name. So is ``document``."""


def _read(name: str) -> str:
    return files("now_builder.crawl.browser").joinpath(name).read_text(encoding="utf-8")


def _script(name: str) -> str:
    return f"(() => {{{_DOM}return ({_read(name)})}})()"


_LIMITS = (
    "{quiet: 150, moved: 400, frames: 6, turn: 25, sandboxed: 1000, burst: 50, bursts: 2,"
    " late: 1500, endless: 2000, share: 0.005, large: 0.12, finished: 200, slide: 1000}"
)
"""Milliseconds without a change until a page is at rest (``quiet``), or one that changes in bursts
(``moved``), with frames drawn since, unless it draws none (``sandboxed``). Milliseconds from a
change until the animations that it began are brought to their end (``turn``), for late scripts and
pictures, and until a changing element counts as endless. Share of the screen below which changes
are ignored (``share``), and which an empty main part covers (``large``). Maximum animations brought
to their end; milliseconds shown of one without end."""

_WATCHED = "globalThis[Symbol.for('watched')]"  # a name could be that of an element
WATCH = f"({_WATCHED} ??= {_script('settle.js')}({_LIMITS}))()"
WATCHED = f"{_WATCHED}?.()"
"""The state of the document: whether it is at rest, the number of changes so far. The first watches
it from now on, if nobody did; the second is undefined then."""

FREEZE = f"{_script('freeze.js')}({_LIMITS})"
"""Stop animations; the value is the document's address, type, encoding and ``<meta>`` tags."""

HIDE_OVERLAYS = f"{_script('overlays.js')}({_read('overlays.json')})"
"""Hide cookie and consent overlays, found by listed rules or by their texts, without a click; the
value is the names of the rules used."""

ELEMENTS = (
    f"{_script('elements.js')}({{width: {WIDTH}, height: {HEIGHT}, count: 3000, text: 200, "
    "milliseconds: 1500})"
)
"""The value is the DOM elements on the first screen, as the browser laid them out."""
