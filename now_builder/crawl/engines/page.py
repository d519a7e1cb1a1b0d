"""Visit one page: robots.txt, the browser, the caption, the row."""

import asyncio
import hashlib
import io
import json
import logging
import traceback
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

import imagehash

from now_builder import __version__
from now_builder.crawl.browser.pool import BrowserPool
from now_builder.crawl.browser.visit import (
    REFUSED,
    PutOff,
    VisitError,
    VisitRecord,
    VisitResult,
    refuse,
)
from now_builder.crawl.caption.charset import misread
from now_builder.crawl.caption.describe import choose, describe, with_scripted
from now_builder.crawl.caption.language import detect_language
from now_builder.crawl.politeness.opt_outs import TDM, opt_outs
from now_builder.crawl.politeness.proxy import Proxy
from now_builder.crawl.politeness.resolver import Refused
from now_builder.crawl.politeness.robots import PRODUCT, Decision
from now_builder.crawl.politeness.scheduler import Scheduler
from now_builder.crawl.politeness.site_rules import SiteRules
from now_builder.crawl.settings import CrawlSettings
from now_builder.errors import NowError
from now_builder.formats.shard import Capture, CaptureRow, Planned, Status
from now_builder.urls import canonical, site_of

_log = logging.getLogger(__name__)
_MESSAGE = 500
_GRACE_S = 150.0
"""Seconds of a visit besides those of the page: for robots.txt, for starting a browser."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """Outcome of one visit: the row, final unless the visit is repeated, and the capture.

    ``retry_after_s`` is the pause that a busy site asks for, ``put_off`` the host for whose turn
    the page must wait.
    """

    row: CaptureRow
    capture: Capture | None
    retry_after_s: float | None = None
    put_off: str | None = None


class PageVisitor:
    """Visits pages, and turns every failure of a page into its row.

    The scheduler learns the crawl delays of sites, and keeps the pauses of hosts to which pages
    lead; ``ranks`` number the pages of each host, for the quota; parsing and hashing would hold up
    the other pages, so that threads of ``pool`` do them.
    """

    def __init__(
        self,
        settings: CrawlSettings,
        browsers: BrowserPool,
        rules: SiteRules,
        scheduler: Scheduler,
        ranks: Mapping[str, int],
        pool: ThreadPoolExecutor,
    ) -> None:
        self._settings = settings
        self._browsers = browsers
        self._rules = rules
        self._scheduler = scheduler
        self._ranks = ranks
        self._pool = pool
        self._opt_outs = settings.obeyed_opt_outs()

    async def visit(
        self, line: Planned, proxy: Proxy, record: VisitRecord, *, alone: bool
    ) -> Attempt:
        """Visit once; here, and only here, a page's failure becomes its row."""
        row = CaptureRow(
            line.key, line.url, line.url_canonical, line.site, "ok",
            fetched_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            browser=f"Chromium {self._browsers.version}",
            tool=f"{PRODUCT}/{__version__}",
        )  # fmt: skip
        capture: Capture | None = None
        retry_after_s: float | None = None
        put_off: str | None = None
        record.hosts.add(self._scheduler.queue_of(line))
        try:
            result = await self._load(line, proxy, record, alone=alone)
            row, capture = await asyncio.get_running_loop().run_in_executor(
                self._pool, _describe, row, result, record, self._settings, self._opt_outs
            )
        except VisitError as problem:
            retry_after_s = problem.retry_after_s
            put_off = problem.site if isinstance(problem, PutOff) else None
            row = _failed(row, problem.error, problem.message)
        except Refused as problem:
            row = _failed(row, problem.reason, problem.detail)
        except TimeoutError as stuck:
            # Every step has its own limit, so this is the browser's driver, not the page.
            _log.warning("crawl: %s: stuck%s; new browsers", line.url_canonical, _where(stuck))
            await self._browsers.reset()
            row = _failed(row, "browser_crashed", f"stuck{_where(stuck)}")
        except NowError:
            raise  # not this page's failure: no browser, a full disk
        except Exception as problem:  # noqa: BLE001 - the one place: a page's failure is a row
            row = _failed(row, "internal_error", f"{type(problem).__name__}: {problem}")
        return Attempt(replace(row, **record.columns()), capture, retry_after_s, put_off)

    async def _load(
        self, line: Planned, proxy: Proxy, record: VisitRecord, *, alone: bool
    ) -> VisitResult:
        """Ask the site whether the page may be visited, and load it in a browser."""
        ask = partial(self._ask, line, record)
        async with asyncio.timeout(self._settings.page_timeout_s + _GRACE_S):
            record.robots = (await self._allowed(line, record)).note
            return await self._browsers.visit(line.url_canonical, proxy, record, ask, alone=alone)

    async def _allowed(self, line: Planned, record: VisitRecord) -> Decision:
        """Raise an error if a page is not to be visited, or its host cannot be reached."""
        if canonical(line.url_canonical) is None:
            raise VisitError("bad_url", "not an http(s) URL")
        quota = self._settings.per_host_quota
        if quota and self._ranks[line.key] >= quota and not self._scheduler.is_local(line.site):
            raise VisitError("quota", f"more than {quota} pages of one host")
        return await self._decide(line, record, line.url_canonical.partition("#")[0])

    async def _ask(
        self, line: Planned, record: VisitRecord, url: str, *, frame: bool = False
    ) -> None:
        """Raise a VisitError if a URL to which a page leads is not to be requested."""
        url = canonical(url) or url
        try:
            if not frame:
                await self._decide(line, record, url)
            elif (decision := await self._rules.robots(url)).verdict != "allowed":
                raise VisitError(decision.verdict, decision.note)
        except Refused as refused:
            raise VisitError(refused.reason, refused.detail) from None

    async def _decide(self, line: Planned, record: VisitRecord, url: str) -> Decision:
        """Raise an error if a URL is not to be requested, or not now; wait for its host's turn."""
        decision = await self._rules.decide(url)
        site = site_of(url)
        if decision.delay_s:
            self._scheduler.slow_down(site, decision.delay_s)
        if decision.verdict != "allowed":
            record.robots = decision.note
            raise VisitError(decision.verdict, decision.note)
        if TDM in decision.opt_outs:  # the page itself may take it back
            record.tdm_file[url] = decision.opt_outs[TDM]
        refuse(decision.opt_outs, self._opt_outs - {TDM})
        if site not in record.hosts:
            pause_s = self._scheduler.turn(line, site)
            if pause_s is None:
                raise PutOff(site)
            record.hosts.add(site)
            await asyncio.sleep(pause_s)
        return decision


def _failed(row: CaptureRow, error: str, message: str) -> CaptureRow:
    status: Status = "refused" if error in REFUSED else "failed"
    return replace(row, status=status, error=error, error_message=message[:_MESSAGE] or None)


def _where(error: BaseException) -> str:
    """Return the function and line in which a cancelled visit was waiting."""
    cause = error.__cause__ or error.__context__
    frames = traceback.extract_tb(cause.__traceback__) if cause is not None else []
    ours = [frame for frame in frames if "now_builder" in frame.filename]
    return f" in {ours[-1].name}, line {ours[-1].lineno}" if ours else ""


def _describe(
    row: CaptureRow,
    result: VisitResult,
    record: VisitRecord,
    settings: CrawlSettings,
    obeyed: frozenset[str],
) -> tuple[CaptureRow, Capture]:
    """Complete the row without the browser: caption, language, hashes."""
    page = describe(result.html, record.content_type, result.charset)
    tdm_file = record.tdm_file.get(canonical(result.url) or result.url)
    refuse(opt_outs(result.headers, page.metas, result.metas, tdm_file), obeyed)
    scripted = [text for name, text in result.metas if name.strip().lower() == "description"]
    candidates = with_scripted(page, scripted)
    caption, source = choose(candidates)
    seen = (element.text for element in result.elements if element.visible)
    garbled = misread(seen, page.charset, result.charset)
    screenshot = result.screenshot
    if settings.image == "webp":
        encoded = io.BytesIO()
        result.picture.convert("RGB").save(encoded, "WEBP", lossless=True, method=2)
        screenshot = encoded.getvalue()
    ink, ink_middle = result.ink
    described = replace(
        row,
        charset=page.charset,
        charset_source=page.charset_source,
        charset_browser=result.charset if garbled else page.charset,
        title=page.title,
        caption=caption,
        caption_source=source,
        candidates=json.dumps(candidates, ensure_ascii=False),
        lang=detect_language(" ".join(filter(None, (caption, page.title))), page.lang),
        lang_declared=page.lang,
        sha256=hashlib.sha256(screenshot).hexdigest(),
        html_sha256=hashlib.sha256(result.html).hexdigest(),
        phash=str(imagehash.phash(result.picture)),
        ink=ink,
        ink_middle=ink_middle,
        load_state="settled" if result.settled else "partial",
        overlays=result.overlays,
    )
    return described, Capture(row.key, screenshot, result.html, result.elements)
