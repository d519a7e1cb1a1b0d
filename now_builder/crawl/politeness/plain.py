"""Plain requests, without a browser: through a proxy, with redirects and codings undone."""

import re
from urllib.parse import urljoin

import httpx

from now_builder.urls import canonical

MOVED = frozenset({301, 302, 303, 307, 308})
"""Statuses that redirect, if the answer names another URL."""

FAILURES = (httpx.HTTPError, httpx.InvalidURL, ValueError, TimeoutError)
"""Errors of a request that gets no answer, or one that cannot be read."""

TIMEOUT_S = 10.0
_REDIRECTS, _LIMIT = 5, 512_000
_CODINGS = {"x-gzip": "gzip", "gzip": "gzip", "deflate": "deflate"}
_BINARY = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")
_LOOKED_AT = 1 << 12


class PlainClient:
    """Asks for the files of sites by plain requests, all through one proxy.

    A client of httpx would read hosts by IDNA 2008, which has no symbols, so only its transport is
    used.
    """

    def __init__(self, proxy: str, user_agent: str) -> None:
        self._headers = {
            "Accept": "*/*",
            "Accept-Encoding": "gzip, deflate",
            "User-Agent": user_agent,
        }
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._transport = httpx.AsyncHTTPTransport(proxy=proxy, trust_env=False, limits=limits)

    async def close(self) -> None:
        """Close connections."""
        await self._transport.aclose()

    async def get(self, url: str) -> tuple[int, bytes]:
        """Return the status and body of a URL, redirects followed.

        The body is empty unless the request succeeds; it is cut off at 512 kB.

        Raises:
            httpx.HTTPError: If there is no answer, or a body cannot be decoded.
        """
        cookies = httpx.Cookies()
        for _ in range(1 + _REDIRECTS):
            request = httpx.Request(
                "GET",
                url,
                headers={"Host": url.split("/", 3)[2], **self._headers},
                cookies=cookies,
                extensions={"timeout": httpx.Timeout(TIMEOUT_S).as_dict()},
            )
            response = await self._transport.handle_async_request(request)
            response.request = request
            try:
                cookies.extract_cookies(response)
                following = _following(url, response)
                if following is None:
                    body = await _read(response) if response.is_success else b""
                    return response.status_code, body
            finally:
                await response.aclose()
            url = following
        raise httpx.TooManyRedirects(f"more than {_REDIRECTS}", request=request)


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


async def _read(response: httpx.Response) -> bytes:
    """Read a body with its codings undone.

    An unknown coding is ignored if the body is text, as such names often are no codings
    (``utf-8``), and is an error otherwise.
    """
    named = response.headers.get_list("content-encoding", split_commas=True)
    known = [_CODINGS.get(name.strip().lower()) for name in named]
    response.headers["content-encoding"] = ", ".join(filter(None, known))
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) >= _LIMIT:
            break
    if None in known and _BINARY.search(body[:_LOOKED_AT]):
        raise httpx.DecodingError(f"Content-Encoding: {', '.join(named)[:80]}")
    return bytes(body[:_LIMIT])
