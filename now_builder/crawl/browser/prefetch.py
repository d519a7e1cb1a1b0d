"""Plain requests before the browser's, so that what is no page never takes a browser."""

import asyncio
import ssl
from concurrent.futures import ThreadPoolExecutor

import httpx

from now_builder.crawl.browser.tab import check_answer
from now_builder.crawl.browser.visit import BUSY, Ask, VisitError, VisitRecord
from now_builder.crawl.caption.describe import describe
from now_builder.crawl.politeness.opt_outs import opt_outs
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
        try:
            async with asyncio.timeout(_SHARE * self._settings.page_timeout_s):
                response, body = await self._get(url, proxy, ask)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, VisitError):
            return  # the browser will say it better
        try:
            await self._check(response, body)
        except VisitError as problem:
            if problem.error not in _FINAL:
                return
            record.redirects = [str(hop.url) for hop in response.history]
            record.final_url = str(response.url)
            record.http_status = response.status_code
            record.content_type = response.headers.get("content-type")
            raise

    async def _check(self, response: httpx.Response, body: bytes) -> None:
        headers = response.headers
        check_answer(response.status_code, dict(headers))
        page = await asyncio.get_running_loop().run_in_executor(
            self._pool, describe, body, headers.get("content-type")
        )
        said = opt_outs(
            headers.get_list("x-robots-tag"), page.metas, headers.get("tdm-reservation")
        )
        if said & self._obeyed:
            raise VisitError("opt_out", ", ".join(sorted(said & self._obeyed)))
        if len(body) < self._most and page.caption is None and not page.refreshes:
            raise VisitError("no_description", "none in the source; scripts were not run")

    async def _get(self, url: str, proxy: Proxy, ask: Ask) -> tuple[httpx.Response, bytes]:
        async def on_request(request: httpx.Request) -> None:
            await ask(str(request.url))

        async with (
            httpx.AsyncClient(
                proxy=proxy.url,
                trust_env=False,
                verify=self._tls,
                timeout=self._settings.page_timeout_s,
                follow_redirects=True,
                max_redirects=_REDIRECTS,
                headers=self._headers,
                event_hooks={"request": [on_request]},
            ) as client,
            client.stream("GET", url) as response,
        ):
            body = bytearray()
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) >= self._most:
                    break
            return response, bytes(body)
