"""The opt-outs of a whole site in files of their own: tdmrep.json and ai.txt."""

import asyncio
import json
from dataclasses import dataclass

import httpx

from now_builder.crawl.politeness.opt_outs import TDM
from now_builder.crawl.politeness.origins import OncePerOrigin
from now_builder.crawl.politeness.plain import PlainClient
from now_builder.crawl.politeness.proxy import Proxy
from now_builder.crawl.politeness.robots import PRODUCT
from now_builder.crawl.politeness.robots_rules import (
    RobotsRules,
    Rule,
    parse_robots,
    path_of,
    rule_of,
)

AI_TXT = "ai.txt"
TDM_FILE = "/.well-known/tdmrep.json"

_LIMIT = 512_000
_REDIRECTS = 5
_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class _Files:
    """What the files of an origin say; those that it lacks say nothing."""

    tdm: tuple[Rule, ...]
    ai: RobotsRules


class SiteFiles:
    """Asks each origin once for the files of the opt-outs to obey, by a proxy of its own."""

    def __init__(self, proxy: Proxy, user_agent: str, obeyed: frozenset[str]) -> None:
        self._obeyed = obeyed
        self._client = PlainClient(proxy.url, {"User-Agent": user_agent}, _TIMEOUT_S)
        self._known = OncePerOrigin(self._ask)

    async def close(self) -> None:
        """Close connections and drop what is pending."""
        await self._known.close()
        await self._client.close()

    async def opt_outs(self, url: str) -> dict[str, str]:
        """Return the opt-outs that hold for a URL, and the line or rule of each.

        Source:
            TDMRep, section on the file on the origin server: of the rules that match a path the
            first decides. For ai.txt, which is written as a robots.txt: site.spawning.ai; a page is
            text/html, whatever its path ends with.
        """
        if self._obeyed.isdisjoint({TDM, AI_TXT}):
            return {}
        files = await self._known.of(url)
        found = {}
        path = path_of(url)
        rule = next((rule for rule in files.tdm if rule.matches(path)), None)
        if rule is not None and not rule.allows:
            found[TDM] = f"{TDM_FILE}, {rule.said}"
        line = files.ai.disallowed_by(url) or files.ai.disallowed_by(f"{url}.html")
        if line is not None:
            found[AI_TXT] = f"{AI_TXT}, {line}"
        return found

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
            async with asyncio.timeout(_TIMEOUT_S):
                found = await self._client.get(url, _REDIRECTS, _LIMIT)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, TimeoutError):
            return None
        return None if found.status >= 500 or found.status == 429 else found.body


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
