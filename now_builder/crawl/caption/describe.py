"""Find the caption in the source of a page: pure functions of bytes and content type."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from lxml import etree

from now_builder.crawl.caption.charset import decode, whole_characters
from now_builder.formats.text import clean

_XML_DECLARATION = re.compile(r"^\s*<\?xml[^>]*>", re.IGNORECASE)
_JSON_LD = re.compile(r"^\s*application/ld\+json", re.IGNORECASE)
_INERT = frozenset(
    {"noscript", "template", "textarea", "title", "iframe", "noembed", "noframes", "xmp", "style",
     "script", "plaintext"}
)  # fmt: skip
"""What stands in these is text or is inert for a browser that runs scripts: no description."""
_WATCHED = _INERT | {"svg"}
_PIECE = 1 << 16
_DEEPEST = 6000
"""Elements that are open at once, at most; Chromium nests 512. For each end tag that closes none
libxml2 looks through all that are open, so that a page of 2 MB took minutes."""

_BY_NAME = {
    "description": "name",
    "og:description": "og",
    "twitter:description": "twitter",
    "dc.description": "dc",
    "dcterms.description": "dc",
    "dcterms.abstract": "dc",
}
_BY_PROPERTY = _BY_NAME | {"description": "property"}
FALLBACKS = ("property", "og", "twitter", "dc", "itemprop", "http-equiv", "json-ld")
"""Sources other than ``name`` and ``script``, best first."""


@dataclass(frozen=True, slots=True)
class Description:
    """The descriptions in a page's source.

    Attributes:
        caption: the chosen description; ``None`` if there is none that is not empty.
        source: ``name``, ``script`` or one of :data:`FALLBACKS`.
        candidates: every description found, by source, in document order, without repeats.
        lang: declared language, as written.
        metas: name and content of each ``<meta>`` that has a name.
        refreshes: whether the page leads to another one by itself.
    """

    caption: str | None
    source: str | None
    candidates: dict[str, list[str]]
    charset: str
    charset_source: str
    title: str | None
    lang: str | None
    metas: list[tuple[str, str]] = field(default_factory=list)
    refreshes: bool = False


def describe(content: bytes, content_type: str | None, *, fallback: bool = True) -> Description:
    """Find the meta description of a page in its source.

    The caption is the first ``<meta name=description>`` of the whole document whose content is
    not empty; the name is compared without regard to case.

    Where there is none, the best of :data:`FALLBACKS` is taken if that is wanted.
    """
    decoded = decode(content, content_type)
    page = _read(decoded.text)
    found: dict[str, dict[str, None]] = {}  # without repeats, in order
    for origin, text in _found(page):
        if cleaned := clean(text):
            found.setdefault(origin, {})[cleaned] = None
    candidates = {origin: list(texts) for origin, texts in found.items()}
    caption, source = choose(candidates, fallback=fallback)
    return Description(
        caption=caption,
        source=source,
        candidates=candidates,
        charset=decoded.charset,
        charset_source=decoded.source,
        title=clean("".join(page.title or ())) or None,
        lang=_declared_language(page),
        metas=[(meta["name"], meta.get("content", "")) for meta, _ in page.metas if "name" in meta],
        refreshes=any(meta.get("http-equiv", "").lower() == "refresh" for meta, _ in page.metas),
    )


def with_scripted(page: Description, scripted: Sequence[str]) -> dict[str, list[str]]:
    """Add to a page's candidates what scripts put there: not in a source that has one by name."""
    texts = [caption for text in scripted if (caption := clean(text))]
    if not texts or "name" in page.candidates:
        return page.candidates
    return page.candidates | {"script": list(dict.fromkeys(texts))}


def choose(
    candidates: Mapping[str, Sequence[str]], *, fallback: bool
) -> tuple[str | None, str | None]:
    """Choose caption and source among descriptions by source.

    A description that scripts put into the page (``script``) comes after one by name in the source,
    and before what was written for other readers (og, twitter).
    """
    for source in ("name", "script", *(FALLBACKS if fallback else ())):
        if candidates.get(source):
            return candidates[source][0], source
    return None, None


class _TooDeepError(Exception):
    """More elements are open than a page needs."""


class _Reader:
    """Collects parser events; no tree is built, so memory is that of the source."""

    def __init__(self) -> None:
        self.metas: list[tuple[dict[str, str], bool]] = []
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
        if tag == "meta":
            self.metas.append((dict(attributes), any(self._open[name] for name in _INERT)))
        elif tag == "html":
            self.lang = self.lang or attributes.get("lang", "").strip()
        elif tag == "title" and self.title is None and not self._open["svg"]:
            self._text = self.title = []
        elif tag == "script" and _JSON_LD.match(attributes.get("type", "")):
            self._text = []
            self.json_ld.append(self._text)
        if tag in _WATCHED:
            self._open[tag] += 1

    def end(self, tag: str) -> None:
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

    What follows once more than 6,000 elements are open is not read.
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


def _found(page: _Reader) -> Iterator[tuple[str, str]]:
    for meta, inert in page.metas:
        source = None if inert else _source_of(meta)
        if source:
            yield source, meta.get("content", "")
    for script in page.json_ld:
        yield from (("json-ld", text) for text in _of_json_ld("".join(script)))


def _source_of(meta: Mapping[str, str]) -> str | None:
    name = _BY_NAME.get(meta.get("name", "").strip().lower())
    named = _BY_PROPERTY.get(meta.get("property", "").strip().lower())
    if name or named:
        return name or named
    if "description" in meta.get("itemprop", "").lower().split():
        return "itemprop"
    if meta.get("http-equiv", "").strip().lower() == "description":
        return "http-equiv"
    return None


_NOT_THE_PAGE = {"Person", "Organization", "WebSite", "ImageObject", "NewsMediaOrganization"}


def _of_json_ld(text: str) -> Iterator[str]:
    """Yield the descriptions of the things that a page is about, not of its author or its site."""
    text = text.strip().removeprefix("//").lstrip()
    for opening, closing in (("<!--", "-->"), ("<![CDATA[", "]]>")):
        text = text.removeprefix(opening).removesuffix(closing)
    try:
        tree = whole_characters(json.loads(text.rstrip().removesuffix("//"), strict=False))
    except (ValueError, RecursionError):
        return
    roots = tree if isinstance(tree, list) else [tree]
    for root in roots:
        graph = root.get("@graph") if isinstance(root, dict) else None
        for item in [root, *(graph if isinstance(graph, list) else [])]:
            if isinstance(item, dict) and not _types(item) & _NOT_THE_PAGE:
                description = item.get("description")
                if isinstance(description, str):
                    yield description


def _types(item: dict[str, Any]) -> set[str]:
    kinds = item.get("@type")
    return {
        kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if isinstance(kind, str)
    }


def _declared_language(page: _Reader) -> str | None:
    if page.lang:
        return page.lang
    for meta, _ in page.metas:
        if meta.get("http-equiv", "").strip().lower() == "content-language":
            return meta.get("content", "").split(",")[0].strip() or None
    return None
