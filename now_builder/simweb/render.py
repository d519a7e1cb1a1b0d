"""Render the HTML of a page in its encoding, with the description where its kind puts it."""

import json
import re
from functools import cache
from html import escape
from importlib.resources import files
from random import Random
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from now_builder.simweb.view import View, site_style
from now_builder.simweb.world import Page, World

_CODECS = {"shift_jis": "cp932", "euc-kr": "cp949", "iso-8859-1": "cp1252"}
_UNSURE = re.compile("[^\x00-\x7fÀ-ÖØ-öø-ɏЀ-ӿぁ-んァ-ヶー一-鿿가-힣、。，：；？！]")
"""Symbols that Python and browsers map differently in some old encoding (the yen sign, dashes)."""

_HTML_LANGS = {"zh": "zh-CN", "en": "en", "ja": "ja", "ru": "ru", "es": "es", "ko": "ko"}
_HUGE_ROWS = 9000
_TEMPLATES = ("news", "shop", "article", "landing", "profile", "forum", "results", "slides")
"""Kinds of phone page, each showing pictures of its topic at the top."""


def render(world: World, page: Page, *, refreshed: bool = False) -> bytes:
    """Render a page's HTML; ``refreshed`` leaves out the refresh of a page that has one."""
    view = View(world, page, Random(f"{world.settings.seed}/view/{page.number}"))
    # A site's template does not depend on its topics.
    chosen = Random(f"{world.settings.seed}/template/{page.site}").randrange(1000)
    template: Any = _environment().get_template(_TEMPLATES[chosen % len(_TEMPLATES)])
    body = template.render(view=view)
    if view.rng.random() < 0.12:
        parts: Any = _environment().get_template("parts").module
        body += parts.cookie_notice(view)
    before, late, inside = _placed_description(view)
    lang = "zh-TW" if page.charset == "big5" else _HTML_LANGS[view.site.lang]
    refresh = ""
    if page.kind == "meta_refresh" and not refreshed:
        refresh = f'<meta http-equiv="refresh" content="0;url={refreshed_target(page)}">'
    charset = _declaration(page)
    early, tardy = ("", charset) if page.declared == "late" else (charset, "")
    html = (
        f'<!DOCTYPE html><html lang="{lang}"><head>{early}'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"{refresh}<title>{view.say('titles')} - {view.site.name}</title>{before}"
        f"<style>{site_style(world, view.site)}</style>{late}{tardy}</head><body>{inside}{body}"
        f"{_after(view)}</body></html>"
    )
    return encode(html, page.charset)


@cache
def _environment() -> Environment:
    """Return the templates of the folder, in which line breaks and indentations say nothing."""
    folder = files("now_builder.simweb") / "templates"

    def read(name: str) -> str:
        return re.sub(r"\n\s*", "", (folder / f"{name}.j2").read_text(encoding="utf-8"))

    # A view escapes what it says, and draws pictures, which are HTML.
    return Environment(loader=FunctionLoader(read), undefined=StrictUndefined)  # noqa: S701


def encode(html: str, charset: str) -> bytes:
    """Encode; characters outside the encoding, or mapped in several ways, become references."""
    if charset != "utf-8":
        html = _UNSURE.sub(lambda found: f"&#{ord(found[0])};", html)
    return html.encode(_CODECS.get(charset, charset), "xmlcharrefreplace")


def refreshed_target(page: Page) -> str:
    """Return the target to which a page refreshes itself."""
    return page.target + ("&" if "?" in page.target else "?") + "r=1"


def _declaration(page: Page) -> str:
    if page.declared in {"header", "nowhere"}:
        return ""
    if page.declared == "conflict":
        return '<meta charset="utf-8">'
    if page.number % 2:
        return f'<meta http-equiv="Content-Type" content="text/html; charset={page.charset}">'
    return f'<meta charset="{page.charset}">'


def _placed_description(view: View) -> tuple[str, str, str]:
    """Write the description: early in the head, late in the head, or in the body."""
    page = view.page
    if page.description is None or page.kind in {"endless", "script_loop"}:
        return "", "", ""
    content = escape(page.description)
    tag = view.rng.choice(
        (
            f'<meta name="description" content="{content}">',
            f'<meta name="description" content="{content}" />',
            f'<meta content="{content}" name="description">',
            f'<META NAME="Description" CONTENT="{content}">',
        )
    )
    open_graph = f'<meta property="og:description" content="{content}">'
    if page.kind == "og_only":
        return open_graph, "", ""
    if page.kind == "script_description":
        text = json.dumps(page.description).replace("<", "\\u003c")
        script = (
            f"<script>var m=document.createElement('meta');m.name='description';m.content={text};"
            "document.head.appendChild(m)</script>"
        )
        return "", script, ""
    if page.kind == "body_description":
        return "", "", tag
    if page.kind == "late_description":
        return "", tag, ""
    return tag + (open_graph if view.rng.random() < 0.4 else ""), "", ""


def _after(view: View) -> str:
    """Write what an awkward kind adds at the end of the body."""
    kind = view.page.kind
    if kind == "dialog":
        text = json.dumps(view.words.site["alert"])
        return f"<script>onload=function(){{alert({text})}}</script>"
    if kind == "script_loop":
        return "<script>while(1){}</script>"
    if kind == "huge":
        cell = f"<li><a href='#'><span>{view.thing()}</span> <b>{view.thing()}</b></a></li>"
        padding = f"<!--{'x' * 160}-->"
        return f"<ul>{(cell + padding) * _HUGE_ROWS}</ul>"
    return ""
