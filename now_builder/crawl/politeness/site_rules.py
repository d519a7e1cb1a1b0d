"""Fetch and apply a site's rules: robots.txt, and opt-outs in tdmrep.json and ai.txt."""

import asyncio
import json
import ssl
from dataclasses import dataclass, field, replace
from typing import Literal

import httpx

from now_builder.crawl.politeness.opt_outs import TDM
from now_builder.crawl.politeness.plain import FAILURES, TIMEOUT_S, OriginCache, PlainClient
from now_builder.crawl.politeness.proxy import Proxy
from now_builder.crawl.politeness.robots_rules import (
    PRODUCT,
    RobotsRules,
    Rule,
    parse_robots,
    path_of,
    rule_of,
)

AI_TXT = "ai.txt"
TDM_FILE = "/.well-known/tdmrep.json"

_LONGEST_DELAY_S = 30.0
_RETRY_S = 0.5
"""Seconds until the only retry after a broken connection."""

_BROKEN = (httpx.NetworkError, httpx.RemoteProtocolError)
_HUNG_UP = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)

Verdict = Literal["allowed", "robots", "robots_unreachable", "tls_error"]


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a URL may be visited.

    Attributes:
        verdict: ``allowed``; ``robots``: disallowed; ``robots_unreachable``: robots.txt could not
            be fetched; ``tls_error``: the certificate or TLS is invalid, so no page can be fetched.
        note: Reason: ``allowed``, ``disallowed``, ``none`` (no robots.txt) …
        delay_s: Crawl delay of the site, at most 30 s.
        opt_outs: Opt-outs from training that apply to the URL, and the source of each.
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


@dataclass(frozen=True, slots=True)
class _Files:
    """The rules in the opt-out files of an origin; none if a file is missing."""

    tdm: tuple[Rule, ...]
    ai: RobotsRules


class SiteRules:
    """Decides about URLs by the rules of their sites, and requests each file of an origin once.

    A request for robots.txt is retried at once after a broken connection; after other failures,
    files are requested again a minute later.

    Args:
        proxy: Proxy for these requests only.
        obeyed: Opt-outs to obey; files of other opt-outs are not requested.
        obey_robots: Whether to request and obey robots.txt.
    """

    def __init__(
        self, proxy: Proxy, user_agent: str, obeyed: frozenset[str], *, obey_robots: bool
    ) -> None:
        self._proxy = proxy
        self._obeyed = obeyed
        self._obey_robots = obey_robots
        self._client = PlainClient(proxy.url, user_agent)
        self._rules = OriginCache(self._ask_rules)
        self._files = OriginCache(self._ask_files)

    async def close(self) -> None:
        """Close connections and drop pending requests."""
        await self._rules.close()
        await self._files.close()
        await self._client.close()

    async def decide(self, url: str) -> Decision:
        """Decide by robots.txt, and return the opt-outs that apply to a URL.

        If robots.txt disallows the URL, nothing else is requested.

        Raises:
            PageError: If the host cannot or must not be contacted.
        """
        decision = await self.robots(url)
        if decision.verdict != "allowed":
            return decision
        return replace(decision, opt_outs=decision.opt_outs | await self.opt_outs(url))

    async def robots(self, url: str) -> Decision:
        """Decide by robots.txt alone.

        Source:
            RFC 9309: 4xx allows all, 5xx and an unreachable file allow nothing.
        """
        if not self._obey_robots:
            return Decision("allowed", "ignored")
        answer = await self._rules.get(url)
        if answer.problem:
            return Decision(answer.problem, answer.note)
        if answer.rules is None:
            return Decision("allowed", answer.note)
        delay = min(answer.rules.delay_s, _LONGEST_DELAY_S)
        if not answer.rules.allows(url):
            return Decision("robots", "disallowed", delay)
        lines = answer.rules.opt_outs(url)
        opt_outs = {name: f"robots.txt, {line}" for name, line in lines.items()}
        return Decision("allowed", "allowed", delay, opt_outs)

    async def opt_outs(self, url: str) -> dict[str, str]:
        """Return the opt-outs in tdmrep.json and ai.txt that apply to a URL, and their sources.

        Source:
            TDMRep, section on the file on the origin server: the first matching rule decides.
            site.spawning.ai for ai.txt, which has the syntax of robots.txt; a page counts as
            text/html, whatever the ending of its path.
        """
        if self._obeyed.isdisjoint({TDM, AI_TXT}):
            return {}
        files = await self._files.get(url)
        opt_outs = {}
        path = path_of(url)
        rule = next((rule for rule in files.tdm if rule.matches(path)), None)
        if rule is not None and not rule.allows:
            opt_outs[TDM] = f"{TDM_FILE}, {rule.source}"
        line = files.ai.disallowed_by(url) or files.ai.disallowed_by(f"{url}.html")
        if line is not None:
            opt_outs[AI_TXT] = f"{AI_TXT}, {line}"
        return opt_outs

    async def _ask_rules(self, origin: str) -> tuple[_Rules, bool]:
        rules = await self._fetch(origin)
        refused = self._proxy.refusal(origin)
        is_broken = rules.broken if refused is None else refused.code == "net_error"
        if is_broken:
            await asyncio.sleep(_RETRY_S)
            rules = await self._fetch(origin)
            refused = self._proxy.refusal(origin)
        if refused is not None:
            raise refused
        return rules, rules.problem is None

    async def _fetch(self, origin: str) -> _Rules:
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

    async def _ask_files(self, origin: str) -> tuple[_Files, bool]:
        tdm, ai = await asyncio.gather(
            self._body(f"{origin}{TDM_FILE}", TDM), self._body(f"{origin}/{AI_TXT}", AI_TXT)
        )
        files = _Files(parse_tdm_file(tdm or b""), parse_robots(ai or b"", PRODUCT))
        return files, tdm is not None and ai is not None

    async def _body(self, url: str, opt_out: str) -> bytes | None:
        """Return the content of a file, empty if it does not exist; ``None`` if that is unknown."""
        if opt_out not in self._obeyed:
            return b""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                status, body = await self._client.get(url)
        except FAILURES:
            return None
        return None if status >= 500 or status == 429 else body


def _tls_problem(error: BaseException) -> str | None:
    """Return the problem of a certificate or handshake that caused an error, if any."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return cause.verify_message
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, _HUNG_UP):
            return cause.reason
        cause = cause.__cause__ or cause.__context__
    return None


def parse_tdm_file(content: bytes) -> tuple[Rule, ...]:
    """Parse the rules of a ``tdmrep.json``, in order; an invalid file has none."""
    try:
        entries = json.loads(content)
    except (ValueError, RecursionError):
        return ()
    rules = []
    for entry in entries if isinstance(entries, list) else ():
        location = entry.get("location") if isinstance(entry, dict) else None
        if isinstance(location, str) and location:
            value = entry.get(TDM)
            reserves = value == 1 or str(value).strip() == "1"
            source = f"location {json.dumps(location)[:200]}"
            rules.append(rule_of(location.encode(errors="replace"), source, allows=not reserves))
    return tuple(rules)
