"""A pool of Chromium browsers that act as a phone; used or crashed ones are replaced."""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from playwright.async_api import Browser, BrowserContext, Page
from playwright.async_api import Error as PlaywrightError

from now_builder import __version__
from now_builder.crawl.browser.processes import Driver, DriverError, end_process, limit_memory
from now_builder.crawl.browser.tab import MAX_BYTES, SCALE, SCREEN, Tab, UrlCheck
from now_builder.crawl.politeness.proxy import Proxy
from now_builder.crawl.politeness.robots_rules import PRODUCT
from now_builder.crawl.settings import CrawlSettings
from now_builder.crawl.visit import PageError, Visit
from now_builder.errors import CrawlError
from now_builder.machine.chromium import find_chromium

_log = logging.getLogger(__name__)

_PAGES_PER_BROWSER = 4
_CLOSE_S = 10.0
_READY_S = 20.0
"""Timeout in seconds for opening or closing a context."""

_PROMPT_S = 3.0
_STUCK = frozenset({"timeout", "renderer_hung"})
"""Errors after which a browser is replaced unless it answers within ``_PROMPT_S``."""

_LAUNCH_S = 60.0
_SUSPECT_LAUNCH_S = 15.0
"""Timeout in seconds for a start, and for one after a failure, when the driver may be stuck."""

_WATCH_S, _LONGEST_WATCH_S = 0.5, 2.0
"""Seconds between measurements of memory: a page can use a gigabyte within a second."""

_MOST_PAGES = 300
"""Number of pages after which a browser is replaced, as its memory only grows."""

_PAGE_MB = 1500
"""Maximum memory of a process, which mostly belongs to one page; it is killed if it uses more."""

_MOST_MB, _FEWEST_PAGES = 2000, 20
"""Memory of a browser's processes that replaces it earlier, and minimum pages before that, so that
not each large page needs a new browser."""

_NOWHERE = "http://127.0.0.1:9"
"""Proxy of the browser's own requests, which thus fail: nothing listens there."""

_DRIVER_ERRORS = (PlaywrightError, TimeoutError, OSError)

_ARGUMENTS = (
    "--block-new-web-contents",
    "--disable-quic",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    f"--proxy-server={_NOWHERE}",
    "--proxy-bypass-list=<-loopback>",
    "--font-render-hinting=none",
    "--hide-scrollbars",
    "--mute-audio",
    "--no-pings",
)

_UNWANTED_ARGUMENTS = ("--disable-ipc-flooding-protection", "--disable-popup-blocking")
"""Default arguments of Playwright that let a loop in one page block all pages of a browser."""


@dataclass(slots=True, eq=False)
class _Launched:
    """A running browser: its process, number of pages so far and in flight, and memory."""

    browser: Browser
    process: psutil.Process | None = None
    started: int = 0
    in_flight: int = 0
    memory_mb: float = 0.0


def user_agent(version: str, url: str) -> str:
    """Return a phone's user agent that names this crawler and a page about it."""
    contact = f" (+{url})" if url else ""
    return (
        "Mozilla/5.0 (Linux; Android 10; K) AppleWebKit/537.36 (KHTML, like Gecko) "
        f"Chrome/{version.split('.', maxsplit=1)[0]}.0.0.0 Mobile Safari/537.36 "
        f"{PRODUCT}/{__version__}{contact}"
    )


class BrowserPool:
    """Runs as many browsers as the pages in flight need; each visit has its own context."""

    def __init__(self, settings: CrawlSettings, concurrency: int) -> None:
        self._settings = settings
        self._places: list[_Launched | None] = [None] * -(-concurrency // _PAGES_PER_BROWSER)
        self._lock = asyncio.Lock()
        self._extra = asyncio.Semaphore(len(self._places))
        self._driver: Driver | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._alive: dict[int, _Launched] = {}
        self._watching: asyncio.Task[None] | None = None
        self._suspect = False
        self._path = find_chromium()
        self.version = ""

    async def __aenter__(self) -> "BrowserPool":  # noqa: PYI034 - beartype reads no Self here
        """Start the driver and a first browser, so that a missing browser is reported early."""
        if os.geteuid() == 0:
            _log.warning(
                "crawl: running as root, so Chromium's sandbox is off. Run as another user to "
                "enable it (for example: sudo -u nobody -H now-builder crawl ...)"
            )
        try:
            self._places[0] = await self._launch()
        except BaseException:
            await self._stop_driver()
            raise
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the browsers; kill those that do not close in time."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        for launched in filter(None, self._places):
            self._spawn(self._end(launched))
        await asyncio.gather(*self._closing, return_exceptions=True)
        await self._stop_driver()

    @property
    def user_agent(self) -> str:
        """User agent of all requests."""
        return user_agent(self.version, self._settings.user_agent_url)

    async def visit(
        self, visit: Visit, proxy: Proxy, check_url: UrlCheck, *, alone: bool = False
    ) -> None:
        """Visit a page in its own context and fill in ``visit``.

        ``check_url`` is called before each document is requested. With ``alone``, the page has its
        own browser, as after a crash of a shared one.

        Raises:
            PageError: If there is nothing to capture.
            CrawlError: If no browser starts.
        """
        async with self._extra if alone else nullcontext():
            launched = await (self._launch() if alone else self._acquire())
            launched.in_flight += 1
            proxy.begin(MAX_BYTES)
            context: BrowserContext | None = None
            captured = False
            try:
                async with self._browser_at_fault(launched):
                    context = await launched.browser.new_context(
                        viewport=SCREEN,  # type: ignore[arg-type]
                        screen=SCREEN,  # type: ignore[arg-type]
                        device_scale_factor=SCALE,
                        is_mobile=True,
                        has_touch=True,
                        user_agent=self.user_agent,
                        color_scheme="light",
                        reduced_motion="reduce",
                        service_workers="block",
                        accept_downloads=False,
                        proxy={"server": proxy.url, "bypass": "<-loopback>"},
                    )
                    page = await context.new_page()
                    context.on("page", lambda popup: self._spawn(_close(popup)))
                    tab = Tab(page, proxy, visit, check_url, self._settings)
                    await tab.prepare()
                await tab.capture()
                captured = True
            except PageError as problem:
                if problem.code in _STUCK and launched in self._places:
                    async with self._browser_at_fault(launched, _PROMPT_S):
                        await launched.browser.new_browser_cdp_session()
                raise
            finally:
                proxy.cut()
                # A browser that dies after the capture does no harm.
                with suppress(PageError) if captured else nullcontext():
                    await self._release(launched, context)

    @asynccontextmanager
    async def _browser_at_fault(
        self, launched: _Launched, seconds: float = _READY_S
    ) -> AsyncIterator[None]:
        """Treat a failure as a crash of the browser, not of the page; remove it from the pool."""
        try:
            async with asyncio.timeout(seconds):
                yield
        except (PlaywrightError, TimeoutError) as error:
            self._places = [None if place is launched else place for place in self._places]
            self._suspect = True
            problem = str(error).partition("\n")[0] or f"nothing within {seconds:g} s"
            raise PageError("browser_crashed", problem) from None

    async def reset(self) -> None:
        """Stop the driver and with it the browsers; the next visit starts new ones."""
        self._places = [None] * len(self._places)
        await self._stop_driver()

    async def _acquire(self) -> _Launched:
        """Return the least busy browser; replace it after a crash or after enough pages."""
        async with self._lock:
            busy = [launched.in_flight if launched else 0 for launched in self._places]
            number = busy.index(min(busy))
            launched = self._places[number]
            if launched is not None:
                most_pages = _FEWEST_PAGES if launched.memory_mb > _MOST_MB else _MOST_PAGES
                if launched.started >= most_pages or not launched.browser.is_connected():
                    self._places[number] = None
                    if not launched.in_flight:
                        self._spawn(self._end(launched))
                    launched = None
            if launched is None:
                launched = self._places[number] = await self._launch()
            launched.started += 1
            return launched

    async def _watch(self) -> None:
        """Measure and limit the memory of the browsers; less often if measuring is slow."""
        loop = asyncio.get_running_loop()
        pause_s = _WATCH_S
        with ThreadPoolExecutor(1) as pool:  # the loop's default pool may be busy
            while True:
                await asyncio.sleep(pause_s)
                start = time.monotonic()
                sizes = await loop.run_in_executor(pool, limit_memory, list(self._alive), _PAGE_MB)
                for pid, launched in self._alive.items():
                    launched.memory_mb = sizes.get(pid, 0.0)
                pause_s = min(max(_WATCH_S, 20 * (time.monotonic() - start)), _LONGEST_WATCH_S)

    async def _release(self, launched: _Launched, context: BrowserContext | None) -> None:
        """Close a context; a failure counts as a crash of the browser."""
        try:
            if context is not None:
                async with self._browser_at_fault(launched):
                    await context.close()
        finally:
            launched.in_flight -= 1
            if not launched.in_flight and launched not in self._places:
                self._spawn(self._end(launched))

    async def _end(self, launched: _Launched) -> None:
        await _close(launched.browser)
        if launched.process is not None:
            self._alive.pop(launched.process.pid, None)
            await asyncio.to_thread(end_process, launched.process)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _launch(self) -> _Launched:
        try:
            launched = await self._start()
        except _DRIVER_ERRORS:
            await self._stop_driver()  # the driver itself may have died or be stuck
            try:
                launched = await self._start()
            except _DRIVER_ERRORS as error:
                raise CrawlError(_launch_problem(self._path, error)) from None
        self.version = launched.browser.version
        if launched.process is not None:
            self._alive[launched.process.pid] = launched
        return launched

    async def _start(self) -> _Launched:
        seconds, self._suspect = _SUSPECT_LAUNCH_S if self._suspect else _LAUNCH_S, False
        async with asyncio.timeout(seconds):
            if self._driver is None:
                self._driver = await Driver.start()
            browser = await self._driver.playwright.chromium.launch(
                executable_path=self._path,
                chromium_sandbox=os.geteuid() != 0,
                args=list(_ARGUMENTS),
                ignore_default_args=list(_UNWANTED_ARGUMENTS),
                handle_sigint=False,
                handle_sigterm=False,
                handle_sighup=False,
            )
            return _Launched(browser, await _process_of(browser))

    async def _stop_driver(self) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            await driver.stop()


def _launch_problem(path: Path | None, error: BaseException) -> str:
    if path is None:
        return "no Chromium found. Run `now-builder doctor` for the command that installs it"
    lines = [line.strip() for line in (str(error) or "timeout").splitlines() if line.strip()]
    program = "Playwright's driver" if isinstance(error, DriverError) else path
    return f"{program} does not start ({' | '.join(lines[:3])[:300]}). Run `now-builder doctor`"


async def _process_of(browser: Browser) -> psutil.Process | None:
    """Return the process of a browser; ``None`` if it is unknown."""
    with suppress(PlaywrightError, psutil.Error):
        session = await browser.new_browser_cdp_session()
        answer = await session.send("SystemInfo.getProcessInfo")
        await session.detach()
        for process in answer["processInfo"]:
            if process["type"] == "browser":
                return psutil.Process(process["id"])
    return None


async def _close(target: Browser | Page) -> None:
    with suppress(*_DRIVER_ERRORS):
        await asyncio.wait_for(target.close(), _CLOSE_S)
