"""Load one page in a browser tab and capture it, by the DevTools protocol."""

import asyncio
import base64
import io
import json
import re
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

from PIL import Image
from playwright.async_api import CDPSession, Page
from playwright.async_api import Error as PlaywrightError

from now_builder.crawl.browser.hidden import hidden_shares
from now_builder.crawl.browser.response import HTML, check_answer, headers_of, is_short, last
from now_builder.crawl.browser.scripts import ELEMENTS, FREEZE, HIDE_OVERLAYS, WATCH, WATCHED
from now_builder.crawl.caption.charset import whole_characters
from now_builder.crawl.politeness.plain import MOVED
from now_builder.crawl.politeness.proxy import Proxy
from now_builder.crawl.settings import CrawlSettings
from now_builder.crawl.visit import Document, PageError, Visit
from now_builder.formats.ink import ink_shares, is_blank
from now_builder.formats.shard import HEIGHT, TRANSFER_HEADERS, WIDTH, read_element

SCALE = 2
SCREEN = {"width": WIDTH // SCALE, "height": HEIGHT // SCALE}
"""The phone's screen in CSS px."""

MAX_BYTES = 64_000_000
"""Maximum bytes of a page, pictures included; half as many of its HTML, unpacked."""

_MOST_DOCUMENTS, _MOST_OF_ONE_URL = 10, 4
"""Documents in a row, and documents of one URL, until a page counts as one that never stays: each
time that it loads itself again costs the host a request, and a slow machine the time."""

_POLL_S, _POLL_SHARE, _CHANGE_S = 0.03, 0.1, 0.1
"""Seconds between two looks at a page that may be at rest, or a share of the time that it was
waited for; seconds between two looks for a change of a page at rest."""
_CHUNK = 1 << 20
_FRAME_S = 5.0
"""Timeout for the robots.txt check of a frame, for which the page's load waits."""

_ANSWER, _LOAD, _LATE_LOAD, _SETTLE = 0.85, 0.6, 0.8, 0.87
"""Deadlines as fractions of the page timeout: response, load, load of a late response, settled."""

_ROUND = 0.04
"""Share of the page's time for what a script asks for after its last request was failed."""

_LARGE, _SOME = 0.12, 0.03
"""Shares of the screen that are hidden if a page may be about to show more, whatever they are or
with much of its text."""
_MUCH, _MUCH_LATER = 0.5, 0.2
"""Shares of a screen's text that are much: of any page, and of a page that changes in steps."""

_HALF = re.compile(r"\\ud[89a-f]")
"""How JSON writes half a surrogate pair."""

Result = TypeVar("Result")


UrlCheck = Callable[..., Awaitable[None]]
"""``await check(url, frame=False)`` raises a PageError if a URL must not be requested."""


class _Clock:
    """Wall-clock time of one page, from now on."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self, share: float = 1.0) -> float:
        """Return the seconds left until a share of the time is used; never negative."""
        return max(0.0, self._end - (1.0 - share) * self.seconds - time.monotonic())


class _Moved(Exception):  # noqa: N818 - no error: the page went on to another document
    """The document was replaced while it was captured."""


class Tab:
    """A new page in a new context, and the documents that its main frame has loaded.

    ``check_url`` is called before any frame goes to a URL, by whatever means.
    """

    def __init__(
        self, page: Page, proxy: Proxy, visit: Visit, check_url: UrlCheck, settings: CrawlSettings
    ) -> None:
        self._page = page
        self._proxy = proxy
        self._clock: _Clock
        self._visit = visit
        self._check_url = check_url
        self._settings = settings
        # A PNG that is not kept need not be small: a third larger, for less of the browser's time.
        self._shot = {"format": "png", "optimizeForSpeed": settings.image != "png"}
        self._session: CDPSession
        self._frame = ""
        self._loader = ""
        self._url = ""
        self._isolated = ("", 0)
        self._watching = ""
        self._documents: dict[str, Document] = {}
        self._parsed, self._loaded = asyncio.Event(), asyncio.Event()
        self._leaving, self._failed = False, False
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._over.add_done_callback(lambda over: over.cancelled() or over.exception())  # heard
        self._tasks: set[asyncio.Task[None]] = set()

    async def prepare(self) -> None:
        """Subscribe to the page's events; to be called before anything is requested."""
        self._page.on("crash", lambda _: self._end(PageError("renderer_crashed", "out of memory?")))
        self._page.on("close", lambda _: self._end(PageError("browser_crashed", "page closed")))
        self._session = await self._page.context.new_cdp_session(self._page)
        on: dict[str, Callable[[dict[str, Any]], None]] = {
            "Fetch.authRequired": lambda event: self._spawn(self._no_password(event)),
            "Fetch.requestPaused": lambda event: self._spawn(self._paused(event)),
            "Page.domContentEventFired": lambda _: self._parsed.set(),
            "Page.frameNavigated": self._navigated,
            "Page.frameRequestedNavigation": self._requested,
            "Page.frameStoppedLoading": self._stopped,
            "Page.loadEventFired": lambda _: self._loaded.set(),
        }
        for name, handler in on.items():
            self._session.on(name, handler)
        tree = await self._session.send("Page.getFrameTree")
        self._frame = tree["frameTree"]["frame"]["id"]
        # An override made on another session does not hold for a capture made on this one.
        metrics = {**SCREEN, "deviceScaleFactor": SCALE, "mobile": True}
        patterns = [
            {"urlPattern": "*", "resourceType": "Document", "requestStage": stage}
            for stage in ("Request", "Response")
        ]
        await asyncio.gather(
            self._session.send("Page.enable"),
            self._session.send("Emulation.setDeviceMetricsOverride", metrics),
            self._session.send("Fetch.enable", {"patterns": patterns, "handleAuthRequests": True}),
        )

    async def capture(self) -> None:
        """Load the page and capture its first screen; :meth:`prepare` comes first.

        Raises:
            PageError: If there is nothing to capture.
        """
        seconds = self._settings.page_timeout_s
        self._clock = _Clock(seconds)
        try:
            async with asyncio.timeout(seconds):
                await self._navigate(self._visit.row.url_canonical)
                await self._capture_at_rest()
        except PlaywrightError as error:
            raise _from_playwright(error) from None
        except TimeoutError:
            code = "timeout" if self._visit.row.http_status is None else "renderer_hung"
            raise PageError(code, f"nothing within {seconds:g} s") from None
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._over.cancel()

    # --- navigation ---

    async def _navigate(self, url: str) -> None:
        self._visit.note(final_url=url)
        navigation = self._session.send("Page.navigate", {"url": url})
        left_s = self._clock.left(_ANSWER)
        answer = await self._within(navigation, left_s, "timeout", "no answer")
        if answer.get("errorText"):
            raise self._net_error(answer["errorText"])

    def _net_error(self, problem: str) -> PageError:
        refused = self._proxy.refusal(self._visit.row.final_url or "")
        if refused is not None:
            return refused
        name = problem.removeprefix("net::")
        if name == "ERR_TOO_MANY_REDIRECTS":
            return PageError("redirect_loop", name)
        if name.startswith(("ERR_CERT", "ERR_SSL", "ERR_BAD_SSL")):
            return PageError("tls_error", name)
        return PageError("net_error", name)

    # --- events of the browser ---

    def _navigated(self, event: dict[str, Any]) -> None:
        frame = event["frame"]
        if frame["id"] == self._frame:
            self._loader = frame["loaderId"]
            self._leaving = False
            self._parsed.clear()
            self._loaded.clear()
            if frame.get("unreachableUrl") and self._documents:  # what the page led to
                self._note(frame["unreachableUrl"], None, None)
                self._end(self._net_error("ERR_FAILED"))

    def _requested(self, event: dict[str, Any]) -> None:
        if event["frameId"] == self._frame and event.get("disposition") == "currentTab":
            # A link to an app or a mail program does not replace the page.
            self._leaving = event["url"].startswith(("http:", "https:", "about:"))

    def _stopped(self, event: dict[str, Any]) -> None:
        if event["frameId"] == self._frame:
            self._leaving = False
            self._loaded.set()  # a load that was broken off ends without its event

    def _end(self, reason: BaseException) -> None:
        if not self._over.done():
            self._over.set_exception(reason)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._handled)

    def _handled(self, task: asyncio.Task[None]) -> None:
        """End the visit if a handler failed: a request that it had paused would wait for ever."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._end(error)

    async def _no_password(self, event: dict[str, Any]) -> None:
        answer = {"authChallengeResponse": {"response": "CancelAuth"}}
        with suppress(PlaywrightError):
            await self._session.send(
                "Fetch.continueWithAuth", {"requestId": event["requestId"], **answer}
            )

    async def _paused(self, event: dict[str, Any]) -> None:
        """Handle a navigation before it is sent, and its response before the browser sees it."""
        request = {"requestId": event["requestId"]}
        with suppress(PlaywrightError):  # the page may be gone by now
            if "responseErrorReason" in event:
                await self._session.send("Fetch.continueRequest", request)
                return
            if event["frameId"] != self._frame:
                await self._frame_paused(event, request)
                return
            try:
                if "responseStatusCode" in event:
                    await self._answered(event, request)
                else:
                    await self._sent(event["request"]["url"].partition("#")[0], request)
            except PageError as reason:
                if self._documents and reason.code in ("download", "not_html"):
                    await self._abort(request)  # the page only offers a file, and stays as it is
                else:
                    self._end(reason)

    async def _frame_paused(self, event: dict[str, Any], request: dict[str, Any]) -> None:
        """Let a frame load its document if robots.txt allows it; else the frame stays empty.

        It does so, too, if the response is the proxy's: it would show why the host is refused.
        """
        url = event["request"]["url"].partition("#")[0]
        if "responseStatusCode" in event:
            refused = self._proxy.refusal(url) is not None
        else:
            try:
                async with asyncio.timeout(_FRAME_S):
                    await self._check_url(url, frame=True)
                refused = False
            except (PageError, TimeoutError):
                refused = True
        if refused:
            await self._abort(request)
        else:
            await self._session.send("Fetch.continueRequest", request)

    async def _abort(self, request: dict[str, Any]) -> None:
        await self._session.send("Fetch.failRequest", {**request, "errorReason": "Aborted"})

    async def _sent(self, url: str, request: dict[str, Any]) -> None:
        try:
            await self._check_url(url)
        except PageError:
            self._note(url, None, None)
            raise
        await self._session.send("Fetch.continueRequest", request)

    async def _answered(self, event: dict[str, Any], request: dict[str, Any]) -> None:
        url = event["request"]["url"].partition("#")[0]
        headers = headers_of(event)
        status = event["responseStatusCode"]
        refused = self._proxy.refusal(url)
        if refused is not None:
            self._note(url, None, None)
            raise refused
        self._note(url, status, ", ".join(headers.get("content-type", ())) or None)
        if status in MOVED and last(headers, "location"):
            redirects = len(self._visit.row.redirects)
            if redirects >= 2 * _MOST_DOCUMENTS:
                raise PageError("redirect_loop", f"{redirects} redirects")
            await self._session.send("Fetch.continueRequest", request)
            return
        check_answer(status, headers)
        if len(self._documents) >= _MOST_DOCUMENTS:
            raise PageError("redirect_loop", f"{_MOST_DOCUMENTS} documents, one after the other")
        if sum(document.url == url for document in self._documents.values()) >= _MOST_OF_ONE_URL:
            raise PageError("redirect_loop", f"one URL {_MOST_OF_ONE_URL} times, and again")
        body, whole = await self._read_body(request, urlsplit(url).hostname or "")
        whole = whole and not is_short(body, headers)
        coded = last(headers, "content-encoding") or last(headers, "transfer-encoding")
        if whole and not body and coded:  # the browser does not say that it cannot be decoded
            raise PageError("net_error", f"a body of nothing, announced as {coded[:40]}")
        self._documents[event.get("networkId", "")] = Document(url, body, whole, headers)
        await self._fulfil(request, event, body)

    def _note(self, url: str, status: int | None, content_type: str | None) -> None:
        """Note a request of the main frame; the URL answered before it becomes a redirect."""
        row = self._visit.row
        redirects = row.redirects
        if row.http_status is not None and row.final_url is not None:
            redirects = [*redirects, row.final_url]
        self._visit.note(
            redirects=redirects, final_url=url, http_status=status, content_type=content_type
        )

    async def _read_body(self, request: dict[str, Any], host: str) -> tuple[bytes, bool]:
        """Read the document as it arrives; cut it off when the time for loading is over."""
        stream = (await self._session.send("Fetch.takeResponseBodyAsStream", request))["stream"]
        body = bytearray()
        whole = True
        while True:
            reading = asyncio.ensure_future(
                self._session.send("IO.read", {"handle": stream, "size": _CHUNK})
            )
            try:
                done, _ = await asyncio.wait({reading}, timeout=self._load_time() if whole else 1.0)
                if not done and whole:
                    whole = False
                    self._proxy.cut(host)
                    done, _ = await asyncio.wait({reading}, timeout=1.0)
                if not done:
                    return bytes(body), False
                chunk = reading.result()
            finally:
                reading.cancel()
            data = chunk["data"]
            body += base64.b64decode(data) if chunk.get("base64Encoded") else data.encode()
            if len(body) > MAX_BYTES // 2 or self._proxy.exhausted:
                raise PageError("too_large", f"more than {MAX_BYTES // 2} bytes")
            if chunk["eof"]:
                return bytes(body), whole

    async def _fulfil(self, request: dict[str, Any], event: dict[str, Any], body: bytes) -> None:
        answer = {
            **request,
            "responseCode": event["responseStatusCode"],
            "responsePhrase": "OK",  # a status without a name needs one
            "body": base64.b64encode(body).decode(),
        }
        answer["responseHeaders"] = [
            h for h in event["responseHeaders"] if h["name"].lower() not in TRANSFER_HEADERS
        ]
        try:
            await self._session.send("Fetch.fulfillRequest", answer)
        except PlaywrightError:  # a header that cannot be said again; the type is what counts
            types = [h for h in answer["responseHeaders"] if h["name"].lower() == "content-type"]
            await self._session.send("Fetch.fulfillRequest", {**answer, "responseHeaders": types})

    # --- at rest ---

    async def _capture_at_rest(self) -> None:
        while True:
            try:
                loaded = await self._load()
                await self._watched()  # a script that computes on does not count as time to rest
                seconds = min(self._settings.settle_s, self._clock.left(_SETTLE))
                if await self._capture(loaded, time.monotonic() + seconds):
                    return
            except _Moved:
                pass
            if self._clock.left(_SETTLE) <= 0:
                raise PageError("unstable_page", "goes from document to document")
            await self._pause(0.05)

    def _leaves(self) -> bool:
        return self._leaving and self._clock.left(_LOAD) > 0

    def _load_time(self) -> float:
        late = min(self._clock.left(_LATE_LOAD), 0.1 * self._clock.seconds)
        return max(self._clock.left(_LOAD), late)

    async def _load(self) -> bool:
        """Wait for the load, or end it when it is late; return whether all was loaded in time.

        A script that never comes holds up the parser, so that what still loads is failed first:
        again and again until all is parsed, as one failed script may ask for another.
        """
        if await self._loads_within(self._load_time()):
            return True
        parsed = False
        while not parsed and self._clock.left(_SETTLE) > 0:
            parsed = self._parsed.is_set()
            self._fail_requests()
            if await self._loads_within(_ROUND * self._clock.seconds):
                return False
        stop = self._session.send("Page.stopLoading")
        await self._within(stop, self._clock.left(), "renderer_hung", "stop loading")
        return False

    def _fail_requests(self) -> None:
        """Fail what is not answered yet, unless the page is about to go to another document."""
        if not self._leaving:
            self._failed = True
            self._proxy.cut()

    async def _loads_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            loading = asyncio.wait_for(self._loaded.wait(), seconds)
            return await self._within(loading, self._clock.left(), "timeout", "load")
        return False

    async def _capture(self, loaded: bool, until: float) -> bool:  # noqa: FBT001
        """Capture the loaded page at rest; one that shows too little is looked at again.

        A page whose first screen is empty or hides a large block may be about to show it: it is
        looked at once more after each change, and for the last time when its time to come to rest
        is over: a canvas or a frame may be drawn without a change.

        Args:
            loaded: Whether all was loaded in time.
            until: When the page must be at rest, on the monotonic clock.

        Returns:
            ``False`` if the page is about to go to another document.
        """
        visit = self._visit
        while True:
            settled, state = await self._rest(until)
            if self._leaves():
                return False
            whole = await self._read()
            hides = _is_much(*hidden_shares(visit.elements), moved=state["moved"])
            if hides and time.monotonic() < until:
                await self._changes(state["changes"], until)
                continue
            visit.screenshot = await self._screenshot()
            visit.picture = await asyncio.to_thread(_decode, visit.screenshot)
            visit.ink = ink_shares(visit.picture, visit.elements)
            if self._documents.get(self._loader) is not visit.document:
                raise _Moved
            shares = hidden_shares(visit.elements, visit.picture)
            hides = hides or _is_much(*shares, moved=state["moved"])
            empty = hides or is_blank(visit.ink[1])
            if empty and time.monotonic() < until:
                await self._changes(state["changes"], until)
                continue
            visit.settled = loaded and settled and whole and not empty
            visit.note(final_url=self._url)
            return True

    async def _rest(self, until: float) -> tuple[bool, dict[str, Any]]:
        """Wait until no visible part changes any more, or the time is over.

        Returns:
            Whether the page came to rest, and the state of the watched document.
        """
        begun = time.monotonic()
        while True:
            state = await self._watched()
            if state["rest"]:
                return not state["endless"], state
            now = time.monotonic()
            if now >= until:
                if not state["body"] and not self._leaves():
                    raise PageError("no_body", "the document ended within its head")
                return False, state
            pause = max(_POLL_S, state["wait"] / 1000, _POLL_SHARE * (now - begun))
            await self._pause(min(pause, until - now))

    async def _changes(self, before: int, until: float) -> None:
        """Wait for a change since so many, or until the time is over."""
        while time.monotonic() < until and (await self._watched())["changes"] == before:
            await self._pause(_CHANGE_S)

    async def _pause(self, seconds: float) -> None:
        await self._within(asyncio.sleep(seconds), seconds + 1.0, "timeout", "")

    async def _watched(self) -> dict[str, Any]:
        """Return the state of the watched document.

        No answer waits for a timer, a promise or a frame: a sandboxed document calls none of them.
        """
        loader = self._loader
        look = WATCHED if self._watching == loader else WATCH
        state = await self._evaluate(look, self._clock.left())
        if state is None:  # another document came in between
            self._watching = ""
            raise _Moved
        self._watching = loader
        return dict(state)

    async def _read(self) -> bool:
        """Stop animations and read the first screen; return whether all of it was read."""
        state = await self._evaluate(FREEZE, self._clock.left())
        if state["stirred"]:  # scripts may follow the scroll or the loss of focus
            await self._pause(2 * _POLL_S)
            state = await self._evaluate(FREEZE, self._clock.left())  # what they moved
        if state["contentType"] not in HTML:
            raise PageError("not_html", state["contentType"])
        if not state["url"].startswith(("http://", "https://")):
            raise PageError("not_html", f"ended at {state['url'][:80]}")
        document = self._documents.get(self._loader)
        if document is None:
            raise PageError("net_error", "the source of the last document is not known")
        visit, self._url = self._visit, state["url"]
        visit.document = document
        visit.charset = str(state["charset"]).lower()
        visit.metas = [(str(name), str(content)) for name, content in state["metas"]]
        if self._settings.overlays == "hide":
            visit.overlays = list(await self._evaluate(HIDE_OVERLAYS, self._clock.left()))
        screen = await self._evaluate(ELEMENTS, self._clock.left())
        visit.elements = [read_element(item) for item in screen["elements"]]
        failed = self._failed or screen["truncated"] or self._proxy.exhausted
        return document.whole and not failed

    async def _screenshot(self) -> bytes:
        capture = self._session.send("Page.captureScreenshot", self._shot)
        shot = await self._within(capture, self._clock.left(), "renderer_hung", "screenshot")
        screenshot = base64.b64decode(shot["data"])
        size = int.from_bytes(screenshot[16:20], "big"), int.from_bytes(screenshot[20:24], "big")
        if size != (WIDTH, HEIGHT):
            raise PageError("bad_screenshot", f"{size[0]} x {size[1]} px")
        return screenshot

    async def _evaluate(self, expression: str, seconds: float) -> Any:
        """Evaluate in an isolated world, which the page's scripts cannot change."""
        answer = self._unblocked(self._evaluated(expression))
        return await self._within(answer, seconds, "renderer_hung", "script")

    async def _unblocked(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Await the renderer; what it may wait for itself fails when the time to load is over.

        While a page goes to another document the browser passes no message on.
        """
        task = asyncio.create_task(work)
        try:
            wait_s = self._clock.left(_LOAD)
            while not task.done():
                wait_s = max(wait_s, _ROUND * self._clock.seconds)
                await asyncio.wait({task}, timeout=wait_s)
                if not task.done():
                    if self._leaving:
                        await self._session.send("Page.stopLoading")
                    self._fail_requests()
                    wait_s = 0.0
            return task.result()
        finally:
            task.cancel()

    async def _evaluated(self, expression: str) -> Any:
        whole = f"(async () => JSON.stringify(await ({expression})))()"
        call = {"expression": whole, "awaitPromise": True, "returnByValue": True}
        try:
            call["contextId"] = await self._context()
            answer = await self._session.send("Runtime.evaluate", call)
        except PlaywrightError as error:
            self._isolated = ("", 0)
            if "context" in error.message or "navigated" in error.message:
                raise _Moved from None
            raise
        if "exceptionDetails" in answer:
            raise PageError("script_error", str(answer["exceptionDetails"].get("text", "")))
        text = answer["result"].get("value")  # one string passes the protocol faster than a tree
        value = None if text is None else json.loads(text)
        return whole_characters(value) if text and _HALF.search(text) else value

    async def _context(self) -> int:
        """Return the id of the isolated world in the current document."""
        loader, context = self._loader, self._isolated[1]
        if not context or self._isolated[0] != loader:
            place = {"frameId": self._frame, "worldName": "noise-of-web"}
            world = await self._session.send("Page.createIsolatedWorld", place)
            context = int(world["executionContextId"])
            self._isolated = (loader, context)
        return context

    async def _within(
        self, work: Coroutine[Any, Any, Result], seconds: float, error: str, what: str
    ) -> Result:
        """Await work for some seconds at most; end it when the visit ends."""
        task = asyncio.create_task(work)
        try:
            both: list[asyncio.Future[Any]] = [task, self._over]
            await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if self._over.done():
                self._over.result()
            if not task.done():
                raise PageError(error, f"{what}: nothing within {seconds:.1f} s")
            return task.result()
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError, PlaywrightError, PageError, _Moved):
                await task


def _is_much(area: float, text: float, *, moved: bool) -> bool:
    """Whether so much is hidden that a page, which ``moved`` in steps or not, may show it."""
    return area >= _LARGE or (area >= _SOME and text >= (_MUCH_LATER if moved else _MUCH))


def _decode(screenshot: bytes) -> Image.Image:
    picture = Image.open(io.BytesIO(screenshot))
    picture.load()
    return picture


def _from_playwright(error: PlaywrightError) -> PageError:
    message = error.message.splitlines()[0] if error.message else "no message"
    if "crash" in message.lower() or "Not attached to an active page" in message:
        return PageError("renderer_crashed", message)
    if "closed" in message.lower():
        return PageError("browser_crashed", message)
    return PageError("browser_error", message)
