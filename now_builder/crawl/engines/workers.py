"""Workers: each takes a page, asks the site, visits it, and makes its row final."""

import asyncio
import hashlib
import io
import json
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime

import imagehash
from PIL import Image

from now_builder import __version__
from now_builder.crawl.browser.browser import Browsers
from now_builder.crawl.browser.outcome import BUSY, REFUSED, TRANSIENT, Seen, Trail, VisitError
from now_builder.crawl.browser.prefetch import Prefetch
from now_builder.crawl.caption.describe import choose, describe, with_scripted
from now_builder.crawl.caption.language import detect_language
from now_builder.crawl.plan.urls import canonical
from now_builder.crawl.politeness.opt_outs import opt_outs
from now_builder.crawl.politeness.proxy import Gate, Refused
from now_builder.crawl.politeness.robots import PRODUCT, Decision, Robots
from now_builder.crawl.politeness.scheduler import Pace
from now_builder.crawl.progress import Progress
from now_builder.crawl.settings import CrawlSettings
from now_builder.crawl.storage.ledger import Ledger
from now_builder.crawl.timings import Steps
from now_builder.errors import NowError
from now_builder.formats.shard import Capture, CaptureRow, Planned, Status

_CRASH_RETRIES = 2
_BACK_OFF_S = 0.5
_BUSY_S = 10.0
_MESSAGE = 500
_GRACE_S = 150.0
"""What a visit may take beyond the page: robots.txt, a browser to be started anew."""


class Crew:
    """What all workers share.

    Args:
        settings: Of the crawl.
        ledger: Where pages are made final.
        browsers: To visit with.
        robots: To ask first.
        pace: Which page is next.
        pool: For what would hold up the others: parsing, hashing, writing.
    """

    def __init__(
        self,
        settings: CrawlSettings,
        ledger: Ledger,
        browsers: Browsers,
        robots: Robots,
        pace: Pace,
        pool: ThreadPoolExecutor,
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._browsers = browsers
        self._robots = robots
        self._pace = pace
        self._pool = pool
        self._ranks = ledger.ranks() if settings.per_host_quota else {}
        self._finishing = asyncio.Lock()
        self._put_off: Counter[str] = Counter()
        self._asked: dict[str, float] = {}
        self._opt_outs = frozenset(
            word.strip().lower() for word in settings.opt_outs.split(",") if word.strip()
        )
        self._prefetch = (
            Prefetch(settings, browsers.user_agent, self._opt_outs, pool)
            if settings.prefetch
            else None
        )

    async def work(self, gate: Gate, progress: Progress) -> None:
        """Visit page after page until none is left.

        Args:
            gate: The way out of this worker's pages.
            progress: Told of each page.
        """
        loop = asyncio.get_running_loop()
        while True:
            steps = Steps()
            with steps.step("wait"):
                line = await self._pace.take()
            if line is None:
                return
            started = time.monotonic()
            progress.in_flight += 1
            row, capture = await self._attempts(line, gate, steps)
            progress.in_flight -= 1
            pause_s = self._pause(line, row)
            if pause_s is not None:
                self._pace.give_back(line, pause_s)
                continue
            row = replace(row, elapsed_s=round(time.monotonic() - started, 3))
            await loop.run_in_executor(self._pool, self._ledger.add, line, row, capture)
            self._pace.done(line)
            progress.count(row.error)
            if self._ledger.added(line, row):
                async with self._finishing:
                    await loop.run_in_executor(self._pool, self._ledger.finish_ready)

    def _pause(self, line: Planned, row: CaptureRow) -> float | None:
        """Say how long a busy host is to be left alone before a page is asked for again."""
        if row.error not in BUSY:
            return None
        before = self._put_off[line.key]
        asked = self._asked.pop(line.key, None)
        pause_s = _BUSY_S * 2**before if asked is None else asked
        if before >= self._settings.busy_retries or pause_s > self._settings.busy_pause_s:
            return None
        self._put_off[line.key] += 1
        return pause_s

    async def _attempts(
        self, line: Planned, gate: Gate, steps: Steps
    ) -> tuple[CaptureRow, Capture | None]:
        """Visit until it works or the attempts are used up.

        A page in flight when another one took the browser down is not to blame, so that a crash of
        the whole browser has attempts of its own, in a browser that no other page is in.
        """
        attempts = 0
        alone = False
        left = Counter(dict.fromkeys(TRANSIENT, self._settings.retries))
        left["browser_crashed"] = _CRASH_RETRIES
        while True:
            row, capture = await self._attempt(line, gate, Trail(steps=steps), alone=alone)
            attempts += 1
            alone = row.error == "browser_crashed"
            if not left[row.error or ""]:
                return replace(row, attempts=attempts + self._put_off[line.key]), capture
            left[row.error or ""] -= 1
            with steps.step("retry"):
                await asyncio.sleep(_BACK_OFF_S * attempts)

    async def _attempt(
        self, line: Planned, gate: Gate, trail: Trail, *, alone: bool
    ) -> tuple[CaptureRow, Capture | None]:
        """Visit once; here, and only here, whatever goes wrong with a page becomes its row."""
        row = CaptureRow(
            line.key, line.url, line.url_canonical, line.site, "ok",
            fetched_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            browser=f"Chromium {self._browsers.version}",
            tool=f"{PRODUCT}/{__version__}",
        )  # fmt: skip
        try:
            seen = await self._see(line, gate, trail, alone=alone)
            with trail.steps.step("describe"):
                row, capture = await asyncio.get_running_loop().run_in_executor(
                    self._pool,
                    _describe,
                    row,
                    seen,
                    trail,
                    self._settings,
                    self._opt_outs,
                )
        except VisitError as problem:
            if problem.retry_after_s is not None:
                self._asked[line.key] = problem.retry_after_s
            row, capture = _failed(row, problem.error, problem.message), None
        except Refused as problem:
            row, capture = _failed(row, problem.reason, problem.detail), None
        except TimeoutError as stuck:
            # Every step has its own limit, so this is the browser's driver, not the page.
            sys.stderr.write(f"crawl: {line.url_canonical}: stuck{_where(stuck)}; new browsers\n")
            await self._browsers.reset()
            row, capture = _failed(row, "browser_crashed", f"stuck{_where(stuck)}"), None
        except NowError:
            raise  # not this page's failure: no browser, a full disk
        except Exception as problem:  # noqa: BLE001 - the one place: a page's failure is a row
            kind = f"{type(problem).__name__}: {problem}"
            row, capture = _failed(row, "internal_error", kind), None
        return replace(row, **trail.columns()), capture

    async def _see(self, line: Planned, gate: Gate, trail: Trail, *, alone: bool) -> Seen:
        """Ask the site, look by a plain request if that is wanted, and visit."""
        async with asyncio.timeout(self._settings.page_timeout_s + _GRACE_S):
            with trail.steps.step("robots"):
                trail.robots = (await self._allowed(line, trail)).note
            if self._prefetch is not None:
                with trail.steps.step("prefetch"):
                    await self._prefetch.look(line.url_canonical, gate, trail)
            return await self._browsers.visit(line.url_canonical, gate, trail, alone=alone)

    async def _allowed(self, line: Planned, trail: Trail) -> Decision:
        """Ask what may be asked without visiting the page.

        Raises:
            VisitError: If it is not to be visited.
            Refused: If its host cannot be reached or must not be.
        """
        if canonical(line.url_canonical) is None:
            raise VisitError("bad_url", "not an http(s) URL")
        quota = self._settings.per_host_quota
        if quota and self._ranks[line.key] >= quota and not self._pace.is_local(line.site):
            raise VisitError("quota", f"more than {quota} pages of one host")
        if not self._settings.robots:
            return Decision("allowed", "ignored")
        decision = await self._robots.decide(line.url_canonical)
        if decision.delay_s:
            self._pace.slow_down(line.site, decision.delay_s)
        if decision.verdict != "allowed":
            trail.robots = decision.note
            raise VisitError(decision.verdict, decision.note)
        return decision


def _failed(row: CaptureRow, error: str, message: str) -> CaptureRow:
    status: Status = "refused" if error in REFUSED else "failed"
    return replace(row, status=status, error=error, error_message=message[:_MESSAGE] or None)


def _where(error: BaseException) -> str:
    """Say where a cancelled visit was waiting."""
    cause = error.__cause__ or error.__context__
    frames = traceback.extract_tb(cause.__traceback__) if cause is not None else []
    ours = [frame for frame in frames if "now_builder" in frame.filename]
    return f" in {ours[-1].name}, line {ours[-1].lineno}" if ours else ""


def _describe(
    row: CaptureRow,
    seen: Seen,
    trail: Trail,
    settings: CrawlSettings,
    obeyed: frozenset[str],
) -> tuple[CaptureRow, Capture]:
    """Read off what can be without the browser: caption, language, hashes."""
    fallback = settings.caption_fallback
    page = describe(seen.html, trail.content_type, fallback=fallback)
    said = opt_outs(seen.robots_tags, page.metas, seen.tdm) & obeyed
    if said:
        raise VisitError("opt_out", ", ".join(sorted(said)))
    candidates = with_scripted(page, seen.scripted)
    caption, source = choose(candidates, fallback=fallback)
    with Image.open(io.BytesIO(seen.screenshot)) as picture:
        phash = str(imagehash.phash(picture))
        screenshot = seen.screenshot if settings.image == "png" else _to_webp(picture)
    described = replace(
        row,
        charset=page.charset,
        charset_source=page.charset_source,
        title=page.title,
        caption=caption,
        caption_source=source,
        candidates=json.dumps(candidates, ensure_ascii=False),
        lang=detect_language(" ".join(filter(None, (caption, page.title))), page.lang),
        lang_declared=page.lang,
        sha256=hashlib.sha256(screenshot).hexdigest(),
        html_sha256=hashlib.sha256(seen.html).hexdigest(),
        phash=phash,
        load_state="settled" if seen.settled else "partial",
        overlays=seen.overlays,
    )
    exchanges = seen.exchanges if settings.warc else ()
    return described, Capture(row.key, screenshot, seen.html, seen.elements, exchanges)


def _to_webp(picture: Image.Image) -> bytes:
    """Encode without loss."""
    encoded = io.BytesIO()
    picture.convert("RGB").save(encoded, "WEBP", lossless=True, method=2)
    return encoded.getvalue()
