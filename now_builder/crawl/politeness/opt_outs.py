"""Opt-outs in headers and meta tags."""

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
"""Directives that have a value of their own behind a colon; a date may have a comma."""

_WORD = re.compile(r"([^\s,;:]+)(?:\s*(:))?")
_SHOWN = 200


def opt_outs(
    headers: Mapping[str, Sequence[str]],
    metas: Sequence[tuple[str, str]],
    live: Iterable[tuple[str, str]] = (),
    tdm_file: str | None = None,
) -> dict[str, str]:
    """Return a page's directives for this crawler, in lower case, and the place of each.

    They stand in headers (by name in lower case) and in ``<meta>`` tags of the source and of the
    live DOM (name and content); ``tdm_file`` is the rule of ``tdmrep.json`` that reserves the page.
    """
    found: dict[str, str] = {}
    for header in headers.get("x-robots-tag", ()):
        found |= dict.fromkeys(_of_header(header), _header("X-Robots-Tag", header))
    for name in ("content-signal", "content-usage"):
        value = ", ".join(headers.get(name, ()))
        if refuses_training(value):
            found[name] = _header(name.title(), value)
    tags = [(name, content, _meta(name, content)) for name, content in metas]
    tags += [
        (name, content, f"{_meta(name, content)}, put there by a script")
        for name, content in live
        if (name, content) not in metas
    ]
    for name, content, said in tags:
        if name.strip().lower() == "robots" or _is_ours(name.strip()):
            found |= dict.fromkeys(re.split(r"[\s,;]+", content.lower()), said)
    if reserved := _reserved(headers.get(TDM, ()), tags, tdm_file):
        found[TDM] = reserved
    if "none" in found:
        found |= dict.fromkeys(("noindex", "nofollow"), found["none"])
    return {directive: said for directive, said in found.items() if directive}


def check_opt_outs(said: Mapping[str, str], obeyed: frozenset[str]) -> None:
    """Raise a PageError if any of the opt-outs of a page, given with their places, is obeyed."""
    refusals = [f"{name}: {said[name]}" for name in sorted(said.keys() & obeyed)]
    if refusals:
        raise PageError("opt_out", "; ".join(refusals))


def _reserved(
    headers: Sequence[str], tags: Sequence[tuple[str, str, str]], file: str | None
) -> str | None:
    """Return where text and data mining is reserved; ``None`` if it is not.

    Source:
        TDMRep, section on processing priority: a meta tag counts before the header, and that before
        the file, if its value is 0 or 1. Of several tags one that reserves is enough.
    """
    of_tags = {content.strip(): said for name, content, said in tags if name.strip().lower() == TDM}
    of_headers = {value.strip(): _header("TDM-Reservation", value) for value in headers}
    for stated in (of_tags, of_headers):
        if stated.keys() & {"0", "1"}:
            return stated.get("1")
    return file


def _header(name: str, value: str) -> str:
    return f"header {name}: {value[:_SHOWN]}"


def _meta(name: str, content: str) -> str:
    return f'<meta name="{name[:_SHOWN]}" content="{content[:_SHOWN]}">'


def _of_header(header: str) -> set[str]:
    """Parse one header; directives behind the name of a crawler are for that crawler alone."""
    found = set()
    ours = True
    for word, colon in _WORD.findall(_VALUED.sub(r"\1\2", header.lower())):
        if colon:
            ours = _is_ours(word)
        elif ours:
            found.add(word)
    return found


def _is_ours(name: str) -> bool:
    """Return whether a crawler's name is this crawler's, with or without its version."""
    return product_token(name.encode()) == PRODUCT.encode()
