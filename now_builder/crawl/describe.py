"""The source of a page to its caption: pure functions of bytes and the content-type header."""

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bs4 import BeautifulSoup
from bs4.element import Tag

from now_builder.crawl.charset import decode

_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]")
_XML_DECLARATION = re.compile(r"^\s*<\?xml[^>]*>", re.IGNORECASE)
_JSON_LD = re.compile(r"^\s*application/ld\+json", re.IGNORECASE)
_INERT = frozenset(
    {"noscript", "template", "textarea", "title", "iframe", "noembed", "noframes", "xmp", "style",
     "script", "plaintext"}
)  # fmt: skip
"""What stands in these is text or is inert for a browser that runs scripts: no description."""

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
    """What a page says of itself.

    Attributes:
        caption: ``None`` if there is no description that is not empty.
        source: ``name``, ``script`` or one of :data:`FALLBACKS`.
        candidates: Every description found, by source, in document order, none twice.
        title: White space collapsed.
        lang: Declared language, as written.
        metas: Name and content of each ``<meta>`` that has a name.
        refreshes: Whether the page leads to another one by itself.
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

    Args:
        content: As served, content encodings such as gzip undone.
        content_type: The HTTP header, or ``None``.
        fallback: Take the best of :data:`FALLBACKS` where there is no description by name.
    """
    decoded = decode(content, content_type)
    soup = _parse(decoded.text)
    candidates: dict[str, list[str]] = {}
    for origin, text in _found(soup):
        texts = candidates.setdefault(origin, [])
        cleaned = clean(text)
        if cleaned and cleaned not in texts:
            texts.append(cleaned)
    candidates = {origin: texts for origin, texts in candidates.items() if texts}
    caption, source = choose(candidates, fallback=fallback)
    return Description(
        caption=caption,
        source=source,
        candidates=candidates,
        charset=decoded.charset,
        charset_source=decoded.source,
        title=_title(soup),
        lang=_declared_language(soup),
        metas=[
            (str(tag["name"]), str(tag.get("content") or "")) for tag in soup.select("meta[name]")
        ],
        refreshes=soup.select_one('meta[http-equiv="refresh" i]') is not None,
    )


def with_scripted(page: Description, scripted: Sequence[str]) -> dict[str, list[str]]:
    """Add to a page's candidates what scripts put there: not in a source that has one by name.

    Args:
        page: Described from its source.
        scripted: Contents of ``<meta name=description>`` in the live document.
    """
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


def clean(text: str) -> str:
    """Give the caption of an attribute value whose entities are decoded.

    NFC, white space collapsed, C0 and C1 controls dropped; nothing else.
    """
    return " ".join(_CONTROLS.sub("", unicodedata.normalize("NFC", text)).split())


def _parse(text: str) -> BeautifulSoup:
    """Parse HTML, served as XHTML or not; libxml2 reads it with the tokenizer of HTML5."""
    text = _XML_DECLARATION.sub("", text.replace("\0", "\ufffd"))
    return BeautifulSoup(text + "\n", "lxml")  # the new line: a lone word is no file name


def _found(soup: BeautifulSoup) -> Iterator[tuple[str, str]]:
    for meta in soup.find_all("meta"):
        source = _source_of(meta)
        if source and not any(parent.name in _INERT for parent in meta.parents):
            yield source, _attribute(meta, "content")
    for script in soup.find_all("script", type=_JSON_LD):
        yield from (("json-ld", text) for text in _of_json_ld(script.get_text()))


def _source_of(meta: Tag) -> str | None:
    name = _BY_NAME.get(_attribute(meta, "name").strip().lower())
    named = _BY_PROPERTY.get(_attribute(meta, "property").strip().lower())
    if name or named:
        return name or named
    if "description" in _attribute(meta, "itemprop").lower().split():
        return "itemprop"
    if _attribute(meta, "http-equiv").strip().lower() == "description":
        return "http-equiv"
    return None


def _attribute(tag: Tag, name: str) -> str:
    value = tag.get(name)
    return value if isinstance(value, str) else " ".join(value or ())


_NOT_THE_PAGE = {"Person", "Organization", "WebSite", "ImageObject", "NewsMediaOrganization"}


def _of_json_ld(text: str) -> Iterator[str]:
    """Yield the descriptions of the things that a page is about, not of its author or its site."""
    text = re.sub(r"^\s*(?:<!--|(?://)?\s*<!\[CDATA\[)|(?:-->|(?://)?\s*\]\]>)\s*$", "", text)
    try:
        tree = json.loads(text, strict=False)
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


def _title(soup: BeautifulSoup) -> str | None:
    for title in soup.find_all("title"):
        if not any(parent.name == "svg" for parent in title.parents):
            return clean(title.get_text()) or None
    return None


def _declared_language(soup: BeautifulSoup) -> str | None:
    html = soup.find("html")
    if isinstance(html, Tag) and _attribute(html, "lang").strip():
        return _attribute(html, "lang").strip()
    for meta in soup.find_all("meta"):
        if _attribute(meta, "http-equiv").strip().lower() == "content-language":
            return _attribute(meta, "content").split(",")[0].strip() or None
    return None
