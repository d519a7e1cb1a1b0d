"""robots.txt: fetched once per origin, and obeyed."""

import asyncio
import ssl
from dataclasses import dataclass, field
from typing import Literal

import httpx

from now_builder.crawl.politeness.origins import OncePerOrigin
from now_builder.crawl.politeness.plain import FAILURES, TIMEOUT_S, PlainClient
from now_builder.crawl.politeness.proxy import Proxy
from now_builder.crawl.politeness.resolver import Refused
from now_builder.crawl.politeness.robots_rules import RobotsRules, parse_robots

PRODUCT = "noise-of-web"
"""Name of this crawler in robots.txt."""

_LONGEST_DELAY_S = 30.0
_AGAIN_S = 0.5
"""After a connection that broke; then for the second and last time."""

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
        opt_outs: opt-outs from training that hold for the URL, and where each is said.
    """

    verdict: Verdict
    note: str
    delay_s: float = 0.0
    opt_outs: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Rules:
    rules: RobotsRules | None
    note: str
    problem: Literal["robots_unreachable", "tls_error"] | None = None
    broken: bool = False


class Robots:
    """Decides by robots.txt; the file of each origin is fetched once, by a proxy of its own.

    A broken connection is tried again at once, any other failure after a minute.
    """

    def __init__(self, proxy: Proxy, user_agent: str) -> None:
        self._proxy = proxy
        self._client = PlainClient(proxy.url, user_agent)
        self._known = OncePerOrigin(self._fetch)

    async def close(self) -> None:
        """Close connections and drop pending requests."""
        await self._known.close()
        await self._client.close()

    async def decide(self, url: str) -> Decision:
        """Decide whether a URL may be visited.

        Source:
            RFC 9309: 4xx allows all, 5xx and an unreachable file allow nothing.

        Raises:
            Refused: If the host itself cannot be reached or must not be.
        """
        known = await self._known.of(url)
        if known.problem:
            return Decision(known.problem, known.note)
        if known.rules is None:
            return Decision("allowed", known.note)
        delay = min(known.rules.delay_s, _LONGEST_DELAY_S)
        if not known.rules.allows(url):
            return Decision("robots", "disallowed", delay)
        lines = known.rules.opt_outs(url)
        opt_outs = {name: f"robots.txt, {line}" for name, line in lines.items()}
        return Decision("allowed", "allowed", delay, opt_outs)

    async def _fetch(self, origin: str) -> tuple[_Rules, bool]:
        rules = await self._ask(origin)
        if rules.reason == "net_error" if isinstance(rules, Refused) else rules.broken:
            await asyncio.sleep(_AGAIN_S)
            rules = await self._ask(origin)
        if isinstance(rules, Refused):
            raise rules
        return rules, rules.problem is None

    async def _ask(self, origin: str) -> _Rules | Refused:
        rules = await self._answer(origin)
        return self._proxy.refusal(origin) or rules

    async def _answer(self, origin: str) -> _Rules:
        try:
            async with asyncio.timeout(2 * TIMEOUT_S):
                status, body = await self._client.get(f"{origin}/robots.txt")
        except FAILURES as error:
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


def _tls_problem(error: BaseException) -> str | None:
    """Return the problem of a certificate or a handshake, if that is the cause of an error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return cause.verify_message
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, _HUNG_UP):
            return cause.reason
        cause = cause.__cause__ or cause.__context__
    return None
