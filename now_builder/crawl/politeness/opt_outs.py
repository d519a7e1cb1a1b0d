"""Opt-outs in headers and meta tags, and the header Retry-After."""

import re
import time
from collections.abc import Iterable, Sequence
from email.utils import parsedate_to_datetime

from now_builder.crawl.politeness.robots import PRODUCT
from now_builder.crawl.politeness.robots_rules import product_token

TDM = "tdm-reservation"
"""TDM Reservation Protocol (W3C community report, 2024): text and data mining not allowed."""

_VALUED = frozenset({"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"})
"""Directives that have a value of their own behind a colon."""


def opt_outs(
    robots_headers: Sequence[str],
    metas: Iterable[tuple[str, str]],
    tdm_header: str | None = None,
) -> frozenset[str]:
    """Collect the directives that are meant for this crawler, in lower case.

    They stand in values of ``X-Robots-Tag`` and ``TDM-Reservation``, and in ``<meta>`` tags, given
    by name and content.
    """
    found = set().union(*map(_of_header, robots_headers))
    tdm = [tdm_header or ""]
    for name, content in metas:
        key = name.strip().lower()
        if key == "robots" or _is_ours(key):
            found |= {word.strip().lower() for word in content.split(",")}
        elif key == TDM:
            tdm.append(content)
    if any(value.strip() == "1" for value in tdm):
        found.add(TDM)
    if "none" in found:
        found |= {"noindex", "nofollow"}
    return frozenset(found - {""})


def _of_header(header: str) -> set[str]:
    """Parse one header; what follows the name of a crawler is for that crawler alone."""
    found = set()
    ours = True
    for part in header.split(","):
        name, colon, rest = (piece.strip().lower() for piece in part.partition(":"))
        if colon and name not in _VALUED:
            ours, name = _is_ours(name), rest
        if ours and name:
            found.add(name)
    return found


def _is_ours(name: str) -> bool:
    """Return whether a crawler's name is this crawler's, with or without its version."""
    return product_token(name.encode()) == PRODUCT.encode()


def retry_after_s(value: str | None) -> float | None:
    """Parse a ``Retry-After`` header (seconds or a date) to seconds; ``None`` if it is neither.

    Source:
        RFC 9110, section 10.2.3.
    """
    text = (value or "").strip()
    if re.fullmatch(r"\d{1,9}", text):
        return float(text)
    try:
        moment = parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
    return max(0.0, moment - time.time())
