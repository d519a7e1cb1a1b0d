"""The form in which URLs are visited, compared and stored."""

import re
from ipaddress import IPv6Address
from urllib.parse import SplitResult, quote, urlsplit, urlunsplit

import idna

_PORTS = {"http": 80, "https": 443}
_SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*:(?!\d+(?:[/\\?#]|$))", re.IGNORECASE)
_START = re.compile(r"^(https?):/*", re.IGNORECASE)
_ESCAPE = re.compile(r"%([0-9a-fA-F]{2})")
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


def canonical(url: str) -> str | None:
    """Return the form in which a URL is visited and compared; ``None`` if it is not a URL.

    Lower-case scheme and host (IDNA), no default port, no fragment, dots resolved, escapes in one
    form. Order and content of the query stay: two of them may well be two pages. A text without a
    scheme is taken as ``http``.

    Source:
        WHATWG URL standard, 4.4: before query and fragment a backslash is a slash, and any number
        of slashes may follow the scheme.
    """
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
    return urlunsplit((scheme, netloc, path, query, ""))


def site_of(url_canonical: str) -> str:
    """Return the host name of a canonical URL; ``""`` for a text that is not a URL."""
    try:
        return urlsplit(url_canonical).hostname or ""
    except ValueError:
        return ""


def _host(parts: SplitResult) -> str:
    host = (parts.hostname or "").rstrip(".")
    if ":" in host:
        return f"[{IPv6Address(host)}]"
    if host.isascii():
        return host if re.fullmatch(r"[a-z0-9._-]+", host) else ""
    return str(idna.encode(host, uts46=True).decode())


def _without_dots(path: str) -> str:
    """Resolve ``.`` and ``..`` segments; double slashes stay, they can matter to a server."""
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
    """Escape what must be, with upper-case digits, and undo escapes that say nothing."""
    return quote(_ESCAPE.sub(_escape_once, text), safe=safe)


def _escape_once(found: re.Match[str]) -> str:
    byte = int(found[1], 16)
    return chr(byte) if byte in _UNRESERVED else f"%{byte:02X}"
