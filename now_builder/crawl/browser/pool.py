"""A pool of Chromium browsers that act as a phone, replaced when spent or crashed."""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

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
"""Time for an empty page, and for its end."""

_PROMPT_S = 3.0
_STUCK = frozenset({"timeout", "renderer_hung"})
"""Errors after which a browser must answer promptly, or it is replaced as the one at fault."""

_LAUNCH_S = 60.0
_SUSPECT_LAUNCH_S = 15.0
"""Seconds for a start, and for one after a failure to answer: a stuck driver is then replaced."""

_WATCH_S, _LONGEST_WATCH_S = 0.5, 2.0
"""Pause between two measurements of memory: a page can take a gigabyte in a second."""

_MOST_PAGES = 300
"""Pages until a browser is replaced, as its memory only ever grows."""

_PAGE_MB = 1500
"""Memory beyond which a process, mostly that of one page, is killed."""

_MOST_MB, _FEWEST_PAGES = 2000, 20
"""Memory of all processes of a browser beyond which it is replaced earlier, but not before so many
pages: large pages would cost a start each."""

_NOWHERE = "http://127.0.0.1:9"
"""The proxy of the browser's own requests: nobody listens there."""

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

_NOT_PLAYWRIGHTS = ("--disable-ipc-flooding-protection", "--disable-popup-blocking")
"""Arguments of Playwright's that let one page's loop hold up all pages of a browser."""


@dataclass(slots=True, eq=False)
class _Launched:
    """A running browser, its process, its pages so far, and its memory."""

    browser: Browser
    process: psutil.Process | None = None
    started: int = 0
    in_flight: int = 0
    held_mb: float = 0.0


def user_agent(version: str, url: str) -> str:
    """Return a phone's user agent that names this crawler and a page about it."""
    about = f" (+{url})" if url else ""
    return (
        "Mozilla/5.0 (Linux; Android 10; K) AppleWebKit/537.36 (KHTML, like Gecko) "
        f"Chrome/{version.split('.', maxsplit=1)[0]}.0.0.0 Mobile Safari/537.36 "
        f"{PRODUCT}/{__version__}{about}"
    )


class BrowserPool:
    """As many browsers as the pages in flight need; each visit has a context of its own."""

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
        """Start the driver and a first browser, so that a missing one is reported at once."""
        if os.geteuid() == 0:
            _log.warning(
                "crawl: running as root, so Chromium's own sandbox is off; run as an ordinary user "
                "to have it (for example: sudo -u nobody -H now-builder crawl ...)"
            )
        try:
            self._places[0] = await self._launch()
        except BaseException:
            await self._stop_driver()
            raise
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the browsers; kill those that do not close."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        for launched in filter(None, self._places):
            self._later(self._end(launched))
        await asyncio.gather(*self._closing, return_exceptions=True)
        await self._stop_driver()

    @property
    def user_agent(self) -> str:
        """The user agent of all requests."""
        return user_agent(self.version, self._settings.user_agent_url)

    async def visit(
        self, visit: Visit, proxy: Proxy, check_url: UrlCheck, *, alone: bool = False
    ) -> None:
        """Visit a page in a context of its own, and fill the visit in on the way.

        ``check_url`` is called for each URL before it is requested. After a crash of a shared
        browser a page is visited ``alone`` in one.

        Raises:
            PageError: If there is nothing to capture.
            CrawlError: If no browser can be started.
        """
        async with self._extra if alone else nullcontext():
            launched = await (self._launch() if alone else self._acquire())
            launched.in_flight += 1
            proxy.begin(MAX_BYTES)
            context: BrowserContext | None = None
            captured = False
            try:
                async with self._browser_at_fault(launched):
                    context = await self._context(launched, proxy)
                    page = await context.new_page()
                    context.on("page", lambda popup: self._later(_close_popup(popup)))
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
                # Once the capture is there, a browser that dies costs nothing.
                with suppress(PageError) if captured else nullcontext():
                    await self._release(launched, context)

    @asynccontextmanager
    async def _browser_at_fault(
        self, launched: _Launched, seconds: float = _READY_S
    ) -> AsyncIterator[None]:
        """Treat a failure as a crash of the browser, not of the page; it gets no more pages."""
        try:
            async with asyncio.timeout(seconds):
                yield
        except (PlaywrightError, TimeoutError) as error:
            self._places = [None if place is launched else place for place in self._places]
            self._suspect = True
            what = str(error).partition("\n")[0] or f"nothing within {seconds:g} s"
            raise PageError("browser_crashed", what) from None

    async def reset(self) -> None:
        """Drop the browsers and their driver; the next visit starts afresh."""
        self._places = [None] * len(self._places)
        await self._stop_driver()

    async def _context(self, launched: _Launched, proxy: Proxy) -> BrowserContext:
        return await launched.browser.new_context(
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

    async def _acquire(self) -> _Launched:
        """Return the least busy browser, replaced if it is spent or has crashed."""
        async with self._lock:
            busy = [launched.in_flight if launched else 0 for launched in self._places]
            number = busy.index(min(busy))
            launched = self._places[number]
            if launched is not None and (
                not launched.browser.is_connected() or self._is_spent(launched)
            ):
                self._places[number] = None
                if not launched.in_flight:
                    self._later(self._end(launched))
                launched = None
            if launched is None:
                launched = self._places[number] = await self._launch()
            launched.started += 1
            return launched

    def _is_spent(self, launched: _Launched) -> bool:
        return launched.started >= (_FEWEST_PAGES if launched.held_mb > _MOST_MB else _MOST_PAGES)

    async def _watch(self) -> None:
        """Watch the memory of the browsers; less often where measuring takes long."""
        loop = asyncio.get_running_loop()
        pause_s = _WATCH_S
        with ThreadPoolExecutor(1) as pool:  # one of its own: the loop's may be full of look-ups
            while True:
                await asyncio.sleep(pause_s)
                begun = time.monotonic()
                held = await loop.run_in_executor(pool, limit_memory, list(self._alive), _PAGE_MB)
                for pid, launched in self._alive.items():
                    launched.held_mb = held.get(pid, 0.0)
                pause_s = min(max(_WATCH_S, 20 * (time.monotonic() - begun)), _LONGEST_WATCH_S)

    async def _release(self, launched: _Launched, context: BrowserContext | None) -> None:
        """Close a context, in flight till then; if that fails, it is the fault of the browser."""
        try:
            if context is not None:
                async with self._browser_at_fault(launched):
                    await context.close()
        finally:
            launched.in_flight -= 1
            if not launched.in_flight and launched not in self._places:
                self._later(self._end(launched))

    async def _end(self, launched: _Launched) -> None:
        with suppress(*_DRIVER_ERRORS):
            await asyncio.wait_for(launched.browser.close(), _CLOSE_S)
        if launched.process is not None:
            self._alive.pop(launched.process.pid, None)
            await asyncio.to_thread(end_process, launched.process)

    def _later(self, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _launch(self) -> _Launched:
        try:
            launched = await self._start()
        except _DRIVER_ERRORS:
            # The driver itself may have died or stuck; a second failure is the machine's.
            await self._stop_driver()
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
                ignore_default_args=list(_NOT_PLAYWRIGHTS),
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
        return "no Chromium found; `now-builder doctor` says how to install one"
    lines = [line.strip() for line in (str(error) or "timeout").splitlines() if line.strip()]
    what = "Playwright's driver" if isinstance(error, DriverError) else path
    return f"{what} does not start ({' | '.join(lines[:3])[:300]}); see `now-builder doctor`"


async def _process_of(browser: Browser) -> psutil.Process | None:
    """Return the process of a browser; ``None`` if it does not say."""
    with suppress(PlaywrightError, psutil.Error):
        session = await browser.new_browser_cdp_session()
        answer = await session.send("SystemInfo.getProcessInfo")
        await session.detach()
        for process in answer["processInfo"]:
            if process["type"] == "browser":
                return psutil.Process(process["id"])
    return None


async def _close_popup(popup: Page) -> None:
    with suppress(*_DRIVER_ERRORS):
        await asyncio.wait_for(popup.close(), _CLOSE_S)
