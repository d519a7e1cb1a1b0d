"""All that a site says of its pages before one is visited: robots.txt, and opt-outs in files."""

from dataclasses import replace

from now_builder.crawl.politeness.proxy import Proxy
from now_builder.crawl.politeness.robots import Decision, Robots
from now_builder.crawl.politeness.site_files import SiteFiles

_IGNORED = Decision("allowed", "ignored")


class SiteRules:
    """Decides about URLs; robots.txt only counts, and is only asked for, if ``obey_robots``.

    Args:
        proxy: A proxy of its own, through which the files are asked for.
        obeyed: Opt-outs to obey; the files of others are not asked for.
    """

    def __init__(
        self, proxy: Proxy, user_agent: str, obeyed: frozenset[str], *, obey_robots: bool
    ) -> None:
        self._robots = Robots(proxy, user_agent) if obey_robots else None
        self._files = SiteFiles(proxy, user_agent, obeyed)

    async def close(self) -> None:
        """Close connections and drop what is pending."""
        await self._files.close()
        if self._robots is not None:
            await self._robots.close()

    async def robots(self, url: str) -> Decision:
        """Decide by robots.txt alone.

        Raises:
            Refused: If the host itself cannot be reached or must not be.
        """
        return _IGNORED if self._robots is None else await self._robots.decide(url)

    async def decide(self, url: str) -> Decision:
        """Decide by robots.txt, and find the opt-outs that hold for a URL.

        A site that disallows the URL is asked for nothing else.

        Raises:
            Refused: If the host itself cannot be reached or must not be.
        """
        decision = await self.robots(url)
        if decision.verdict != "allowed":
            return decision
        said = decision.opt_outs | await self._files.opt_outs(url)
        return replace(decision, opt_outs=said)
