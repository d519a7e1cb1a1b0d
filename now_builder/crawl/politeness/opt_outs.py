"""Find opt-outs in headers and meta tags."""

import re
from collections.abc import Iterable, Mapping, Sequence

from now_builder.crawl.politeness.robots_rules import PRODUCT, product_token, refuses_training
from now_builder.crawl.visit import PageError

TDM = "tdm-reservation"
"""TDM Reservation Protocol (W3C community report, 2024): text and data mining not allowed."""

_VALUED = re.compile(
    r"(unavailable_after)\s*:\s*(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*,)?[^,;]*"
    r"|(max-snippet|max-image-preview|max-video-preview)\s*:\s*[^\s,;]*"
)
"""Directives with a value after a colon; a date may contain a comma."""

_WORD = re.compile(r"([^\s,;:]+)(?:\s*(:))?")
_SHOWN = 200


def opt_outs(
    headers: Mapping[str, Sequence[str]],
    metas: Sequence[tuple[str, str]],
    live: Iterable[tuple[str, str]] = (),
    tdm_file: str | None = None,
) -> dict[str, str]:
    """Return the directives of a page for this crawler, in lower case, with their sources.

    ``metas`` and ``live`` are name and content of each ``<meta>`` in the HTML source and in the
    live DOM; ``tdm_file`` is the rule of ``tdmrep.json`` that reserves the page.
    """
    directives: dict[str, str] = {}
    for header in headers.get("x-robots-tag", ()):
        directives |= dict.fromkeys(_of_header(header), _header("X-Robots-Tag", header))
    for name in ("content-signal", "content-usage"):
        value = ", ".join(headers.get(name, ()))
        if refuses_training(value):
            directives[name] = _header(name.title(), value)
    tags = [(name, content, _meta(name, content)) for name, content in metas]
    tags += [
        (name, content, f"{_meta(name, content)}, put there by a script")
        for name, content in live
        if (name, content) not in metas
    ]
    for name, content, source in tags:
        if name.strip().lower() == "robots" or _is_ours(name.strip()):
            directives |= dict.fromkeys(re.split(r"[\s,;]+", content.lower()), source)
    if reservation := _tdm_reservation(headers.get(TDM, ()), tags, tdm_file):
        directives[TDM] = reservation
    if "none" in directives:
        directives |= dict.fromkeys(("noindex", "nofollow"), directives["none"])
    return {directive: source for directive, source in directives.items() if directive}


def check_opt_outs(directives: Mapping[str, str], obeyed: frozenset[str]) -> None:
    """Raise a PageError if a page has one of the obeyed opt-outs."""
    refusals = [f"{name}: {directives[name]}" for name in sorted(directives.keys() & obeyed)]
    if refusals:
        raise PageError("opt_out", "; ".join(refusals))


def _tdm_reservation(
    headers: Sequence[str], tags: Sequence[tuple[str, str, str]], file: str | None
) -> str | None:
    """Return the source that reserves text and data mining; ``None`` if it is not reserved.

    Source:
        TDMRep, section on processing priority: a meta tag with 0 or 1 precedes the header, which
        precedes the file. Of several tags, one that reserves is enough.
    """
    in_tags = {text.strip(): source for name, text, source in tags if name.strip().lower() == TDM}
    in_headers = {value.strip(): _header("TDM-Reservation", value) for value in headers}
    for sources in (in_tags, in_headers):
        if sources.keys() & {"0", "1"}:
            return sources.get("1")
    return file


def _header(name: str, value: str) -> str:
    return f"header {name}: {value[:_SHOWN]}"


def _meta(name: str, content: str) -> str:
    return f'<meta name="{name[:_SHOWN]}" content="{content[:_SHOWN]}">'


def _of_header(header: str) -> set[str]:
    """Parse a header; directives after the name of a crawler apply to that crawler only."""
    directives = set()
    applies = True
    for word, colon in _WORD.findall(_VALUED.sub(r"\1\2", header.lower())):
        if colon:
            applies = _is_ours(word)
        elif applies:
            directives.add(word)
    return directives


def _is_ours(name: str) -> bool:
    """Return whether a name is this crawler's, with or without a version."""
    return product_token(name.encode()) == PRODUCT.encode()
