"""Plain requests without a browser, and answers that hold for all pages of a site."""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar
from urllib.parse import urljoin, urlsplit

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
_ORIGINS = 20_000
_FAILED_S = 60.0
"""Seconds for which a failure counts; then the next page of the origin asks again."""

Answer = TypeVar("Answer")


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


class OriginCache(Generic[Answer]):
    """Answers of origins (``https://host``); simultaneous requests wait for one answer.

    ``ask`` returns the answer of an origin, and whether it is final; an error never is.
    """

    def __init__(self, ask: Callable[[str], Awaitable[tuple[Answer, bool]]]) -> None:
        self._ask = ask
        self._known: OrderedDict[str, asyncio.Task[Answer]] = OrderedDict()

    async def of(self, url: str) -> Answer:
        """Return the answer of a URL's origin."""
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc}"
        if origin not in self._known:
            self._known[origin] = asyncio.ensure_future(self._answer(origin))
            while len(self._known) > _ORIGINS:
                self._known.popitem(last=False)
        return await asyncio.shield(self._known[origin])

    async def close(self) -> None:
        """Drop pending requests."""
        for task in self._known.values():
            task.cancel()
        await asyncio.gather(*self._known.values(), return_exceptions=True)

    async def _answer(self, origin: str) -> Answer:
        final = False
        try:
            said, final = await self._ask(origin)
            return said
        finally:
            if not final:
                asyncio.get_running_loop().call_later(_FAILED_S, self._known.pop, origin, None)
