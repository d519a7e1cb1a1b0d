"""A loopback proxy that connects only to checked addresses and counts bytes.

All requests of the crawler use it: the browser's, including redirects and pictures, and those for
robots.txt. Each page in flight has its own proxy (a listening port), which counts its bytes and
records its refused requests.
"""

import asyncio
import re
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from now_builder.crawl.politeness.resolver import Resolver
from now_builder.crawl.visit import PageError

UNLIMITED = 1 << 62
"""Byte limit of requests that belong to no page."""

_CHUNK = 1 << 16
_HEAD = 1 << 18
_DIAL_S = 10.0
_BARE_IPV6 = re.compile(r"([0-9a-fA-F:.]*:[0-9a-fA-F:.]*:[0-9a-fA-F:.]*):(\d+)")
"""An IPv6 address without brackets and its port, as httpx sends them to a proxy."""

_CONTROL = re.compile(r"[\x00-\x20\x7f]")
"""Characters that are invalid in an address; Python's parser silently drops some of them."""


@dataclass(slots=True, eq=False)
class Pipe:
    """A connection from a client and the connection to the server that it requested."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter | None = None
    host: str = ""
    port: int = 0


@dataclass(slots=True)
class _Page:
    """The byte limit and the refused requests of the current page."""

    limit: int
    received: int = 0
    refusals: dict[tuple[str, int], PageError] = field(default_factory=dict)


class Proxy:
    """A listening port that serves one page at a time."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._pipes: set[Pipe] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._page = _Page(limit=0)

    async def __aenter__(self) -> "Proxy":  # noqa: PYI034 - beartype reads no Self here
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=_HEAD)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            for listening in self._server.sockets:
                asyncio.get_running_loop().remove_reader(listening)
            for _step in range(3):  # an accepted connection gets a transport, a stream and a task
                await asyncio.sleep(0)
            self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # transports close in the next step

    @property
    def url(self) -> str:
        """URL of the proxy for a client."""
        if self._server is None:
            raise ValueError("the proxy is not open")
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def begin(self, limit: int) -> None:
        """Serve a new page of at most ``limit`` bytes; close connections of the previous page."""
        self.cut()
        self._page = _Page(limit=limit)

    @property
    def received(self) -> int:
        """Number of bytes received for the page."""
        return self._page.received

    @property
    def exhausted(self) -> bool:
        """Whether the page has exceeded its byte limit."""
        return self._page.received > self._page.limit

    def refusal(self, url: str) -> PageError | None:
        """Return the error that refused a URL's host to this page; ``None`` if none did."""
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return self._page.refusals.get(((parts.hostname or "").rstrip("."), port))

    def cut(self, host: str | None = None) -> None:
        """Close the connections to a host, or to all hosts; received bytes are still delivered."""
        for pipe in list(self._pipes):
            if pipe.server is not None and host in {None, pipe.host}:
                pipe.server.close()
            if host is None:
                pipe.client.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        pipe = Pipe(writer)
        if task is not None:
            self._tasks.add(task)
        self._pipes.add(pipe)
        try:
            await self._serve(reader, pipe)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a side closed the connection or sent no head
        except asyncio.CancelledError:
            pass  # the task ends here; Python 3.11 reports a cancelled task as an error
        finally:
            self._pipes.discard(pipe)
            if task is not None:
                self._tasks.discard(task)
            for end in (pipe.server, writer):
                if end is not None:
                    end.close()

    async def _serve(self, reader: asyncio.StreamReader, pipe: Pipe) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        page = self._page
        try:
            method, target, headers = _parse_head(head)
            host, port = _destination(method, target)
            pipe.host, pipe.port = host, port
            try:
                server, pipe.server = await self._dial(host, port)
            except PageError as refused:
                page.refusals.setdefault((host, port), refused)
                raise
            if page.received <= page.limit:  # otherwise the host stays refused
                page.refusals.pop((host, port), None)
        except PageError as refused:
            pipe.client.write(_refusal_response(refused))
            await pipe.client.drain()
            return
        if method == "CONNECT":
            pipe.client.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            pipe.server.write(_forwarded(method, target, headers))
        await self._relay(reader, server, pipe, page, plain=method != "CONNECT")

    async def _dial(
        self, host: str, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        addresses, port = await self._resolver.resolve(host, port)
        problem = "no address"
        for address in addresses:
            try:
                return await asyncio.wait_for(
                    asyncio.open_connection(str(address), port, limit=_HEAD), _DIAL_S
                )
            except OSError as error:  # TimeoutError is one
                problem = str(error) or "timeout"
        raise PageError("net_error", f"{host}:{port}: {problem}")

    async def _relay(
        self,
        reader: asyncio.StreamReader,
        server: asyncio.StreamReader,
        pipe: Pipe,
        page: _Page,
        *,
        plain: bool,
    ) -> None:
        if pipe.server is None:
            raise ValueError("there is no connection to a server")
        upload = asyncio.ensure_future(_copy(reader, pipe.server))
        try:
            in_head = plain
            while chunk := await (_read_head(server) if in_head else server.read(_CHUNK)):
                page.received += len(chunk)
                if page.received > page.limit:
                    refused = PageError("too_large", f"more than {page.limit} bytes")
                    page.refusals.setdefault((pipe.host, pipe.port), refused)
                    return
                in_head = in_head and _is_interim(chunk)
                pipe.client.write(chunk)
                await pipe.client.drain()
        finally:
            upload.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await upload


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK):
        writer.write(chunk)
        await writer.drain()
    with suppress(OSError):
        if writer.can_write_eof():
            writer.write_eof()


async def _read_head(server: asyncio.StreamReader) -> bytes:
    """Read the head of a response; add ``Connection: close`` unless the response is interim.

    Without it, a client could send its next request, maybe for another host, to this server.
    """
    head = await server.readuntil(b"\r\n\r\n")
    lines = head[:-4].split(b"\r\n")
    kept = [line for line in lines if not line.lower().startswith((b"connection:", b"keep-al"))]
    if not _is_interim(head):
        kept.append(b"Connection: close")
    return b"\r\n".join(kept) + b"\r\n\r\n"


def _is_interim(head: bytes) -> bool:
    status = head.split(b" ", 2)[1:2]
    return bool(status) and status[0].startswith(b"1") and status[0] != b"101"


def _parse_head(head: bytes) -> tuple[str, str, list[bytes]]:
    """Return the method, the target and the header lines of a request."""
    lines = head[:-4].split(b"\r\n")
    parts = lines[0].decode("latin-1").split(" ")
    if len(parts) != 3 or _CONTROL.search(parts[1]):
        raise PageError("bad_request", "not a request line")
    return parts[0], parts[1], lines[1:]


def _destination(method: str, target: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{target}" if method == "CONNECT" else target)
        if bare := _BARE_IPV6.fullmatch(parts.netloc):
            parts = parts._replace(netloc="[{}]:{}".format(*bare.groups()))
        port = parts.port or 80
    except ValueError:
        raise PageError("bad_request", "not an address") from None
    if not parts.hostname or (method != "CONNECT" and parts.scheme != "http"):
        raise PageError("bad_request", "not an absolute http address")
    return parts.hostname.lower().rstrip("."), port


def _forwarded(method: str, target: str, headers: list[bytes]) -> bytes:
    """Convert the head of a proxied request to that of a direct request."""
    parts = urlsplit(target)
    path = target.partition("//")[2][len(parts.netloc) :] or "/"
    path = path if path.startswith("/") else "/" + path
    dropped = (b"proxy-", b"connection:", b"keep-alive:")
    kept = [line for line in headers if not line.lower().startswith(dropped)]
    first = f"{method} {path} HTTP/1.1".encode("latin-1")
    return b"\r\n".join([first, *kept, b"Connection: close"]) + b"\r\n\r\n"


def _refusal_response(refused: PageError) -> bytes:
    status = "403 Forbidden" if refused.code == "private_address" else "502 Bad Gateway"
    body = f"{refused}\n".encode()
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    ).encode() + body
