"""robots.txt: fetched once per origin, and obeyed."""

import asyncio
import ssl
from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

import httpx

from now_builder.crawl.politeness.proxy import Proxy
from now_builder.crawl.politeness.resolver import Refused
from now_builder.crawl.politeness.robots_rules import RobotsRules, parse_robots

PRODUCT = "noise-of-web"
"""Name of this crawler in robots.txt."""

_LIMIT = 512_000
_REDIRECTS = 5
_TIMEOUT_S = 10.0
_ORIGINS = 20_000
_LONGEST_DELAY_S = 30.0
_AGAIN_S = 0.5
"""After a connection that broke; then for the second and last time."""
_FAILED_S = 60.0
"""So long a failure counts; after that the next page of the origin asks again."""

_BROKEN = (httpx.NetworkError, httpx.RemoteProtocolError)
_HUNG_UP = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)

Verdict = Literal["allowed", "robots", "robots_unreachable", "tls_error"]


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a URL may be visited.

    Attributes:
        verdict: ``allowed``; ``robots``: disallowed; ``robots_unreachable``: robots.txt could not
            be fetched; ``tls_error``: nor can any page, as the certificate or TLS is not valid.
        note: reason of the decision: ``allowed``, ``disallowed``, ``none`` (no robots.txt) …
        delay_s: crawl delay that the site asks for, at most 30 s.
    """

    verdict: Verdict
    note: str
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Rules:
    rules: RobotsRules | None
    note: str
    problem: Literal["robots_unreachable", "tls_error"] | None = None
    broken: bool = False


class Robots:
    """Decides by robots.txt; the file of each origin is fetched once, by a proxy of its own.

    A connection that broke is tried again at once, and whatever failed again after a minute.
    """

    def __init__(self, proxy: Proxy, user_agent: str) -> None:
        self._proxy = proxy
        self._client = httpx.AsyncClient(
            proxy=proxy.url,
            trust_env=False,
            timeout=_TIMEOUT_S,
            follow_redirects=True,
            max_redirects=_REDIRECTS,
            headers={"User-Agent": user_agent},
        )
        self._known: OrderedDict[str, asyncio.Task[_Rules]] = OrderedDict()

    async def close(self) -> None:
        """Close connections and drop what is pending."""
        for task in self._known.values():
            task.cancel()
        await asyncio.gather(*self._known.values(), return_exceptions=True)
        await self._client.aclose()

    async def decide(self, url: str) -> Decision:
        """Decide whether a URL may be visited.

        Source:
            RFC 9309: 4xx allows all, 5xx and an unreachable file allow nothing.

        Raises:
            Refused: If the host itself cannot be reached or must not be.
        """
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc}"
        if origin not in self._known:
            self._known[origin] = asyncio.ensure_future(self._fetch(origin))
            while len(self._known) > _ORIGINS:
                self._known.popitem(last=False)
        found = await asyncio.shield(self._known[origin])
        if found.problem:
            return Decision(found.problem, found.note)
        if found.rules is None:
            return Decision("allowed", found.note)
        delay = min(found.rules.delay_s, _LONGEST_DELAY_S)
        if found.rules.allows(url):
            return Decision("allowed", "allowed", delay)
        return Decision("robots", "disallowed", delay)

    async def _fetch(self, origin: str) -> _Rules:
        found = await self._ask(origin)
        if found.reason == "net_error" if isinstance(found, Refused) else found.broken:
            await asyncio.sleep(_AGAIN_S)
            found = await self._ask(origin)
        if isinstance(found, Refused) or found.problem:
            asyncio.get_running_loop().call_later(_FAILED_S, self._known.pop, origin, None)
        if isinstance(found, Refused):
            raise found
        return found

    async def _ask(self, origin: str) -> _Rules | Refused:
        found = await self._answer(origin)
        return self._proxy.refusal(origin) or found

    async def _answer(self, origin: str) -> _Rules:
        try:
            async with asyncio.timeout(2 * _TIMEOUT_S):
                status, body = await self._get(f"{origin}/robots.txt")
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            problem = _tls_problem(error)
            if problem is not None:
                return _Rules(None, problem, "tls_error")
            broken = isinstance(error, _BROKEN)
            return _Rules(None, type(error).__name__, "robots_unreachable", broken)
        if status >= 500 or status == 429:
            return _Rules(None, f"http_{status}", "robots_unreachable")
        if status >= 300:
            return _Rules(None, "none")
        return _Rules(parse_robots(body, PRODUCT), "allowed")

    async def _get(self, url: str) -> tuple[int, bytes]:
        body = b""
        async with self._client.stream("GET", url) as response:
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) >= _LIMIT:
                    break
            return response.status_code, body[:_LIMIT]


def _tls_problem(error: BaseException) -> str | None:
    """Return what is wrong with a certificate or a handshake, if that is the cause of an error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return cause.verify_message
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, _HUNG_UP):
            return cause.reason
        cause = cause.__cause__ or cause.__context__
    return None
