"""Find the caption of a page in its HTML source."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from html import unescape
from operator import itemgetter
from typing import Any

from bs4 import BeautifulSoup, Tag
from bs4.builder._lxml import LXMLTreeBuilder
from bs4.filter import SoupStrainer

from now_builder.crawl.caption.charset import decode, replace_surrogates
from now_builder.formats.text import clean, decode_entities, is_placeholder

_LONGEST = 1 << 22
"""Maximum bytes of a page to parse; its elements may need 200 times as much memory."""
_DEEPEST = 6000
"""Maximum depth (Chromium's is 512). For each stray end tag libxml2 searches all open elements: a
page of 2 MB took minutes."""
_PIECE = 1 << 16

_XML_DECLARATION = re.compile(r"^\s*<\?xml[^>]*>", re.IGNORECASE)
_BY_NAME = {
    "description": "name", "og:description": "og", "twitter:description": "twitter",
    "dc.description": "dc", "dcterms.description": "dc", "dcterms.abstract": "dc",
}  # fmt: skip
_BY_PROPERTY = _BY_NAME | {"description": "property"}
_SCOPED = frozenset({"itemprop", "property"})
"""Sources of descriptions that belong to the item around them."""
FALLBACKS = ("property", "og", "twitter", "dc", "itemprop", "http-equiv", "json-ld")
"""Sources other than ``name`` and ``script``, in order of preference."""

_PAGE = re.compile(r"(?:Page|Gallery|RealEstateListing)$")
_SUBJECT = re.compile(
    r"(?:Album|Application|Article|Attraction|Book|Course|CreativeWork|Dataset|Episode|Event|Game|"
    r"HowTo|Movie|Posting|Product|ProductGroup|ProductModel|Recipe|Recording|Reference|Report|"
    r"Season|Series|Service|Trip|Vehicle|Car)$"
)
"""Endings of the schema.org types of pages, and of their common subjects."""

_JSON_LD = re.compile(r"\s*application/ld\+json", re.IGNORECASE)
_WRAPPING = re.compile(
    r"[\ufeff\s;]*(?:(?://|/\*)?[ \t]*(?:<!\[CDATA\[|<!--)[ \t]*(?:\*/)?[\ufeff\s;]*)?"
)
_LAST_COMMA = re.compile(r'("(?:[^"\\]|\\.)*+(?:"|\\?\Z))|,(?=\s*[}\]])', re.DOTALL)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|([^\"\\/bfnrtu])|(.))", re.DOTALL)
"""Escapes of JavaScript (``\\x27`` and ``\\'``) and of JSON."""

_JSON = json.JSONDecoder(strict=False)


@dataclass(frozen=True, slots=True)
class Description:
    """The descriptions in a page's source.

    Attributes:
        caption: The chosen description; ``None`` if all are empty.
        source: ``name``, ``script`` or one of :data:`FALLBACKS`.
        candidates: Descriptions by source, in document order, without repeats. Microdata, RDFa and
            JSON-LD are read only if every ``<meta name=description>`` is empty or a placeholder;
            descriptions of the page come before those of its subject.
        lang: Declared language, as written.
        metas: Name and content of each ``<meta>`` with a name.
    """

    caption: str | None
    source: str | None
    candidates: dict[str, list[str]]
    charset: str
    charset_source: str
    title: str | None
    lang: str | None
    metas: list[tuple[str, str]] = field(default_factory=list)


def describe(
    content: bytes,
    content_type: str | None,
    browser: str | None = None,
    scripted: Sequence[str] = (),
) -> Description:
    """Find the meta description of a page in its source.

    The caption is the first ``<meta name=description>`` of the document whose content is neither
    empty nor a placeholder, in any case of letters. If there is none, it is the first of the
    descriptions that scripts added, then of :data:`FALLBACKS`. A placeholder is chosen only if
    there is nothing else. Only the first 4 MiB are read. ``browser`` is the encoding that the
    browser used; ``scripted`` are the descriptions in the live DOM.
    """
    decoded = decode(content[:_LONGEST], content_type, browser)
    text = _XML_DECLARATION.sub("", decoded.text.replace("\0", "\ufffd")) + "\n"
    strainer = _Strainer()
    soup = _soup(text, strainer)
    metas = soup.find_all("meta", recursive=False)
    pairs = [(_source_of(meta), _get(meta, "content")) for meta in metas]
    descriptions = [pair for pair in pairs if pair[0] not in _SCOPED]
    named = list(filter(None, (clean(text) for source, text in descriptions if source == "name")))
    if all(map(is_placeholder, named)):
        if len(descriptions) < len(pairs):
            descriptions += _of_items(_soup(text))
        descriptions += [("json-ld", text) for text in _of_json_ld(soup)]
        descriptions += [("script", text) for text in scripted if clean(text) not in named]
    unique: dict[str, dict[str, None]] = {}  # without repeats, in order
    for origin, description in descriptions:
        if origin and (cleaned := clean(description)):
            unique.setdefault(origin, {})[cleaned] = None
    candidates = {origin: list(texts) for origin, texts in unique.items()}
    caption, source = _choose(candidates)
    title = soup.find("title", recursive=False)
    return Description(
        caption=caption,
        source=source,
        candidates=candidates,
        charset=decoded.charset,
        charset_source=decoded.source,
        title=clean(title.get_text()) or None if title else None,
        lang=strainer.lang or _content_language(metas),
        metas=[
            (_get(meta, "name"), _get(meta, "content")) for meta in metas if meta.has_attr("name")
        ],
    )


def _choose(candidates: Mapping[str, Sequence[str]]) -> tuple[str | None, str | None]:
    """Return caption and source; entities in JSON-LD, which is not HTML, are decoded once."""
    pairs = [
        (clean(decode_entities(text)) if source == "json-ld" else text, source)
        for source in ("name", "script", *FALLBACKS)
        for text in candidates.get(source, ())
    ]
    pairs = [(text, source) for text, source in pairs if text]
    proper = (pair for pair in pairs if not is_placeholder(pair[0]))
    return next(proper, pairs[0] if pairs else (None, None))


class _Strainer(SoupStrainer):
    """Keeps the elements to read, and those whose content a browser does not show.

    A ``<meta>`` within ``<noscript>`` or ``<template>`` must not count, so it stays below them.
    """

    kept = frozenset({"meta", "title", "script", "noscript", "template"})

    def __init__(self) -> None:
        super().__init__(sorted(self.kept))
        self.lang = ""

    def allow_tag_creation(
        self,
        nsprefix: str | None,  # noqa: ARG002 - BeautifulSoup's signature
        name: str,
        attrs: Any,
    ) -> bool:
        if name == "html":
            self.lang = self.lang or attrs.get("lang", "").strip()
        return name in self.kept


class _Builder(LXMLTreeBuilder):
    """Builds the tree by lxml; stops where too many elements are open."""

    depth = 0

    def prepare_markup(self, markup: Any, *_: Any, **__: Any) -> Any:
        """Pass text on as it is, without BeautifulSoup's warning about XML."""
        yield markup, None, None, False

    def feed(self, markup: Any) -> None:
        self.parser = self.parser_for(None)
        for start in range(0, len(markup), _PIECE):
            if self.depth < _DEEPEST:
                self.parser.feed(markup[start : start + _PIECE])
        self.parser.close()

    def start(self, *args: Any) -> None:
        self.depth += 1
        super().start(*args)

    def end(self, *args: Any) -> None:
        self.depth -= 1
        super().end(*args)


def _soup(text: str, strainer: SoupStrainer | None = None) -> BeautifulSoup:
    builder = _Builder(huge_tree=True, multi_valued_attributes=None)
    return BeautifulSoup(text, builder=builder, parse_only=strainer)


def _get(tag: Tag, name: str) -> str:
    return str(tag.get(name) or "")


def _source_of(meta: Tag) -> str | None:
    name = _BY_NAME.get(_get(meta, "name").strip().lower())
    named = _BY_PROPERTY.get(_get(meta, "property").strip().lower())
    if name or named:
        return name or named
    if "description" in map(_bare, _get(meta, "itemprop").lower().split()):
        return None if meta.has_attr("itemscope") else "itemprop"
    return "http-equiv" if _get(meta, "http-equiv").strip().lower() == "description" else None


def _content_language(metas: Sequence[Tag]) -> str | None:
    for meta in metas:
        if _get(meta, "http-equiv").strip().lower() == "content-language":
            return _get(meta, "content").split(",")[0].strip() or None
    return None


def _of_items(soup: BeautifulSoup) -> list[tuple[str, str]]:
    """Return the descriptions of microdata and RDFa: of the page, then of its subject."""
    ranked: list[tuple[int, str, str]] = []
    for meta in soup.find_all("meta"):
        source = _source_of(meta)
        if source in _SCOPED and not meta.find_parent(["noscript", "template"]):
            item = meta.find_parent(lambda tag: tag.has_attr("itemscope") or tag.has_attr("typeof"))
            if (rank := _rank(item)) is not None:
                ranked.append((rank, source, _get(meta, "content")))
    return [(source, text) for _, source, text in sorted(ranked, key=itemgetter(0))]


def _rank(item: Tag | None) -> int | None:
    """Return 0 for the page, 1 for its subject, ``None`` for other items, such as its author."""
    if item is None or item.name in {"html", "head", "body"}:
        return 0
    types = (_get(item, "itemtype") or _get(item, "typeof")).split()
    names = {_bare(name) for name in (_get(item, "itemprop") or _get(item, "property")).split()}
    if names and "mainEntity" not in names:
        return None
    if _is_a(types, _PAGE):
        return 0
    return 1 if names or not types or _is_a(types, _SUBJECT) else None


def _of_json_ld(soup: BeautifulSoup) -> Iterator[str]:
    """Yield the descriptions of the page in its JSON-LD, then those of its subject.

    Authors and sites are neither. The subject has one of the common types or is the main entity of
    the page, and always has a type.
    """
    scripts = soup.find_all("script", recursive=False)
    texts = [tag.get_text() for tag in scripts if _JSON_LD.match(_get(tag, "type"))]
    things = [thing for text in texts for thing in _things(_read_json(text))]
    pages = [thing for thing in things if _is_a(thing["@type"], _PAGE)]
    subjects = [thing for page in pages for thing in _things(page.get("mainEntity"))]
    ids = {thing["@id"] for thing in subjects if isinstance(thing.get("@id"), str)}
    subjects += [thing for thing in things if str(thing.get("@id")) in ids]
    subjects += [t for t in things if _is_a(t["@type"], _SUBJECT) or t.get("mainEntityOfPage")]
    for thing in (*pages, *subjects):
        if thing["@type"] and isinstance(thing.get("description"), str):
            yield replace_surrogates(thing["description"])


def _read_json(text: str) -> Any:
    """Parse the JSON of a script; if it is invalid, repair common mistakes and retry.

    These are comments and CDATA around it, trailing commas, escapes of JavaScript, and entities.
    """
    with suppress(ValueError, RecursionError):
        return json.loads(text, strict=False)
    for source in (text, unescape(text)):
        start = _WRAPPING.match(source)
        repaired = _LAST_COMMA.sub(r"\1", source[start.end() if start else 0 :])
        repaired = _ESCAPE.sub(lambda e: rf"\u00{e[1]}" if e[1] else e[2] or e[0], repaired)
        with suppress(ValueError, RecursionError):
            return _JSON.raw_decode(repaired)[0]
    return None


def _things(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the objects in a JSON-LD value, without prefixes of names; ``@type`` is a list."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, list):
            waiting += reversed(item)
        elif isinstance(item, dict):
            thing = {_bare(name): part for name, part in item.items()}
            types = thing.get("@type", thing.get("type"))
            types = types if isinstance(types, list) else [types]
            yield thing | {"@type": [name for name in types if isinstance(name, str)]}
            waiting += [thing.get("mainEntityOfPage"), thing.get("@graph")]


def _is_a(types: Sequence[str], pattern: re.Pattern[str]) -> bool:
    return any(pattern.search(_bare(name)) for name in types)


def _bare(name: str) -> str:
    """Return the name of a type or property without its prefix (``schema:``, ``https://…/``)."""
    return re.split("[/#:]", name.rstrip("/"))[-1]
