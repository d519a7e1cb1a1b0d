"""Check the headers of a response: whether it is a page, and whether its body is complete."""

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
"""Header values by lower-case name; a repeated header has several values."""


def headers_of(event: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the headers of a ``Fetch.requestPaused`` at the response stage."""
    headers: dict[str, list[str]] = {}
    for item in event.get("responseHeaders", ()):
        headers.setdefault(item["name"].lower(), []).extend(item["value"].split("\n"))
    return headers


def last(headers: Headers, name: str) -> str:
    """Return the last value of a header; ``""`` if there is none."""
    return headers[name][-1].strip() if headers.get(name) else ""


def media_type(headers: Headers) -> str:
    """Return the media type of a response; ``""`` if Chromium infers it from the body.

    Source:
        Chromium, ``HttpUtil::ParseContentType`` and ``ShouldSniffMimeType``: the last of several
        values that is a type counts, and a type ends at a space.
    """
    media = ""
    for value in _VALUE.findall(",".join(headers.get("content-type", ()))):
        text = value.strip()
        if "/" in text and text != "*/*":
            media = _TYPE.match(text)[0].lower()  # type: ignore[index]  # it matches any text
    return media if "/" in media and media not in _SNIFFED else ""


def check_answer(status: int, headers: Headers) -> None:
    """Raise a PageError if a response is not an HTML page."""
    if status in (204, 205):
        raise PageError("not_html", f"status {status} has no content")
    if not 200 <= status < 300:
        raise PageError(f"http_{status}", "", retry_after_s(last(headers, "retry-after")))
    disposition = last(headers, "content-disposition")
    if disposition.lower().startswith("attachment"):
        raise PageError("download", disposition[:200])
    media = media_type(headers)
    if media in _DOWNLOADS:
        raise PageError("download", media)
    if media and media not in HTML:
        raise PageError("not_html", media)


def is_short(body: bytes, headers: Headers) -> bool:
    """Return whether a body is shorter than its header says; false for a compressed body."""
    length = last(headers, "content-length")
    if "content-encoding" in headers or not length.isdecimal():
        return False
    return len(length) > 19 or len(body) < int(length)  # int accepts at most 4,300 digits
