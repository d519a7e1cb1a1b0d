"""The rules of a site for its pages: robots.txt, and opt-outs in tdmrep.json and ai.txt."""

import asyncio
import json
from dataclasses import dataclass, replace

from now_builder.crawl.politeness.opt_outs import TDM
from now_builder.crawl.politeness.origins import OncePerOrigin
from now_builder.crawl.politeness.plain import FAILURES, TIMEOUT_S, PlainClient
from now_builder.crawl.politeness.proxy import Proxy
from now_builder.crawl.politeness.robots import PRODUCT, Decision, Robots
from now_builder.crawl.politeness.robots_rules import (
    RobotsRules,
    Rule,
    parse_robots,
    path_of,
    rule_of,
)

AI_TXT = "ai.txt"
TDM_FILE = "/.well-known/tdmrep.json"

_IGNORED = Decision("allowed", "ignored")


@dataclass(frozen=True, slots=True)
class _Files:
    """The rules in the files of an origin; a missing file has none."""

    tdm: tuple[Rule, ...]
    ai: RobotsRules


class SiteRules:
    """Decides about URLs by what their site says; each origin is asked once for each file.

    Args:
        proxy: A proxy of its own, through which the files are requested.
        obeyed: Opt-outs to obey; the files of others are not requested.
        obey_robots: Whether robots.txt is requested and obeyed.
    """

    def __init__(
        self, proxy: Proxy, user_agent: str, obeyed: frozenset[str], *, obey_robots: bool
    ) -> None:
        self._robots = Robots(proxy, user_agent) if obey_robots else None
        self._obeyed = obeyed
        self._client = PlainClient(proxy.url, user_agent)
        self._known = OncePerOrigin(self._ask)

    async def close(self) -> None:
        """Close connections and drop pending requests."""
        await self._known.close()
        await self._client.close()
        if self._robots is not None:
            await self._robots.close()

    async def robots(self, url: str) -> Decision:
        """Decide by robots.txt alone."""
        return _IGNORED if self._robots is None else await self._robots.decide(url)

    async def decide(self, url: str) -> Decision:
        """Decide by robots.txt, and find the opt-outs that hold for a URL.

        A site that disallows the URL is asked for nothing else.
        """
        decision = await self.robots(url)
        if decision.verdict != "allowed":
            return decision
        return replace(decision, opt_outs=decision.opt_outs | await self.opt_outs(url))

    async def opt_outs(self, url: str) -> dict[str, str]:
        """Return the opt-outs in files of their own that hold for a URL, and the line of each.

        Source:
            TDMRep, section on the file on the origin server: of the rules that match a path the
            first decides. For ai.txt, which is written as a robots.txt: site.spawning.ai; a page is
            text/html, whatever its path ends with.
        """
        if self._obeyed.isdisjoint({TDM, AI_TXT}):
            return {}
        files = await self._known.of(url)
        opt_outs = {}
        path = path_of(url)
        rule = next((rule for rule in files.tdm if rule.matches(path)), None)
        if rule is not None and not rule.allows:
            opt_outs[TDM] = f"{TDM_FILE}, {rule.said}"
        line = files.ai.disallowed_by(url) or files.ai.disallowed_by(f"{url}.html")
        if line is not None:
            opt_outs[AI_TXT] = f"{AI_TXT}, {line}"
        return opt_outs

    async def _ask(self, origin: str) -> tuple[_Files, bool]:
        tdm, ai = await asyncio.gather(
            self._body(f"{origin}{TDM_FILE}", TDM), self._body(f"{origin}/{AI_TXT}", AI_TXT)
        )
        files = _Files(parse_tdm_file(tdm or b""), parse_robots(ai or b"", PRODUCT))
        return files, tdm is not None and ai is not None

    async def _body(self, url: str, opt_out: str) -> bytes | None:
        """Return a file, empty if there is none; ``None`` if that is not known."""
        if opt_out not in self._obeyed:
            return b""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                status, body = await self._client.get(url)
        except FAILURES:
            return None
        return None if status >= 500 or status == 429 else body


def parse_tdm_file(content: bytes) -> tuple[Rule, ...]:
    """Parse the rules of a ``tdmrep.json``, in order; one that is no such file has none."""
    try:
        listed = json.loads(content)
    except (ValueError, RecursionError):
        return ()
    rules = []
    for entry in listed if isinstance(listed, list) else ():
        location = entry.get("location") if isinstance(entry, dict) else None
        if isinstance(location, str) and location:
            value = entry.get(TDM)
            reserves = value == 1 or str(value).strip() == "1"
            said = f"location {json.dumps(location)[:200]}"
            rules.append(rule_of(location.encode(errors="replace"), said, allows=not reserves))
    return tuple(rules)
