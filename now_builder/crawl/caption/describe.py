"""Find the caption in the source of a page: pure functions of bytes and content type."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from html import unescape
from typing import Any

from lxml import etree

from now_builder.crawl.caption.charset import decode, whole_characters
from now_builder.formats.text import clean, decode_entities, is_placeholder

_XML_DECLARATION = re.compile(r"^\s*<\?xml[^>]*>", re.IGNORECASE)
_JSON_LD = re.compile(r"^\s*application/ld\+json", re.IGNORECASE)
_INERT = frozenset(
    {"noscript", "template", "textarea", "title", "iframe", "noembed", "noframes", "xmp", "style",
     "script", "plaintext"}
)  # fmt: skip
"""Elements whose content is text, or inert in a browser that runs scripts: no description."""
_WATCHED = _INERT | {"svg"}
_SCOPES = frozenset({"itemscope", "typeof"})
_PLACES = _SCOPES | {"id"}
_ROOTS = frozenset({"html", "head", "body"})
"""Elements whose item is the page, whatever type it has there (a firm's, on many sites)."""
_IDS = 16
"""Maximum number of ids around a description in which an item's ``itemref`` is looked up."""

_Item = dict[str, Any]
_Place = tuple[_Item, tuple[str, ...]]
_PIECE = 1 << 16
_DEEPEST = 6000
"""Maximum depth (Chromium's is 512): for each stray end tag libxml2 searches all open elements, so
that a page of 2 MB took minutes."""

_BY_NAME = {
    "description": "name", "og:description": "og", "twitter:description": "twitter",
    "dc.description": "dc", "dcterms.description": "dc", "dcterms.abstract": "dc",
}  # fmt: skip
_BY_PROPERTY = _BY_NAME | {"description": "property"}
_SCOPED = frozenset({"itemprop", "property"})
"""Sources whose descriptions belong to the item that they are in."""
FALLBACKS = ("property", "og", "twitter", "dc", "itemprop", "http-equiv", "json-ld")
"""Sources other than ``name`` and ``script``, best first."""


@dataclass(frozen=True, slots=True)
class Description:
    """The descriptions in a page's source.

    Attributes:
        caption: the chosen description; ``None`` if there is none that is not empty.
        source: ``name``, ``script`` or one of :data:`FALLBACKS`.
        candidates: all descriptions by source, in document order, without repeats; those of JSON-LD
            and microdata for the page come before those for its subject.
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
    none, the best of :data:`FALLBACKS` is taken.
    """
    decoded = decode(content, content_type, browser)
    page = _read(decoded.text)
    unique: dict[str, dict[str, None]] = {}  # without repeats, in order
    for origin, text in _descriptions(page):
        if cleaned := clean(text):
            unique.setdefault(origin, {})[cleaned] = None
    candidates = {origin: list(texts) for origin, texts in unique.items()}
    caption, source = choose(candidates)
    return Description(
        caption=caption,
        source=source,
        candidates=candidates,
        charset=decoded.charset,
        charset_source=decoded.source,
        title=clean("".join(page.title or ())) or None,
        lang=_declared_language(page),
        metas=[(m["name"], m.get("content", "")) for m, *_ in page.metas if "name" in m],
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


class _TooDeepError(Exception):
    """More elements are open than a page needs."""


class _Reader:
    """Collects parser events; no tree is built, so memory is that of the source."""

    def __init__(self) -> None:
        self.metas: list[tuple[dict[str, str], bool, _Place]] = []
        self.items: list[_Item] = [{"@type": "WebPage"}]
        self.referred: dict[str, _Item] = {}
        self._places: list[tuple[int, _Place]] = [(-1, (self.items[0], ()))]
        self.lang = ""
        self.title: list[str] | None = None
        self.json_ld: list[list[str]] = []
        self._depth = 0
        self._open: Counter[str] = Counter()
        self._text: list[str] | None = None

    def start(self, tag: str, attributes: Mapping[str, str], _prefixes: object) -> None:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise _TooDeepError
        if not _PLACES.isdisjoint(attributes):
            self._places.append((self._depth, self._place(tag, attributes)))
        if tag == "meta":
            inert = any(self._open[name] for name in _INERT)
            self.metas.append((dict(attributes), inert, self._places[-1][1]))
        elif tag == "html":
            self.lang = self.lang or attributes.get("lang", "").strip()
        elif tag == "title" and self.title is None and not self._open["svg"]:
            self._text = self.title = []
        elif tag == "script" and _JSON_LD.match(attributes.get("type", "")):
            self._text = []
            self.json_ld.append(self._text)
        if tag in _WATCHED:
            self._open[tag] += 1

    def _place(self, tag: str, attributes: Mapping[str, str]) -> _Place:
        """Return the item of microdata or RDFa that an element begins or is in, and ids in it."""
        item, ids = self._places[-1][1]
        if attributes.keys().isdisjoint(_SCOPES):
            return item, (*ids[1 - _IDS :], attributes["id"])
        kinds = attributes.get("itemtype", attributes.get("typeof", "")).split()
        inner: _Item = {"@type": "WebPage" if tag in _ROOTS else kinds or "CreativeWork"}
        names = attributes.get("itemprop", attributes.get("property", "")).split()
        for name in names:
            item.setdefault(_bare(name), []).append(inner)
        if not names:
            self.items.append(inner)
        for name in attributes.get("itemref", "").split():
            self.referred.setdefault(name, inner)
        return inner, ()

    def end(self, tag: str) -> None:
        if self._places[-1][0] == self._depth:
            self._places.pop()
        self._depth -= 1
        if tag in _WATCHED:
            self._open[tag] -= 1
            self._text = None

    def data(self, text: str) -> None:
        if self._text is not None:
            self._text.append(text)

    def close(self) -> "_Reader":
        return self


def _read(text: str) -> _Reader:
    """Read HTML, served as XHTML or not; libxml2 cuts it into tags as HTML5 says.

    Reading ends where more than 6,000 elements are open.
    """
    reader = _Reader()
    parser = etree.HTMLParser(target=reader, recover=True, huge_tree=True)
    text = _XML_DECLARATION.sub("", text.replace("\0", "\ufffd"))
    with suppress(_TooDeepError):
        for start in range(0, len(text), _PIECE):
            parser.feed(text[start : start + _PIECE])
        parser.feed("\n")  # no document is empty
        parser.close()
    return reader


def _descriptions(page: _Reader) -> Iterator[tuple[str, str]]:
    for meta, inert, (item, ids) in page.metas:
        source, text = None if inert else _source_of(meta), meta.get("content", "")
        if source in _SCOPED:
            owners = [page.referred[name] for name in ids if name in page.referred]
            for owner in owners if owners and item is page.items[0] else [*owners, item]:
                owner.setdefault("description", []).append((source, text))
        elif source:
            yield source, text
    for thing in _own(list(_things(page.items))):
        yield from (found for found in thing.get("description", ()) if isinstance(found, tuple))
    yield from (("json-ld", text) for text in _of_json_ld(map("".join, page.json_ld)))


def _source_of(meta: Mapping[str, str]) -> str | None:
    name = _BY_NAME.get(meta.get("name", "").strip().lower())
    named = _BY_PROPERTY.get(meta.get("property", "").strip().lower())
    if name or named:
        return name or named
    if "description" in map(_bare, meta.get("itemprop", "").lower().split()):
        return None if "itemscope" in meta else "itemprop"
    if meta.get("http-equiv", "").strip().lower() == "description":
        return "http-equiv"
    return None


_PAGE = re.compile(r"(?:Page|Gallery|RealEstateListing)$")
_ABOUT = re.compile(
    r"(?:Album|Application|Article|Attraction|Book|Course|CreativeWork|Dataset|Episode|Event|Game|"
    r"HowTo|Movie|Posting|Product|ProductGroup|ProductModel|Recipe|Recording|Reference|Report|"
    r"Season|Series|Service|Trip|Vehicle|Car)$"
)
_ANY = re.compile("")
"""Ends of the schema.org types of pages, and of subjects that pages commonly are about."""

_STRING = r'("(?:[^"\\]|\\.)*+(?:"|\\?\Z))'  # one without an end takes the rest, in one pass
_NO_JSON = re.compile(
    rf"{_STRING}|(?://|/\*)[ \t]*+(?:<!\[CDATA\[|\]\]>|<!--|-->)(?:[ \t]*+\*/)?"
    r"|<!\[CDATA\[|\]\]>|<!--|-->|/\*(?:.*?\*/|.*)|//[^\n]*",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|([^\"\\/bfnrtu])|(.))", re.DOTALL)
"""``\\x27`` and ``\\'``, which scripts have, and the escapes of JSON."""

_LONGEST_JSON = 1 << 22
"""Maximum length of a script of JSON-LD: its objects, or the faults that are mended, take up to 80
bytes of memory a character."""

_LAST_COMMA = re.compile(rf"{_STRING}|,(?=\s*[}}\]])", re.DOTALL)
_JSON = json.JSONDecoder(strict=False)


def _of_json_ld(scripts: Iterable[str]) -> Iterator[str]:
    """Yield the descriptions of the page, then of its subject, unless they have no type."""
    for thing in _own([thing for text in scripts for thing in _things(_read_json(text))]):
        description = thing.get("description")
        if isinstance(description, str) and _is_a(thing, _ANY):
            yield whole_characters(description)


def _own(things: Sequence[_Item]) -> Iterator[_Item]:
    """Yield the objects that are the page, then its subject; not its author or its site.

    One of another type is taken only as the page's main entity.
    """
    pages = [
        page
        for thing in things
        for page in (thing, *_things(thing.get("mainEntityOfPage")))
        if _is_a(page, _PAGE)
    ]
    main = [thing for page in pages for thing in _things(page.get("mainEntity"))]
    names = {thing["@id"] for thing in main if isinstance(thing.get("@id"), str)}
    main += [thing for thing in things if str(thing.get("@id")) in names]
    main += [thing for thing in things if _is_a(thing, _ABOUT) or thing.get("mainEntityOfPage")]
    yield from (*pages, *main)


def _read_json(text: str) -> Any:
    """Read the JSON of a script; invalid JSON is read again with its usual faults removed.

    These are comments, CDATA, last commas, escapes of scripts, entities around strings. A script
    longer than any page needs is not read.
    """
    if len(text) > _LONGEST_JSON:
        return None
    with suppress(ValueError, RecursionError):
        return json.loads(text, strict=False)
    for source in (text, unescape(text)):
        mended = _LAST_COMMA.sub(r"\1", _NO_JSON.sub(r"\1", source)).lstrip("\ufeff; \t\r\n")
        mended = _ESCAPE.sub(_json_escape, mended)
        with suppress(ValueError, RecursionError):
            return _JSON.raw_decode(mended)[0]
    return None


def _json_escape(match: re.Match[str]) -> str:
    return rf"\u00{match[1]}" if match[1] else match[2] or match[0]


def _things(value: Any) -> Iterator[_Item]:
    """Yield the objects in a value, its lists and graphs, their names without a prefix."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, list):
            waiting += reversed(item)
        elif isinstance(item, dict):
            yield {_bare(name): part for name, part in item.items()}
            waiting.append(item.get("@graph"))


def _is_a(thing: Mapping[str, Any], kind: re.Pattern[str]) -> bool:
    types = thing.get("@type", thing.get("type"))
    names = types if isinstance(types, list) else [types]
    return any(isinstance(name, str) and kind.search(_bare(name)) for name in names)


def _bare(name: str) -> str:
    """Return the name of a type or property without its address (``schema:``, ``https://…/``)."""
    return re.split("[/#:]", name.rstrip("/"))[-1]


def _declared_language(page: _Reader) -> str | None:
    if page.lang:
        return page.lang
    for meta, *_ in page.metas:
        if meta.get("http-equiv", "").strip().lower() == "content-language":
            return meta.get("content", "").split(",")[0].strip() or None
    return None
