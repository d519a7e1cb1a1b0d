"""Normalise URLs for visits, comparison and storage."""

import re
import unicodedata
from ipaddress import IPv6Address
from urllib.parse import SplitResult, quote, unquote, urlsplit, urlunsplit

import idna

_PORTS = {"http": 80, "https": 443}
_SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*:(?!\d+(?:[/\\?#]|$))", re.IGNORECASE)
_START = re.compile(r"^(https?):/*", re.IGNORECASE)
_ESCAPE = re.compile(r"%([0-9a-fA-F]{2})")
_IN_NO_HOST = re.compile(r"[\x00-,/:-^`{-\x7f]")
_ROUTE = re.compile(r"[/!]+[^/!]")
"""Beginning of a fragment that names a view of an application: ``#/a``, ``#!b``, ``#!/c``."""

_RIGHT_TO_LEFT = frozenset({"R", "AL", "AN"})
_AROUND = "".join(
    map(chr, [*range(0x21), *range(0x7F, 0xA1), 0xAD, 0x61C, 0x1680, 0x180E, *range(0x2000, 0x2010),
              *range(0x2028, 0x2030), *range(0x205F, 0x2070), 0x3000, 0xFEFF])
)  # fmt: skip
"""White space, controls, and invisible characters (marks of byte order and direction)."""
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


def canonical(url: str) -> str | None:
    """Return the normalised form of a URL for visits and comparison; ``None`` if it is not a URL.

    Lower-case scheme and host (IDNA), no default port, dots resolved, escapes in one form. The
    query is kept as it is. A fragment is kept only if it names a view of an application (``#/a``,
    ``#!b``). A text without a scheme gets ``http``.

    Source:
        WHATWG URL standard, 3.5: hosts by UTS 46, which has emoji and symbols; 4.4: before query
        and fragment a backslash is a slash, and any number of slashes may follow the scheme.
    """
    url = strip_invisible(url)
    if not _SCHEME.match(url):
        url = "http://" + url.lstrip("/\\")
    end = next((place for place, letter in enumerate(url) if letter in "?#"), len(url))
    url = _START.sub(r"\1://", url[:end].replace("\\", "/")) + url[end:]
    try:
        parts = urlsplit(url)
        host = _host(parts)
        port = parts.port
    except (ValueError, UnicodeError):
        return None
    scheme = parts.scheme.lower()
    if scheme not in _PORTS or not host:
        return None
    netloc = host if port in (None, _PORTS[scheme]) else f"{host}:{port}"
    path = _escape(_without_dots(parts.path or "/"), "/:@!$&'()*+,;=-._~%[]|")
    query = _escape(parts.query, "/:@!$&'()*+,;=-._~%?[]|{}^`\\")
    route = parts.fragment.partition(":~:")[0]  # the rest marks a text on the page
    route = _escape(route, "/:@!$&'()*+,;=-._~%?[]|{}^`\\#") if _ROUTE.match(route) else ""
    return urlunsplit((scheme, netloc, path, query, route))


def strip_invisible(text: str) -> str:
    """Return a text without white space and invisible characters at its ends."""
    return text.strip(_AROUND)


def site_of(url_canonical: str) -> str:
    """Return the host name of a canonical URL; ``""`` for a text that is not a URL."""
    try:
        return urlsplit(url_canonical).hostname or ""
    except ValueError:
        return ""


def _host(parts: SplitResult) -> str:
    """Return a host as browsers write it; ``""`` or a ValueError if it is invalid."""
    host = unquote(parts.hostname or "", errors="strict").lower()
    if ":" in host:
        return f"[{IPv6Address(host)}]"
    if not host.isascii():
        # Not idna.encode: IDNA 2008 has no symbols, and browsers do not use it.
        host = idna.uts46_remap(host, std3_rules=False)
        both_ways = any(unicodedata.bidirectional(sign) in _RIGHT_TO_LEFT for sign in host)
        host = ".".join(_label(label, both_ways=both_ways) for label in host.split("."))
    return "" if _IN_NO_HOST.search(host) else host.rstrip(".")


def _label(label: str, *, both_ways: bool) -> str:
    """Return a label in ASCII; hosts with a right-to-left script are checked by more rules."""
    if both_ways and label:
        idna.check_bidi(label, check_ltr=True)
    if label.isascii():
        return label
    idna.check_initial_combiner(label)
    for place, sign in enumerate(label):
        if sign in "\u200c\u200d" and not idna.valid_contextj(label, place):
            raise idna.IDNAError(f"{label!r} has a joiner without neighbours")
    return "xn--" + label.encode("punycode").decode()


def _without_dots(path: str) -> str:
    """Resolve ``.`` and ``..`` segments; keep double slashes, which servers may distinguish."""
    kept: list[str] = []
    segments = path.split("/")
    for place, segment in enumerate(segments):
        dots = re.sub("%2e", ".", segment, flags=re.IGNORECASE)
        if dots not in (".", ".."):
            kept.append(segment)
            continue
        if dots == ".." and len(kept) > 1:
            kept.pop()
        if place == len(segments) - 1:
            kept.append("")
    return "/".join(kept)


def _escape(text: str, safe: str) -> str:
    """Escape reserved characters with upper-case digits, and undo needless escapes."""
    return quote(_ESCAPE.sub(_escape_once, text), safe=safe)


def _escape_once(escape: re.Match[str]) -> str:
    byte = int(escape[1], 16)
    return chr(byte) if byte in _UNRESERVED else f"%{byte:02X}"
