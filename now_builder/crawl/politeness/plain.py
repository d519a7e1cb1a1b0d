"""Fetch files of a site without a browser, and cache answers by origin."""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar
from urllib.parse import urljoin, urlsplit

import httpx

from now_builder.urls import canonical

MOVED = frozenset({301, 302, 303, 307, 308})
"""Statuses of a redirect, if the response has a location."""

FAILURES = (httpx.HTTPError, httpx.InvalidURL, ValueError, TimeoutError)
"""Errors of a request without a readable response."""

TIMEOUT_S = 10.0
_REDIRECTS, _LIMIT = 5, 512_000
_CODINGS = {"x-gzip": "gzip", "gzip": "gzip", "deflate": "deflate"}
_BINARY = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")
_PREFIX = 1 << 12
_ORIGINS = 20_000
_FAILED_S = 60.0
"""Seconds to cache a failure."""

Answer = TypeVar("Answer")


class PlainClient:
    """Fetches files of sites through a proxy.

    Uses only the transport of httpx: its client encodes hosts by IDNA 2008, which has no symbols.
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
        """Return the status and body of a URL after redirects.

        The body is empty unless the request succeeds, and is truncated to 512 kB.

        Raises:
            httpx.HTTPError: If there is no response, or its body cannot be decoded.
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
                target = _redirect_target(url, response)
                if target is None:
                    body = await _read(response) if response.is_success else b""
                    return response.status_code, body
            finally:
                await response.aclose()
            url = target
        raise httpx.TooManyRedirects(f"more than {_REDIRECTS}", request=request)


def _redirect_target(url: str, response: httpx.Response) -> str | None:
    """Return the URL that a response redirects to; an empty location is ignored, as in browsers."""
    location = response.headers.get("location", "").strip()
    if response.status_code not in MOVED or not location:
        return None
    with suppress(ValueError):
        if target := canonical(urljoin(url, location)):
            return target
    raise httpx.UnsupportedProtocol(f"redirect to {location[:80]}")


async def _read(response: httpx.Response) -> bytes:
    """Read and decompress a body.

    An unknown content encoding, such as ``utf-8``, is an error only if the body is not text.
    """
    names = response.headers.get_list("content-encoding", split_commas=True)
    codings = [_CODINGS.get(name.strip().lower()) for name in names]
    response.headers["content-encoding"] = ", ".join(filter(None, codings))
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) >= _LIMIT:
            break
    if None in codings and _BINARY.search(body[:_PREFIX]):
        raise httpx.DecodingError(f"Content-Encoding: {', '.join(names)[:80]}")
    return bytes(body[:_LIMIT])


class OriginCache(Generic[Answer]):
    """Caches answers by origin (``https://host``); simultaneous requests share one call of ``ask``.

    ``ask`` returns the answer of an origin and whether it is final; an error never is.
    """

    def __init__(self, ask: Callable[[str], Awaitable[tuple[Answer, bool]]]) -> None:
        self._ask = ask
        self._tasks: OrderedDict[str, asyncio.Task[Answer]] = OrderedDict()

    async def get(self, url: str) -> Answer:
        """Return the answer of a URL's origin."""
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc}"
        if origin not in self._tasks:
            self._tasks[origin] = asyncio.ensure_future(self._answer(origin))
            while len(self._tasks) > _ORIGINS:
                self._tasks.popitem(last=False)
        return await asyncio.shield(self._tasks[origin])

    async def close(self) -> None:
        """Cancel pending requests."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _answer(self, origin: str) -> Answer:
        final = False
        try:
            answer, final = await self._ask(origin)
            return answer
        finally:
            if not final:
                asyncio.get_running_loop().call_later(_FAILED_S, self._tasks.pop, origin, None)
