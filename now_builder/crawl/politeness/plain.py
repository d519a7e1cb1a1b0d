"""Plain requests, without a browser: through a proxy, with redirects and codings undone."""

import re
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urljoin

import httpx

from now_builder.urls import canonical

MOVED = frozenset({301, 302, 303, 307, 308})
"""Answers that name another URL, where they do."""

_CODINGS = {"x-gzip": "gzip", "gzip": "gzip", "deflate": "deflate"}
_BINARY = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")
_LOOKED_AT = 1 << 12


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a plain request; ``redirects`` are the URLs that led to it.

    Headers are by name, in lower case; the body is that of a success alone.
    """

    url: str
    status: int
    headers: dict[str, list[str]]
    body: bytes
    redirects: list[str]


class PlainClient:
    """Asks by plain requests, all through one proxy.

    A client of httpx would read hosts by IDNA 2008, which has no symbols, so only its transport is
    used.
    """

    def __init__(
        self,
        proxy: str,
        headers: Mapping[str, str],
        timeout_s: float,
        tls: ssl.SSLContext | bool = True,  # noqa: FBT001, FBT002 - as httpx has it
    ) -> None:
        self._headers = {"Accept": "*/*", "Accept-Encoding": "gzip, deflate", **headers}
        self._timeout = httpx.Timeout(timeout_s).as_dict()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._transport = httpx.AsyncHTTPTransport(
            proxy=proxy, verify=tls, trust_env=False, limits=limits
        )

    async def close(self) -> None:
        """Close connections."""
        await self._transport.aclose()

    async def get(
        self,
        url: str,
        most_redirects: int,
        most_bytes: int,
        ask: Callable[[str], Awaitable[None]] | None = None,
    ) -> Answer:
        """Ask for a URL and follow it; a longer body is cut off.

        ``ask`` may raise an error for any URL on the way before it is requested.

        Raises:
            httpx.HTTPError: If there is no answer, or a body cannot be decoded.
        """
        cookies = httpx.Cookies()
        redirects: list[str] = []
        while True:
            if ask is not None:
                await ask(url)
            host = url.split("/", 3)[2]
            request = httpx.Request(
                "GET",
                url,
                headers={"Host": host, **self._headers},
                cookies=cookies,
                extensions={"timeout": self._timeout},
            )
            response = await self._transport.handle_async_request(request)
            response.request = request
            try:
                cookies.extract_cookies(response)
                following = _following(url, response)
                if following is None:
                    body = await _read(response, most_bytes) if response.is_success else b""
                    headers = {name: response.headers.get_list(name) for name in response.headers}
                    return Answer(url, response.status_code, headers, body, redirects)
            finally:
                await response.aclose()
            if len(redirects) >= most_redirects:
                raise httpx.TooManyRedirects(f"more than {most_redirects}", request=request)
            redirects.append(url)
            url = following


def _following(url: str, response: httpx.Response) -> str | None:
    """Return the URL that a response leads to; an empty one leads nowhere, as in a browser."""
    location = response.headers.get("location", "").strip()
    if response.status_code not in MOVED or not location:
        return None
    try:
        following = canonical(urljoin(url, location))
    except ValueError:
        following = None
    if following is None:
        raise httpx.UnsupportedProtocol(f"redirect to {location[:80]}")
    return following


async def _read(response: httpx.Response, most: int) -> bytes:
    """Read a body with its codings undone.

    What names a coding that is not known here is passed over where the body is text, as such names
    often are none (``utf-8``), and is an error otherwise.
    """
    named = response.headers.get_list("content-encoding", split_commas=True)
    known = [_CODINGS.get(name.strip().lower()) for name in named]
    response.headers["content-encoding"] = ", ".join(filter(None, known))
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) >= most:
            break
    if None in known and _BINARY.search(body[:_LOOKED_AT]):
        raise httpx.DecodingError(f"Content-Encoding: {', '.join(named)[:80]}")
    return bytes(body[:most])
