"""Plain requests before the browser's, so that what is no page never takes a browser."""

import asyncio
import ssl
from concurrent.futures import ThreadPoolExecutor

import httpx

from now_builder.crawl.browser.response import check_answer, last
from now_builder.crawl.browser.visit import BUSY, Ask, VisitError, VisitRecord, refuse
from now_builder.crawl.caption.describe import describe
from now_builder.crawl.politeness.opt_outs import opt_outs
from now_builder.crawl.politeness.plain import Answer, PlainClient
from now_builder.crawl.politeness.proxy import Proxy
from now_builder.crawl.settings import CrawlSettings

_REDIRECTS = 10
_SHARE = 0.5
"""Of a page's time; what takes longer is left to the browser."""
_FINAL = BUSY | {
    "http_401", "http_404", "http_410", "http_451", "not_html", "download", "opt_out",
    "no_description",
}  # fmt: skip
"""What a browser would get as well; other answers may be meant for plain requests alone."""


class Prefetch:
    """Checks pages by a plain request; ``obeyed`` are the opt-outs to obey."""

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
        self._most = settings.max_bytes // 2

    async def check(self, url: str, proxy: Proxy, record: VisitRecord, ask: Ask) -> None:
        """Return if the page is worth a browser, or if that is not known.

        ``ask`` tells of each URL on the way whether it may be requested.

        Raises:
            VisitError: If there would be nothing to capture: no HTML, an opt-out, no description.
        """
        proxy.begin(self._settings.max_bytes)
        client = PlainClient(proxy.url, self._headers, self._settings.page_timeout_s, self._tls)
        try:
            async with asyncio.timeout(_SHARE * self._settings.page_timeout_s):
                answer = await client.get(url, _REDIRECTS, self._most, ask)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, TimeoutError, VisitError):
            return  # the browser will say it better
        finally:
            await client.close()
        try:
            await self._check(answer, record.tdm_file.get(answer.url))
        except VisitError as problem:
            if problem.error not in _FINAL:
                return
            record.redirects = answer.redirects
            record.final_url = answer.url
            record.http_status = answer.status
            record.content_type = ", ".join(answer.headers.get("content-type", ())) or None
            raise

    async def _check(self, answer: Answer, tdm_file: str | None) -> None:
        check_answer(answer.status, answer.headers)
        page = await asyncio.get_running_loop().run_in_executor(
            self._pool, describe, answer.body, last(answer.headers, "content-type") or None
        )
        refuse(opt_outs(answer.headers, page.metas, tdm_file=tdm_file), self._obeyed)
        if len(answer.body) < self._most and page.caption is None and not page.refreshes:
            raise VisitError("no_description", "none in the source; scripts were not run")
