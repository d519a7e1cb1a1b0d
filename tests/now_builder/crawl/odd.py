"""One crawl of all odd pages: awkward, moving, lazy, covered, hostile, and sites with rules."""

import re
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from now_builder.crawl.browser import scripts
from now_builder.crawl.run import crawl
from now_builder.crawl.settings import CrawlSettings
from now_builder.formats.shard import Capture, CaptureRow, read_captures, read_rows

from .awkward import AWKWARD, BREAD, TEA, Awkward, page
from .cases import read_cases
from .crawls import write_list
from .hostile import CHINESE
from .sites import ANSWERS, URLS, Sites

_PAGES = Path(__file__).parent / "browser"
MOVING = read_cases(_PAGES / "rest.toml")
LAZY = read_cases(_PAGES / "lazy.toml")["lazy"]
OVERLAYS = read_cases(_PAGES / "overlays.toml")

OWN = (
    "/plain", "/none", "/reloads", "/offers", "/alert", "/unload", "/popups", "/leaves", "/deep",
    "/picture", "/tampered",
)  # fmt: skip
"""Awkward pages that are captured with their own description."""

SLOW = ("/font", "/css", "/dead", "/computes", "/image", "/animated")
"""Awkward pages with their own description that never settle."""

CAPTIONS: dict[str, str | None] = {
    **{path: AWKWARD[path].get("description") for path in OWN},
    **dict.fromkeys(("/redirect", "/refresh", "/moves", "/app-or-page"), "a plain page"),
    **dict.fromkeys(("/utf-8", "/utf-8-late", "/utf-8-unseen"), TEA),
    **dict.fromkeys(("/gbk", "/gzip"), "北京最好吃的餐厅推荐，全家人都喜欢"),
    **{f"/views{route}": f"view {route}" for route in ("#/a", "#!b")},
    "/299": "a success without a name",
    "/og": "for sharing",
    "/script": "put there by a script",
    "/slow": "slow but fine",
    "/filled": "filled in",
    "/sandboxed": "without scripts",
    "/truncated": "cut off",
    "/windows-1250": BREAD,
    "/utf-8-script": "tea",
    "/utf-8-damaged": "Чай и коф\ufffd из дальних стран",
    "/ascii": "plain",
    "/gone": "gone",
    "/untyped": "no content type",
    "/chunked": "in chunks",
}
"""Awkward pages that are captured, with their captions."""

LATE: dict[str, str | None] = {
    **{path: AWKWARD[path].get("description") for path in SLOW},
    "/drip": "drips",
    "/print": "prints",
    "/asks": "asks for all",
    "/refresh-data": "to data",
    "/refresh-script": "to script",
    "/worker": "a worker that spins",
    "/surrogate": "a \ufffd b \ufffd c",
    "/surrogate-scripted": "half \ufffd",
    "/surrogate-bytes": "before \ufffd\ufffd\ufffd after",
    "/invalid": "before \ufffd\ufffd\ufffd(\ufffd after",
    "/nul": "before \ufffd after",
    "/noncharacters": "before \uffff\ufdd0\u202e after",
    "/gbk-as-utf-8": CHINESE.encode("gbk").decode("utf-8", "replace"),
    "/parts": "big parts",
    "/fetches": "fetches on",
    "/word-status": "whole",
    "/wrong-length": "whole",
    "/vast-length": "whole",
    "/empty": None,
}
"""Captured pages that never load completely or look harmful, with their captions."""

PARTIAL = {*SLOW, "/truncated", "/drip", "/parts", "/vast-length", "/gone"}

LOST: frozenset[str | None] = frozenset(
    {"timeout", "renderer_hung", "renderer_crashed", "browser_crashed"}
)
"""Possible errors of a page that uses all time or memory."""

_ERRORS = {
    "http_404": "/404 /to-bytes", "http_500": "/500", "http_401": "/401", "http_302": "/to-nothing",
    "http_999": "/odd-status", "http_0": "/zero-status",
    "not_html": "/204 /pdf /json /blob /no-status",
    "download": "/download /octets", "no_body": "/app", "redirect_loop": "/loop /spin",
    "timeout": "/silent /half-head", "too_large": "/endless /bomb /big /big-declared",
    "renderer_hung": "/alerts /forever", "robots": "/hidden",
    "dns_error": "/to-nowhere /to-long-host /to-long-labels nowhere.invalid/",
    "net_error": "/reset /long-header /to-file /to-data /to-script /bare /noise /nothing /injected "
    "/two-lengths /torn-gzip /no-gzip /bad-chunks",
    "bad_url": "ftp://site.test/x",
}  # fmt: skip
ERRORS: dict[str, set[str | None] | frozenset[str | None]] = {
    **{path: {error} for error, paths in _ERRORS.items() for path in paths.split()},
    "not a url": {"bad_url"},
    "/reload": {"redirect_loop", "unstable_page"},
    **dict.fromkeys(("/memory", "/push-state-loop"), LOST),
    # Their end depends on the speed of the machine.
    **dict.fromkeys(("/popups-1000", "/frames", "/nodes"), LOST | {None}),
}
"""Possible errors of the other pages; ``None``: captured."""

TIMEOUT_S = 7.0
"""Page timeout of these pages."""

_CONTENT = (
    "<style>body { margin: 0; font: 16px/20px sans-serif } nav { position: sticky; top: 0;"
    " height: 50px; background: #246 } .on { position: fixed; left: 0; right: 0; bottom: 0;"
    " padding: 20px; background: #fff; z-index: 9 } .veil { position: fixed; inset: 0;"
    " background: rgba(0, 0, 0, 0.5) }</style>"
    "<nav><a href=/>Home</a> <a href=/cookies>Cookies</a></nav>"
    "<main><h1>News of the day</h1>" + "<p>It rained on the hills, and then it shone.</p>" * 60
)
COVERED = {f"/on/{name}": body for name, (body, _) in OVERLAYS["hidden"].items()}
UNCOVERED = {f"/on/{name}": body for name, body in OVERLAYS["kept"].items()}
KEPT = [f"keep.test{path}" for path in [*UNCOVERED, *list(COVERED)[:4]]]
"""Pages that are also crawled with their overlays."""

_OLD = (
    b"<html><head><meta name=description content=old></head><body style='margin:0'>"
    b"<div role=banner style='position:absolute;left:0;top:0;width:490px;height:98px'>half"
    b"</div></body></html>"
)
_SCRIPTS = sorted(Path(scripts.__file__).parent.glob("*.js"))
_NAMES = sorted({name for path in _SCRIPTS for name in re.findall(r"\.(\w+)", path.read_text())})
_CLOBBERED = """\
<script>addEventListener('load', () => setTimeout(() => {
  HTMLElement.prototype.focus.call(one); Element.prototype.setAttribute.call(one, 'class', 'new');
  Element.prototype.append.call(one, Node.prototype.cloneNode.call(two, true));
}))</script>⟦pictures⟧
<form id=one role=main tabindex=0 style="position: relative">⟦fields⟧<h2>Book a room</h2>
<div><template shadowrootmode=open><form>⟦fields⟧<b>in shadow</b></form></template></div></form>
<form id=two>⟦fields⟧<p>Roses</p></form>
<form style="position: fixed; inset: 500px 0 0; background: #fff">⟦fields⟧<p>We use cookies.</p>
<button>Accept</button></form>"""
LAID_OUT = ["/geometry", "/old", "/huge", "/fields", "/clobbered"]
_HEAVY = ("/huge", "/deep")


def _clobbered(before: str) -> bytes:
    """Return a page with fields and pictures named like all properties that scripts read."""
    body = _CLOBBERED
    for token, tag in {"fields": "<input type=hidden", "pictures": "<img hidden"}.items():
        many = "".join(f"{tag} name={before}{name}>" for name in _NAMES)
        body = body.replace(f"⟦{token}⟧", many)
    return page("clobbered", body)


def _add_pages(server: Awkward) -> None:
    """Add pages that move, load lazily, have overlays or test the layout."""
    moving = {name: body for group in MOVING.values() for name, body in group.items()}
    below = "<p>text</p>" * 200 + "<img loading=lazy src=/below.png width=100 height=100>"
    geometry = page("geometry", (_PAGES / "geometry.html").read_text("utf-8"))
    server.pages |= {
        **{f"/rest/{name}": page(name, body, text="") for name, body in moving.items()},
        **{f"/lazy/{name}": page(name, body + below) for name, body in LAZY.items()},
        **{path: page("x", _CONTENT + "</main>" + b) for path, b in (COVERED | UNCOVERED).items()},
        "/geometry": geometry.replace(b"device-width", b"device-width, minimum-scale=1"),
        "/old": _OLD,
        "/gone": page("gone", "<script>document.documentElement.remove()</script>"),
        "/fields": _clobbered("a-"),
        "/clobbered": _clobbered(""),
    }


@dataclass(frozen=True)
class Odd:
    """The crawl: rows and captures by URL, without the host of ``site.test``, and the servers.

    ``left`` is the number of processes that it left behind.
    """

    captures: Path
    rows: dict[str, CaptureRow]
    shots: dict[str, Capture]
    awkward: Awkward
    sites: Sites
    left: int

    def errors(self, expected: dict[str, object]) -> dict[str, str | None]:
        """Return the errors of the expected pages."""
        return {path: self.rows[path].error for path in expected}


def crawl_odd_pages(folder: Path) -> Odd:
    """Crawl all pages into one folder, with less time in each of three runs."""
    before = set(psutil.Process().children(recursive=True))
    captures = folder / "captures"
    with Awkward() as server, Sites(ANSWERS) as sites, pytest.MonkeyPatch.context() as patch:
        for module in ("pool", "tab"):  # a busy machine reads them in time
            patch.setattr(f"now_builder.crawl.browser.{module}.MAX_BYTES", 20_000_000)
        patch.setattr("now_builder.crawl.browser.pool._PAGE_MB", 900)
        _add_pages(server)
        moving = [path for path in server.pages if path.startswith(("/rest/", "/lazy/", "/on/"))]
        light = [path for path in (*CAPTIONS, *moving, *LAID_OUT, *URLS) if path not in _HEAVY]
        own = {"page_timeout_s": 30.0, "settle_s": 6.0, "concurrency": 3, "overlays": "hide"}
        runs = (
            (light, own),
            ([*_HEAVY], {**own, "settle_s": 12.0, "concurrency": 1}),  # also on a busy machine
            ([*LATE, *KEPT], {"page_timeout_s": 15.0, "settle_s": 3.0, "concurrency": 3}),
            ([*ERRORS], {"page_timeout_s": TIMEOUT_S, "settle_s": 1.5, "concurrency": 2}),
        )  # fmt: skip
        listed: list[str] = []
        for paths, values in runs:
            listed += [_url(path) for path in paths]
            settings = CrawlSettings.model_validate(
                {
                    "allow_private": True,
                    "resolve": [*_at(server, "site.test", "keep.test"), *_at(sites, "*.test")],
                    "user_agent_url": "https://who.test/",
                    **values,
                }
            )
            crawl(write_list(folder, listed), captures, settings)
    left = set(psutil.Process().children(recursive=True)) - before
    rows = read_rows(captures)
    names = {row.key: row.url.removeprefix("http://").removeprefix("site.test") for row in rows}
    assert sorted(row.url for row in rows) == sorted(listed)
    shots = {names[capture.key]: capture for capture in read_captures(captures)}
    return Odd(captures, {names[row.key]: row for row in rows}, shots, server, sites, len(left))


def _url(path: str) -> str:
    if path.startswith("/"):
        return f"http://site.test{path}"
    return path if " " in path or ":" in path else f"http://{path}"


def _at(server: Awkward, *hosts: str) -> list[str]:
    return [f"{host}:127.0.0.1:{server.port}" for host in hosts]
