"""Render the HTML of a page in its encoding, with the description in the place of its kind."""

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
"""Symbols that Python and browsers decode differently in an old encoding (yen sign, dashes)."""

_HTML_LANGS = {"zh": "zh-CN", "en": "en", "ja": "ja", "ru": "ru", "es": "es", "ko": "ko"}
_HUGE_ROWS = 9000
_TEMPLATES = ("news", "shop", "article", "landing", "profile", "forum", "results", "slides")
"""Types of phone pages, each with pictures of its topic at the top."""


def render(world: World, page: Page, *, refreshed: bool = False) -> bytes:
    """Render a page's HTML; ``refreshed`` omits the page's meta refresh."""
    view = View(world, page, Random(f"{world.settings.seed}/view/{page.number}"))
    # The template depends on the site, not on the topic.
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
    first, last = ("", charset) if page.declared == "late" else (charset, "")
    html = (
        f'<!DOCTYPE html><html lang="{lang}"><head>{first}'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"{refresh}<title>{view.say('titles')} - {view.site.name}</title>{before}"
        f"<style>{site_style(world, view.site)}</style>{late}{last}</head><body>{inside}{body}"
        f"{_after(view)}</body></html>"
    )
    return encode(html, page.charset)


@cache
def _environment() -> Environment:
    """Return the environment of the templates, without their line breaks and indentation."""
    folder = files("now_builder.simweb") / "templates"

    def read(name: str) -> str:
        return re.sub(r"\n\s*", "", (folder / f"{name}.j2").read_text(encoding="utf-8"))

    # A view escapes its texts itself; its pictures are HTML.
    return Environment(loader=FunctionLoader(read), undefined=StrictUndefined)  # noqa: S701


def encode(html: str, charset: str) -> bytes:
    """Encode HTML; characters outside the encoding, or ambiguous in it, become references."""
    if charset != "utf-8":
        html = _UNSURE.sub(lambda match: f"&#{ord(match[0])};", html)
    return html.encode(_CODECS.get(charset, charset), "xmlcharrefreplace")


def refreshed_target(page: Page) -> str:
    """Return the target of a page's meta refresh."""
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
    """Return the description as HTML for early in the head, late in the head, and the body."""
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
    """Return the HTML of an awkward kind at the end of the body."""
    match view.page.kind:
        case "dialog":
            text = json.dumps(view.words.site["alert"])
            return f"<script>onload=function(){{alert({text})}}</script>"
        case "script_loop":
            return "<script>while(1){}</script>"
        case "huge":
            cell = f"<li><a href='#'><span>{view.thing()}</span> <b>{view.thing()}</b></a></li>"
            padding = f"<!--{'x' * 160}-->"
            return f"<ul>{(cell + padding) * _HUGE_ROWS}</ul>"
    return ""
