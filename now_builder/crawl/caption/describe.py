"""Find the caption in the source of a page: pure functions of bytes and content type."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from html import unescape
from typing import Any

from bs4 import BeautifulSoup, Tag
from bs4.builder._lxml import LXMLTreeBuilder
from bs4.filter import SoupStrainer

from now_builder.crawl.caption.charset import decode, whole_characters
from now_builder.formats.text import clean, decode_entities, is_placeholder

_LONGEST = 1 << 22
"""Bytes of a page that are read; its elements may take 200 times as much memory."""
_DEEPEST = 6000
"""Maximum depth (Chromium's is 512): for each stray end tag libxml2 searches all open elements, so
that a page of 2 MB took minutes."""
_PIECE = 1 << 16

_XML_DECLARATION = re.compile(r"^\s*<\?xml[^>]*>", re.IGNORECASE)
_BY_NAME = {
    "description": "name", "og:description": "og", "twitter:description": "twitter",
    "dc.description": "dc", "dcterms.description": "dc", "dcterms.abstract": "dc",
}  # fmt: skip
_BY_PROPERTY = _BY_NAME | {"description": "property"}
_SCOPED = frozenset({"itemprop", "property"})
"""Sources whose descriptions belong to the item that they are in."""
FALLBACKS = ("property", "og", "twitter", "dc", "itemprop", "http-equiv", "json-ld")
"""Sources other than ``name`` and ``script``, best first."""

_PAGE = re.compile(r"(?:Page|Gallery|RealEstateListing)$")
_SUBJECT = re.compile(
    r"(?:Album|Application|Article|Attraction|Book|Course|CreativeWork|Dataset|Episode|Event|Game|"
    r"HowTo|Movie|Posting|Product|ProductGroup|ProductModel|Recipe|Recording|Reference|Report|"
    r"Season|Series|Service|Trip|Vehicle|Car)$"
)
"""Ends of the schema.org types of pages, and of subjects that pages commonly are about."""

_JSON_LD = re.compile(r"\s*application/ld\+json", re.IGNORECASE)
_WRAPPING = re.compile(
    r"[\ufeff\s;]*(?:(?://|/\*)?[ \t]*(?:<!\[CDATA\[|<!--)[ \t]*(?:\*/)?[\ufeff\s;]*)?"
)
_LAST_COMMA = re.compile(r'("(?:[^"\\]|\\.)*+(?:"|\\?\Z))|,(?=\s*[}\]])', re.DOTALL)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|([^\"\\/bfnrtu])|(.))", re.DOTALL)
"""``\\x27`` and ``\\'``, which scripts have, and the escapes of JSON."""

_JSON = json.JSONDecoder(strict=False)


@dataclass(frozen=True, slots=True)
class Description:
    """The descriptions in a page's source.

    Attributes:
        caption: the chosen description; ``None`` if there is none that is not empty.
        source: ``name``, ``script`` or one of :data:`FALLBACKS`.
        candidates: descriptions by source, in document order, without repeats. Microdata, RDFa and
            JSON-LD are read only where there is none by name but placeholders; those for the page
            come before those for its subject.
        lang: declared language, as written.
        metas: name and content of each ``<meta>`` that has a name.
    """

    caption: str | None
    source: str | None
    candidates: dict[str, list[str]]
    charset: str
    charset_source: str
    title: str | None
    lang: str | None
    metas: list[tuple[str, str]] = field(default_factory=list)


def describe(content: bytes, content_type: str | None, browser: str | None = None) -> Description:
    """Find the meta description of a page in its source.

    The caption is the first ``<meta name=description>`` of the whole document whose content is
    neither empty nor a placeholder; the name is compared without regard to case. Where there is
    none, the best of :data:`FALLBACKS` is taken. Nothing beyond the first 4 MiB is read.
    """
    decoded = decode(content[:_LONGEST], content_type, browser)
    text = _XML_DECLARATION.sub("", decoded.text.replace("\0", "\ufffd")) + "\n"
    strainer = _Strainer()
    soup = _soup(text, strainer)
    metas = soup.find_all("meta", recursive=False)
    stated = [(_source_of(meta), _get(meta, "content")) for meta in metas]
    found = [pair for pair in stated if pair[0] not in _SCOPED]
    named = filter(None, (clean(words) for source, words in found if source == "name"))
    if all(map(is_placeholder, named)):
        if len(found) < len(stated):
            found += _of_items(_soup(text))
        found += [("json-ld", words) for words in _of_json_ld(soup)]
    unique: dict[str, dict[str, None]] = {}  # without repeats, in order
    for origin, words in found:
        if origin and (cleaned := clean(words)):
            unique.setdefault(origin, {})[cleaned] = None
    candidates = {origin: list(texts) for origin, texts in unique.items()}
    caption, source = choose(candidates)
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


def with_scripted(page: Description, scripted: Sequence[str]) -> dict[str, list[str]]:
    """Add to a page's candidates what scripts put there, unless the source has words by name."""
    named = page.candidates.get("name", [])
    texts = [text for text in map(clean, scripted) if text and text not in named]
    if not texts or not all(map(is_placeholder, named)):
        return page.candidates
    return page.candidates | {"script": list(dict.fromkeys(texts))}


def choose(candidates: Mapping[str, Sequence[str]]) -> tuple[str | None, str | None]:
    """Choose caption and source among descriptions by source.

    A description that scripts put into the page (``script``) comes after one by name in the source,
    and before those for other readers (og, twitter). A placeholder is chosen only if there is no
    other. Entities in JSON-LD, which is no HTML, are decoded once.
    """
    pairs = [
        (clean(decode_entities(text)) if source == "json-ld" else text, source)
        for source in ("name", "script", *FALLBACKS)
        for text in candidates.get(source, ())
    ]
    pairs = [(text, source) for text, source in pairs if text]
    worded = (pair for pair in pairs if not is_placeholder(pair[0]))
    return next(worded, pairs[0] if pairs else (None, None))


class _Strainer(SoupStrainer):
    """Keeps the elements that are read, and those whose content a browser does not show.

    A ``<meta>`` within ``<noscript>`` or ``<template>`` describes nothing; it stays below them.
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
    """Builds the tree by lxml, up to where more elements are open than any page needs."""

    depth = 0

    def prepare_markup(self, markup: Any, *_: Any, **__: Any) -> Any:
        """Read text as it is, without advice on what looks like XML."""
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
    found = []
    for meta in soup.find_all("meta"):
        source = _source_of(meta)
        if source in _SCOPED and not meta.find_parent(["noscript", "template"]):
            rank = _rank(meta.find_parent(_begins_item))
            found += [(rank, source, _get(meta, "content"))] if rank is not None else []
    return [(source, words) for _, source, words in sorted(found, key=lambda one: one[0])]


def _begins_item(tag: Tag) -> bool:
    return tag.has_attr("itemscope") or tag.has_attr("typeof")


def _rank(item: Tag | None) -> int | None:
    """Return 0 for the page itself, 1 for its subject, ``None`` for other items, as its author."""
    if item is None or item.name in {"html", "head", "body"}:
        return 0
    kinds = (_get(item, "itemtype") or _get(item, "typeof")).split()
    names = {_bare(name) for name in (_get(item, "itemprop") or _get(item, "property")).split()}
    if names and "mainEntity" not in names:
        return None
    if _is_a(kinds, _PAGE):
        return 0
    return 1 if names or not kinds or _is_a(kinds, _SUBJECT) else None


def _of_json_ld(soup: BeautifulSoup) -> Iterator[str]:
    """Yield the descriptions of the objects that are the page, then of its subject.

    Its author or its site are neither. An object of a type that pages are not commonly about is
    the subject only as the page's main entity; one without a type is none.
    """
    scripts = soup.find_all("script", recursive=False)
    texts = [tag.get_text() for tag in scripts if _JSON_LD.match(_get(tag, "type"))]
    things = [thing for text in texts for thing in _things(_read_json(text))]
    pages = [thing for thing in things if _is_a(thing["@type"], _PAGE)]
    main = [thing for page in pages for thing in _things(page.get("mainEntity"))]
    ids = {thing["@id"] for thing in main if isinstance(thing.get("@id"), str)}
    main += [thing for thing in things if str(thing.get("@id")) in ids]
    main += [t for t in things if _is_a(t["@type"], _SUBJECT) or t.get("mainEntityOfPage")]
    for thing in (*pages, *main):
        if thing["@type"] and isinstance(thing.get("description"), str):
            yield whole_characters(thing["description"])


def _read_json(text: str) -> Any:
    """Read the JSON of a script; invalid JSON is read again with its usual faults removed.

    These are comments and CDATA around it, last commas, escapes of scripts, entities.
    """
    with suppress(ValueError, RecursionError):
        return json.loads(text, strict=False)
    for source in (text, unescape(text)):
        start = _WRAPPING.match(source)
        mended = _LAST_COMMA.sub(r"\1", source[start.end() if start else 0 :])
        mended = _ESCAPE.sub(lambda e: rf"\u00{e[1]}" if e[1] else e[2] or e[0], mended)
        with suppress(ValueError, RecursionError):
            return _JSON.raw_decode(mended)[0]
    return None


def _things(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the objects in a value, its lists and graphs, with names that have no prefix.

    ``@type`` is a list of names in each.
    """
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, list):
            waiting += reversed(item)
        elif isinstance(item, dict):
            thing = {_bare(name): part for name, part in item.items()}
            kinds = thing.get("@type", thing.get("type"))
            kinds = kinds if isinstance(kinds, list) else [kinds]
            yield thing | {"@type": [kind for kind in kinds if isinstance(kind, str)]}
            waiting += [thing.get("mainEntityOfPage"), thing.get("@graph")]


def _is_a(kinds: Sequence[str], pattern: re.Pattern[str]) -> bool:
    return any(pattern.search(_bare(kind)) for kind in kinds)


def _bare(name: str) -> str:
    """Return the name of a type or property without its address (``schema:``, ``https://…/``)."""
    return re.split("[/#:]", name.rstrip("/"))[-1]
