"""Middleware of every route: limits of bodies, headers, ETag, HEAD, log line and metrics."""

import asyncio
import contextlib
import hashlib
import json
import logging
import time
import traceback
from datetime import UTC, datetime

import h11
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from leaderboard.service.metering import Meters
from leaderboard.service.problems import Refusal, problem_response
from leaderboard.site.environment import policy
from now_builder.errors import FormatError

LOG = logging.getLogger("leaderboard.http")
HEAD_SECONDS = 20.0
BODY_SECONDS = 120.0
MAX_SMALL = 2**16
# A refused body of this announced size or less is read and dropped by uvicorn.
_MAX_IGNORED = 2**26
_MAX_DRAINED, _DRAIN_SECONDS = 2**22, 1.0
_BODY = "now_leaderboard.body"
_METHODS = {"GET", "HEAD", "PUT", "POST", "DELETE"}
_PAGES = "/{path:path}"


class Connection(H11Protocol):
    """A connection on which the head of a request has to come in time.

    Otherwise a client that opens all connections of the service, and sends a byte now and then,
    would keep everybody else out.
    """

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first head."""
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Wait as long as a head is incomplete."""
        super().data_received(data)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        super().connection_lost(exc)
        self._stop_waiting()

    def _wait_for_head(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self._late is None:
            self._late = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


class Body:
    """The body of a request with limits of size and time; its headers are not trusted.

    Small bodies are always accepted; a route allows more once it knows the caller.
    """

    def __init__(self, receive: Receive, headers: Headers) -> None:
        self._receive = receive
        self._length = headers.get("Content-Length")
        self._limit = MAX_SMALL
        self._seen = 0
        self._deadline: float | None = None
        self.complete = self._length is None and "Transfer-Encoding" not in headers

    def allow(self, limit: int) -> None:
        """Allow that many bytes; refuse the request if its headers announce more."""
        self._limit = limit
        if self._length is not None and not (self._length.isdigit() and int(self._length) <= limit):
            raise _too_large(limit)

    async def receive(self) -> Message:
        """Receive the next chunk.

        Raises:
            Refusal: If the body is too long or too slow.
        """
        if self.complete:
            return await self._receive()
        if self._deadline is None:
            self.allow(self._limit)
            self._deadline = asyncio.get_running_loop().time() + BODY_SECONDS
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise Refusal(408, f"the body took longer than {BODY_SECONDS:g} s") from None
        self._seen += len(message.get("body", b""))
        if self._seen > self._limit:
            raise _too_large(self._limit)
        self.complete = not message.get("more_body", False)
        return message

    def unread(self) -> bool:
        """Return whether the rest is so long that the connection should be closed."""
        if self.complete:
            return False
        return (
            self._length is None or not self._length.isdigit() or int(self._length) > _MAX_IGNORED
        )

    async def drain(self) -> None:
        """Read and drop some of the rest: a client cut off while sending sees no response."""
        dropped = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                while dropped < _MAX_DRAINED:
                    message = await self._receive()
                    if not message.get("more_body", False):
                        return
                    dropped += len(message["body"])


def body_of(request: Request) -> Body:
    """Return the body of a request that passed a :class:`Guard`."""
    body: Body = request.scope[_BODY]
    return body


def _too_large(limit: int) -> Refusal:
    return Refusal(413, f"expected at most {limit} bytes")


class Guard:
    """ASGI middleware around the whole service.

    Responses are buffered, not streamed, so that their hash can be the ETag.
    """

    def __init__(self, app: ASGIApp, meters: Meters) -> None:
        self._app = app
        self._meters = meters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        asked = scope["method"]
        request = Body(receive, Headers(scope=scope))
        inner = {**scope, "method": "GET" if asked == "HEAD" else asked, _BODY: request}
        start, body = await self._respond(inner, request.receive)
        if asked in {"GET", "HEAD"} and start["status"] == 200:
            body = _with_etag(Headers(scope=scope), start, body)
        _harden(start, Headers(scope=scope))
        unread = request.unread()
        if unread:
            start["headers"].append((b"connection", b"close"))
        await send(start)
        sent = b"" if asked == "HEAD" else body
        await send({"type": "http.response.body", "body": sent, "more_body": unread})
        if unread:
            await request.drain()
            await send({"type": "http.response.body", "body": b""})
        self._note(inner, asked, start["status"], len(body), time.perf_counter() - started)

    async def _respond(self, scope: Scope, receive: Receive) -> tuple[Message, bytes]:
        answer = _Answer()
        try:
            await self._app(scope, receive, answer.send)
        except Exception as error:  # noqa: BLE001 - the one place where a fault becomes an answer
            _log_fault(error)
            answer = _Answer()
            detail = "a fault of this server; its log says where"
            await problem_response(500, detail)(scope, receive, answer.send)
        return answer.start, bytes(answer.body)

    def _note(self, scope: Scope, method: str, status: int, size: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "none")
        method = method if method in _METHODS else "other"
        self._meters.requests.labels(route, method, str(status)).inc()
        self._meters.seconds.labels(route).observe(seconds)
        # An unknown path may contain anything, even a token.
        path = scope["path"] if route == _PAGES and status == 200 else route
        line = {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "method": method,
            "path": path,
            "status": status,
            "bytes": size,
            "ms": round(seconds * 1000, 1),
        }
        LOG.info(json.dumps(line))


class _Answer:
    """Collects the response of an app."""

    def __init__(self) -> None:
        self.start: Message = {}
        self.body = bytearray()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.start = message
        else:
            self.body += message.get("body", b"")


def _with_etag(request: Headers, start: Message, body: bytes) -> bytes:
    """Add an ETag; return an empty body if the client already has it."""
    headers = MutableHeaders(scope=start)
    headers.setdefault("Cache-Control", "no-cache")
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers["ETag"] = tag
    said = request.get("If-None-Match", "").split(",")
    if not {part.strip().removeprefix("W/") for part in said} & {tag, "*"}:
        return body
    start["status"] = 304
    del headers["Content-Length"]
    return b""


def _harden(start: Message, request: Headers) -> None:
    headers = MutableHeaders(scope=start)
    headers["Content-Security-Policy"] = f"{policy()}; frame-ancestors 'none'"
    headers["X-Content-Type-Options"] = "nosniff"
    headers["Referrer-Policy"] = "no-referrer"
    headers["Cross-Origin-Opener-Policy"] = "same-origin"
    if start["status"] >= 400 or "Authorization" in request:
        headers["Cache-Control"] = "no-store"


def _log_fault(error: Exception) -> None:
    """Log the location of an error, and the file that is not as it must be.

    The message is left out, as it may contain user input.
    """
    where = [f"{f.filename}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)[-6:]]
    file = {"file": str(error.path)} if isinstance(error, FormatError) else {}
    LOG.error(json.dumps({"fault": type(error).__name__, **file, "where": where}))
