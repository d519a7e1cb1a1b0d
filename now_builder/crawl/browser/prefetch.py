"""A plain request before the browser's, so that what cannot become a capture never costs a page."""

import asyncio
import ssl
from concurrent.futures import ThreadPoolExecutor

import httpx

from now_builder.crawl.browser.outcome import BUSY, Trail, VisitError
from now_builder.crawl.browser.tab import check_answer
from now_builder.crawl.caption.describe import describe
from now_builder.crawl.politeness.opt_outs import opt_outs
from now_builder.crawl.politeness.proxy import Gate
from now_builder.crawl.settings import CrawlSettings

_REDIRECTS = 10
_SHARE = 0.5
"""Of a page's time; what takes longer is left to the browser."""
_FINAL = {"http_401", "http_404", "http_410", "http_451", "not_html", "download"} | BUSY
"""Answers that a browser would get as well; others may be meant for plain requests alone."""


class Prefetch:
    """Looks at pages before a browser does.

    Args:
        settings: Of the crawl.
        user_agent: The browser's.
        obeyed: Opt-outs to obey.
        pool: To parse in.
    """

    def __init__(
        self,
        settings: CrawlSettings,
        user_agent: str,
        obeyed: frozenset[str],
        pool: ThreadPoolExecutor,
    ) -> None:
        self._settings = settings
        self._headers = {"User-Agent": user_agent, "Accept": "text/html,*/*;q=0.8"}
        self._obeyed = obeyed
        self._pool = pool
        self._tls = ssl.create_default_context()

    async def look(self, url: str, gate: Gate, trail: Trail) -> None:
        """Return if the page deserves a browser, or if that cannot be told.

        Args:
            url: Canonical.
            gate: The page's way out.
            trail: Filled where the page ends here.

        Raises:
            VisitError: If there would be nothing to capture: no HTML, an opt-out, no description.
        """
        gate.begin(self._settings.max_bytes)
        try:
            async with asyncio.timeout(_SHARE * self._settings.page_timeout_s):
                response, body = await self._get(url, gate)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError):
            return  # the browser will say it better
        try:
            check_answer(response.status_code, {k.lower(): v for k, v in response.headers.items()})
        except VisitError as problem:
            if problem.error in _FINAL:
                _note(trail, response)
                raise
            return
        content_type = response.headers.get("content-type")
        page = await asyncio.get_running_loop().run_in_executor(
            self._pool, describe, body, content_type
        )
        said = opt_outs(
            response.headers.get_list("x-robots-tag"),
            page.metas,
            response.headers.get("tdm-reservation"),
        )
        if said & self._obeyed:
            _note(trail, response)
            raise VisitError("opt_out", ", ".join(sorted(said & self._obeyed)))
        if len(body) < self._most and page.caption is None and not page.refreshes:
            _note(trail, response)
            raise VisitError("no_description", "none in the source; scripts were not run")

    @property
    def _most(self) -> int:
        return self._settings.max_bytes // 2

    async def _get(self, url: str, gate: Gate) -> tuple[httpx.Response, bytes]:
        async with (
            httpx.AsyncClient(
                proxy=gate.url,
                trust_env=False,
                verify=self._tls,
                timeout=self._settings.page_timeout_s,
                follow_redirects=True,
                max_redirects=_REDIRECTS,
                headers=self._headers,
            ) as client,
            client.stream("GET", url) as response,
        ):
            body = bytearray()
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) >= self._most:
                    break
            return response, bytes(body)


def _note(trail: Trail, response: httpx.Response) -> None:
    trail.redirects = [str(hop.url) for hop in response.history]
    trail.final_url = str(response.url)
    trail.http_status = response.status_code
    trail.content_type = response.headers.get("content-type")
