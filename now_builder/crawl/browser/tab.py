"""Load a page in a browser tab and capture it with the DevTools protocol."""

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
from now_builder.crawl.caption.charset import replace_surrogates
from now_builder.crawl.politeness.plain import MOVED
from now_builder.crawl.politeness.proxy import Proxy
from now_builder.crawl.settings import CrawlSettings
from now_builder.crawl.visit import Document, PageError, Visit
from now_builder.formats.ink import ink_shares, is_blank
from now_builder.formats.shard import HEIGHT, TRANSFER_HEADERS, WIDTH, read_element

SCALE = 2
SCREEN = {"width": WIDTH // SCALE, "height": HEIGHT // SCALE}
"""Screen of the phone in CSS px."""

MAX_BYTES = 64_000_000
"""Maximum bytes of a page including pictures; its decompressed HTML may have half as many."""

_MOST_DOCUMENTS, _MOST_OF_ONE_URL = 10, 4
"""Maximum number of documents of a page, and of one URL, to limit pages that reload themselves."""

_POLL_S, _POLL_SHARE, _CHANGE_S = 0.03, 0.1, 0.1
"""Seconds between two checks for rest, or their fraction of the time since the first check; seconds
between two checks for a change of a page at rest."""
_CHUNK = 1 << 20
_FRAME_S = 5.0
"""Timeout in seconds for the robots.txt check of a frame, which delays the page's load."""

_ANSWER, _LOAD, _LATE_LOAD, _SETTLE = 0.85, 0.6, 0.8, 0.87
"""Deadlines as fractions of the page timeout: response, load, load of a late response, settled."""

_ROUND = 0.04
"""Fraction of the page timeout for new requests of a script after its last request failed."""

_LARGE, _SOME = 0.12, 0.03
"""Minimum hidden share of the screen to wait for: of any content, and with much hidden text."""
_MUCH, _MUCH_LATER = 0.5, 0.2
"""Minimum share of much hidden text: of any page, and of a page that changes in steps."""

_HALF = re.compile(r"\\ud[89a-f]")
"""A surrogate as escaped by JSON."""

Result = TypeVar("Result")


UrlCheck = Callable[..., Awaitable[None]]
"""``await check(url, frame=False)`` raises a PageError if a URL must not be requested."""


class _Moved(Exception):  # noqa: N818 - not an error: the page loaded another document
    """The document was replaced while it was captured."""


class Tab:
    """A new page in a new context, and the documents that its main frame has loaded.

    ``check_url`` is called before any frame requests a document.
    """

    def __init__(
        self, page: Page, proxy: Proxy, visit: Visit, check_url: UrlCheck, settings: CrawlSettings
    ) -> None:
        self._page = page
        self._proxy = proxy
        self._started = 0.0
        self._visit = visit
        self._check_url = check_url
        self._settings = settings
        # A PNG that is not stored may be a third larger, which saves time in the browser.
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
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        self._tasks: set[asyncio.Task[None]] = set()

    async def prepare(self) -> None:
        """Subscribe to the page's events, before anything is requested."""
        self._page.on("crash", lambda _: self._end(PageError("renderer_crashed", "out of memory?")))
        self._page.on("close", lambda _: self._end(PageError("browser_crashed", "page closed")))
        self._session = await self._page.context.new_cdp_session(self._page)
        handlers: dict[str, Callable[[dict[str, Any]], None]] = {
            "Fetch.authRequired": lambda event: self._spawn(self._no_password(event)),
            "Fetch.requestPaused": lambda event: self._spawn(self._paused(event)),
            "Page.domContentEventFired": lambda _: self._parsed.set(),
            "Page.frameNavigated": self._navigated,
            "Page.frameRequestedNavigation": self._requested,
            "Page.frameStoppedLoading": self._stopped,
            "Page.loadEventFired": lambda _: self._loaded.set(),
        }
        for name, handler in handlers.items():
            self._session.on(name, handler)
        tree = await self._session.send("Page.getFrameTree")
        self._frame = tree["frameTree"]["frame"]["id"]
        # An override applies only to captures in the same session.
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
        """Load the page and capture its first screen, after :meth:`prepare`.

        Raises:
            PageError: If there is nothing to capture.
        """
        seconds = self._settings.page_timeout_s
        self._started = time.monotonic()
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
            self._ended.cancel()

    def _left(self, fraction: float = 1.0) -> float:
        """Return the seconds left of a fraction of the page timeout; never negative."""
        deadline = self._started + fraction * self._settings.page_timeout_s
        return max(0.0, deadline - time.monotonic())

    # --- navigation ---

    async def _navigate(self, url: str) -> None:
        self._visit.update(final_url=url)
        navigation = self._session.send("Page.navigate", {"url": url})
        answer = await self._within(navigation, self._left(_ANSWER), "timeout", "no response")
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
            if frame.get("unreachableUrl") and self._documents:  # a later navigation failed
                self._note(frame["unreachableUrl"], None, None)
                self._end(self._net_error("ERR_FAILED"))

    def _requested(self, event: dict[str, Any]) -> None:
        if event["frameId"] == self._frame and event.get("disposition") == "currentTab":
            # A link to an app or a mail program does not replace the page.
            self._leaving = event["url"].startswith(("http:", "https:", "about:"))

    def _stopped(self, event: dict[str, Any]) -> None:
        if event["frameId"] == self._frame:
            self._leaving = False
            self._loaded.set()  # an interrupted load has no load event

    def _end(self, reason: BaseException) -> None:
        if not self._ended.done():
            self._ended.set_exception(reason)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._handled)

    def _handled(self, task: asyncio.Task[None]) -> None:
        """End the visit if a handler failed: the request that it paused would wait forever."""
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
        """Handle a navigation before it is sent, and its response before it is loaded."""
        request = {"requestId": event["requestId"]}
        with suppress(PlaywrightError):  # the page may be closed by now
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
                    await self._abort(request)  # the page offers a file and stays
                else:
                    self._end(reason)

    async def _frame_paused(self, event: dict[str, Any], request: dict[str, Any]) -> None:
        """Let a frame load its document if robots.txt allows it; otherwise it stays empty.

        It also stays empty if the proxy refuses the host, instead of showing the proxy's response.
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
            raise PageError("redirect_loop", f"{_MOST_DOCUMENTS} documents in a row")
        if sum(document.url == url for document in self._documents.values()) >= _MOST_OF_ONE_URL:
            raise PageError("redirect_loop", f"one URL more than {_MOST_OF_ONE_URL} times")
        body, complete = await self._read_body(request, urlsplit(url).hostname or "")
        complete = complete and not is_short(body, headers)
        coding = last(headers, "content-encoding") or last(headers, "transfer-encoding")
        if complete and not body and coding:  # the browser does not report a failed decoding
            raise PageError("net_error", f"empty body, encoded as {coding[:40]}")
        self._documents[event.get("networkId", "")] = Document(url, body, complete, headers)
        await self._fulfil(request, event, body)

    def _note(self, url: str, status: int | None, content_type: str | None) -> None:
        """Note a request of the main frame; a previous URL with a response becomes a redirect."""
        row = self._visit.row
        redirects = row.redirects
        if row.http_status is not None and row.final_url is not None:
            redirects = [*redirects, row.final_url]
        self._visit.update(
            redirects=redirects, final_url=url, http_status=status, content_type=content_type
        )

    async def _read_body(self, request: dict[str, Any], host: str) -> tuple[bytes, bool]:
        """Read the document in chunks; truncate it when the time for loading is over."""
        stream = (await self._session.send("Fetch.takeResponseBodyAsStream", request))["stream"]
        body = bytearray()
        complete = True
        while True:
            reading = asyncio.ensure_future(
                self._session.send("IO.read", {"handle": stream, "size": _CHUNK})
            )
            try:
                seconds = self._load_time() if complete else 1.0
                done, _ = await asyncio.wait({reading}, timeout=seconds)
                if not done and complete:
                    complete = False
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
                return bytes(body), complete

    async def _fulfil(self, request: dict[str, Any], event: dict[str, Any], body: bytes) -> None:
        answer = {
            **request,
            "responseCode": event["responseStatusCode"],
            "responsePhrase": "OK",  # required for a status without a phrase
            "body": base64.b64encode(body).decode(),
        }
        answer["responseHeaders"] = [
            h for h in event["responseHeaders"] if h["name"].lower() not in TRANSFER_HEADERS
        ]
        try:
            await self._session.send("Fetch.fulfillRequest", answer)
        except PlaywrightError:  # it does not accept a header; the type must be kept
            types = [h for h in answer["responseHeaders"] if h["name"].lower() == "content-type"]
            await self._session.send("Fetch.fulfillRequest", {**answer, "responseHeaders": types})

    # --- at rest ---

    async def _capture_at_rest(self) -> None:
        while True:
            try:
                loaded = await self._load()
                await self._watched()  # a long-running script is not counted as settling
                seconds = min(self._settings.settle_s, self._left(_SETTLE))
                if await self._capture(loaded, time.monotonic() + seconds):
                    return
            except _Moved:
                pass
            if self._left(_SETTLE) <= 0:
                raise PageError("unstable_page", "loads one document after another")
            await self._pause(0.05)

    def _leaves(self) -> bool:
        return self._leaving and self._left(_LOAD) > 0

    def _load_time(self) -> float:
        late = min(self._left(_LATE_LOAD), 0.1 * self._settings.page_timeout_s)
        return max(self._left(_LOAD), late)

    async def _load(self) -> bool:
        """Wait for the load, or end it when it is late; return whether it completed in time.

        A pending script blocks the parser, so pending requests are failed first; repeatedly until
        everything is parsed, as a failed script may request another one.
        """
        if await self._loads_within(self._load_time()):
            return True
        parsed = False
        while not parsed and self._left(_SETTLE) > 0:
            parsed = self._parsed.is_set()
            self._fail_requests()
            if await self._loads_within(_ROUND * self._settings.page_timeout_s):
                return False
        stop = self._session.send("Page.stopLoading")
        await self._within(stop, self._left(), "renderer_hung", "stop loading")
        return False

    def _fail_requests(self) -> None:
        """Fail pending requests, unless the page is about to load another document."""
        if not self._leaving:
            self._failed = True
            self._proxy.cut()

    async def _loads_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            loading = asyncio.wait_for(self._loaded.wait(), seconds)
            return await self._within(loading, self._left(), "timeout", "load")
        return False

    async def _capture(self, loaded: bool, deadline: float) -> bool:  # noqa: FBT001
        """Capture the loaded page when it is at rest and shows enough.

        A page whose first screen is empty or hides a large block may be about to show it. It is
        captured again after each change and, as a canvas or a frame may be drawn without a change,
        at the deadline.

        Args:
            loaded: Whether the load completed in time.
            deadline: Time on the monotonic clock.

        Returns:
            ``False`` if the page is about to load another document.
        """
        visit = self._visit
        while True:
            settled, state = await self._rest(deadline)
            if self._leaves():
                return False
            complete = await self._read()
            hides = _is_much(*hidden_shares(visit.elements), moved=state["moved"])
            if hides and time.monotonic() < deadline:
                await self._await_change(state["changes"], deadline)
                continue
            visit.screenshot, visit.picture = await self._screenshot()
            visit.ink = ink_shares(visit.picture, visit.elements)
            if self._documents.get(self._loader) is not visit.document:
                raise _Moved
            shares = hidden_shares(visit.elements, visit.picture)
            hides = hides or _is_much(*shares, moved=state["moved"])
            empty = hides or is_blank(visit.ink[1])
            if empty and time.monotonic() < deadline:
                await self._await_change(state["changes"], deadline)
                continue
            visit.settled = loaded and settled and complete and not empty
            visit.update(final_url=self._url)
            return True

    async def _rest(self, deadline: float) -> tuple[bool, dict[str, Any]]:
        """Wait until no visible part changes any more, or until the deadline.

        Returns:
            Whether the page came to rest, and the state of the watched document.
        """
        start = time.monotonic()
        while True:
            state = await self._watched()
            if state["rest"]:
                return not state["endless"], state
            now = time.monotonic()
            if now >= deadline:
                if not state["body"] and not self._leaves():
                    raise PageError("no_body", "the document ends within its head")
                return False, state
            pause = max(_POLL_S, state["wait"] / 1000, _POLL_SHARE * (now - start))
            await self._pause(min(pause, deadline - now))

    async def _await_change(self, before: int, deadline: float) -> None:
        """Wait until the number of changes differs from ``before``, or until the deadline."""
        while time.monotonic() < deadline and (await self._watched())["changes"] == before:
            await self._pause(_CHANGE_S)

    async def _pause(self, seconds: float) -> None:
        await self._within(asyncio.sleep(seconds), seconds + 1.0, "timeout", "")

    async def _watched(self) -> dict[str, Any]:
        """Return the state of the watched document.

        The script waits for no timer, promise or frame, as sandboxed documents never run them.
        """
        loader = self._loader
        script = WATCHED if self._watching == loader else WATCH
        state = await self._evaluate(script, self._left())
        if state is None:  # another document was loaded meanwhile
            self._watching = ""
            raise _Moved
        self._watching = loader
        return dict(state)

    async def _read(self) -> bool:
        """Stop animations and read the first screen; return whether nothing is missing."""
        state = await self._evaluate(FREEZE, self._left())
        if state["stirred"]:  # scripts may react to the scroll or the loss of focus
            await self._pause(2 * _POLL_S)
            state = await self._evaluate(FREEZE, self._left())  # stop what they moved
        if state["contentType"] not in HTML:
            raise PageError("not_html", state["contentType"])
        if not state["url"].startswith(("http://", "https://")):
            raise PageError("not_html", f"ended at {state['url'][:80]}")
        document = self._documents.get(self._loader)
        if document is None:
            raise PageError("net_error", "the source of the last document is unknown")
        visit, self._url = self._visit, state["url"]
        visit.document = document
        visit.charset = str(state["charset"]).lower()
        visit.metas = [(str(name), str(content)) for name, content in state["metas"]]
        if self._settings.overlays == "hide":
            visit.overlays = list(await self._evaluate(HIDE_OVERLAYS, self._left()))
        screen = await self._evaluate(ELEMENTS, self._left())
        visit.elements = [read_element(item) for item in screen["elements"]]
        failed = self._failed or screen["truncated"] or self._proxy.exhausted
        return document.complete and not failed

    async def _screenshot(self) -> tuple[bytes, Image.Image]:
        capture = self._session.send("Page.captureScreenshot", self._shot)
        answer = await self._within(capture, self._left(), "renderer_hung", "screenshot")
        screenshot = base64.b64decode(answer["data"])
        picture = Image.open(io.BytesIO(screenshot))
        if picture.size != (WIDTH, HEIGHT):
            raise PageError("bad_screenshot", "{} x {} px".format(*picture.size))
        await asyncio.to_thread(picture.load)
        return screenshot, picture

    async def _evaluate(self, expression: str, seconds: float) -> Any:
        """Evaluate in an isolated world, which the page's scripts cannot change."""
        answer = self._unblocked(self._evaluated(expression))
        return await self._within(answer, seconds, "renderer_hung", "script")

    async def _unblocked(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Await the renderer; fail pending requests, which may block it, when loading is too late.

        The browser passes no messages on while a page is loading another document.
        """
        task = asyncio.create_task(work)
        try:
            wait_s = self._left(_LOAD)
            while not task.done():
                wait_s = max(wait_s, _ROUND * self._settings.page_timeout_s)
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
        wrapped = f"(async () => JSON.stringify(await ({expression})))()"
        call = {"expression": wrapped, "awaitPromise": True, "returnByValue": True}
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
        text = answer["result"].get("value")  # the protocol is faster for a string than for a tree
        value = None if text is None else json.loads(text)
        return replace_surrogates(value) if text and _HALF.search(text) else value

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
        self, work: Coroutine[Any, Any, Result], seconds: float, error: str, step: str
    ) -> Result:
        """Await a step of the visit with a timeout; end it when the visit ends."""
        task = asyncio.create_task(work)
        try:
            both: list[asyncio.Future[Any]] = [task, self._ended]
            await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if self._ended.done():
                self._ended.result()
            if not task.done():
                raise PageError(error, f"{step}: nothing within {seconds:.1f} s")
            return task.result()
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError, PlaywrightError, PageError, _Moved):
                await task


def _is_much(area: float, text: float, *, moved: bool) -> bool:
    """Return whether the hidden shares suggest that a page is about to show more."""
    return area >= _LARGE or (area >= _SOME and text >= (_MUCH_LATER if moved else _MUCH))


def _from_playwright(error: PlaywrightError) -> PageError:
    message = error.message.splitlines()[0] if error.message else "no message"
    if "crash" in message.lower() or "Not attached to an active page" in message:
        return PageError("renderer_crashed", message)
    if "closed" in message.lower():
        return PageError("browser_crashed", message)
    return PageError("browser_error", message)
