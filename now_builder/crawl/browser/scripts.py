"""Scripts to evaluate in a page, in a world isolated from the page's own scripts."""

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
"""Beginning of each script: ``dom(node)`` and ``document`` give the real properties of forms, frame
sets and documents, which controls, frames and pictures of the same name may hide."""


def _read(name: str) -> str:
    return files("now_builder.crawl.browser").joinpath(name).read_text(encoding="utf-8")


def _script(name: str) -> str:
    return f"(() => {{{_DOM}return ({_read(name)})}})()"


_LIMITS = (
    "{quiet: 150, moved: 400, frames: 6, turn: 25, sandboxed: 1000, burst: 50, bursts: 2,"
    " late: 1500, endless: 2000, share: 0.005, large: 0.12, finished: 200, slide: 1000}"
)
"""``quiet``, ``moved``: milliseconds without a change until a page is at rest, and one that changes
in ``bursts`` with pauses of ``burst`` milliseconds; ``frames`` must be drawn meanwhile, or
``sandboxed`` milliseconds pass without one. ``turn``: milliseconds until the animations that a
change starts are finished; ``late``: to wait for late scripts and pictures; ``endless``: until a
changing element is ignored. ``share``: minimum share of the screen of a change; ``large``: that an
empty main part covers. ``finished``: maximum animations to finish; ``slide``: milliseconds into an
infinite animation to show."""

_WATCHED = "globalThis[Symbol.for('watched')]"  # a string could be the name of an element
WATCH = f"({_WATCHED} ??= {_script('settle.js')}({_LIMITS}))()"
WATCHED = f"{_WATCHED}?.()"
"""State of the document: whether it is at rest, and the number of changes so far. ``WATCH`` starts
watching it if needed; ``WATCHED`` is undefined if it is not watched."""

FREEZE = f"{_script('freeze.js')}({_LIMITS})"
"""Stop animations; return the document's URL, type, encoding and ``<meta>`` tags."""

HIDE_OVERLAYS = f"{_script('overlays.js')}({_read('overlays.json')})"
"""Hide cookie and consent overlays, by listed rules or by their texts, without a click; return the
names of the rules used."""

ELEMENTS = (
    f"{_script('elements.js')}({{width: {WIDTH}, height: {HEIGHT}, count: 3000, text: 200, "
    "milliseconds: 3000})"
)
"""Return the DOM elements on the first screen with their layout."""
