"""Headers of a response: whether a page follows, and how long it is."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from now_builder.crawl.visit import PageError
from now_builder.program.retry_after import retry_after_s

HTML = frozenset({"text/html", "application/xhtml+xml"})
_DOWNLOADS = {"application/octet-stream", "application/x-download", "application/zip"}
_SNIFFED = {"*/*", "unknown/unknown", "application/unknown"}
_VALUE = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.)*+"?)++')
_TYPE = re.compile(r"[^\s;(]*")

Headers = Mapping[str, Sequence[str]]
"""Values of headers by name, in lower case; a header that is repeated has several."""


def headers_of(event: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the headers of a ``Fetch.requestPaused`` at the response stage."""
    headers: dict[str, list[str]] = {}
    for item in event.get("responseHeaders", ()):
        headers.setdefault(item["name"].lower(), []).extend(item["value"].split("\n"))
    return headers


def last(headers: Headers, name: str) -> str:
    """Return the last value of a header, ``""`` if there is none."""
    return headers[name][-1].strip() if headers.get(name) else ""


def media_type(headers: Headers) -> str:
    """Return the media type of a response; ``""`` if Chromium takes it from the body.

    Source:
        Chromium, ``HttpUtil::ParseContentType`` and ``ShouldSniffMimeType``: of several values the
        last one counts that is a type, and a type ends at a space.
    """
    kind = ""
    for value in _VALUE.findall(",".join(headers.get("content-type", ()))):
        text = value.strip()
        if "/" in text and text != "*/*":
            kind = _TYPE.match(text)[0].lower()  # type: ignore[index]  # it matches always
    return kind if "/" in kind and kind not in _SNIFFED else ""


def check_answer(status: int, headers: Headers) -> None:
    """Raise a PageError if a response is not an HTML page."""
    if status in (204, 205):
        raise PageError("not_html", f"status {status} has no content")
    if not 200 <= status < 300:
        raise PageError(f"http_{status}", "", retry_after_s(last(headers, "retry-after")))
    disposition = last(headers, "content-disposition")
    if disposition.lower().startswith("attachment"):
        raise PageError("download", disposition[:200])
    kind = media_type(headers)
    if kind in _DOWNLOADS:
        raise PageError("download", kind)
    if kind and kind not in HTML:
        raise PageError("not_html", kind)


def is_short(body: bytes, headers: Headers) -> bool:
    """Whether a body is shorter than announced; unknown, so false, for a compressed one."""
    length = last(headers, "content-length")
    if "content-encoding" in headers or not length.isdecimal():
        return False
    return len(length) > 19 or len(body) < int(length)  # int takes some thousand digits alone
