"""The crawler's only way out: a loopback proxy that resolves, checks, pins and counts.

The browser, robots.txt and every redirect and picture of a page go through it. Each page in flight
has a gate of its own (a listening port), so that refusals and bytes are known by page.
"""

import asyncio
import re
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Literal
from urllib.parse import urlsplit

from now_builder.errors import ConfigError

Address = IPv4Address | IPv6Address
Refusal = Literal["private_address", "dns_error", "net_error", "too_large", "bad_request", "never"]

_CHUNK = 1 << 16
_HEAD = 1 << 18
_KEEP_S = 300.0
_LOOK_UPS = ThreadPoolExecutor(64, "look-up")
"""The event loop's own pool is small: a few names that take long would hold up all others."""

_DIAL_S = 10.0
_EMBEDDING = (ip_network("64:ff9b::/96"), ip_network("64:ff9b:1::/48"), ip_network("::/96"))
"""IPv6 ranges whose last 32 bits are an IPv4 address."""


class Refused(Exception):  # noqa: N818 - a refusal is no error of ours
    """A connection that was not made.

    Args:
        reason: Class of the refusal.
        detail: For people.
    """

    def __init__(self, reason: Refusal, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: Refusal = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Mapping:
    """One ``--resolve``: a host, or ``*.`` and the end of one, and where it is found."""

    pattern: str
    address: Address
    port: int | None

    def covers(self, host: str) -> bool:
        """Whether the mapping is for this host."""
        if self.pattern.startswith("*."):
            return host.endswith(self.pattern[1:])
        return host == self.pattern


def parse_mapping(text: str) -> Mapping:
    """Read ``HOST:ADDR`` or ``HOST:ADDR:PORT``; an IPv6 address stands in brackets.

    Raises:
        ConfigError: If it is neither.
    """
    found = re.fullmatch(r"([^:\s]+):(\[[0-9a-fA-F:.]+\]|[0-9.]+)(?::(\d{1,5}))?", text.strip())
    addresses = _literal(found[2]) if found else ()
    port = int(found[3]) if found and found[3] else None
    if found is None or not addresses or (port is not None and not 0 < port < 65536):
        raise ConfigError(
            f"--resolve {text}: expected HOST:ADDR or HOST:ADDR:PORT, such as *.test:127.0.0.1:8765"
        )
    return Mapping(found[1].lower(), addresses[0], port)


def is_public(address: Address) -> bool:
    """Whether an address is on the open internet, and no way round to one that is not."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and any(address in network for network in _EMBEDDING):
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        if address.teredo is not None or address.is_site_local:
            return False
    return address.is_global and not (
        address.is_multicast or address.is_reserved or address.is_unspecified
    )


class Resolver:
    """Host names to checked addresses; a name is looked up once in five minutes.

    Args:
        mappings: ``--resolve``; the first that covers a host counts.
        allow_private: Let loopback and private addresses pass.
        never: Hosts that nothing is asked of, subdomains included; lower case.
    """

    def __init__(
        self,
        mappings: Sequence[Mapping],
        *,
        allow_private: bool,
        never: frozenset[str] = frozenset(),
    ) -> None:
        self._never = never
        self._mappings = mappings
        self._allow_private = allow_private
        self._known: dict[str, tuple[float, tuple[Address, ...]]] = {}
        self._pending: dict[str, asyncio.Future[tuple[Address, ...]]] = {}

    async def resolve(self, host: str, port: int) -> tuple[tuple[Address, ...], int]:
        """Give the addresses to dial for a host, and the port.

        Raises:
            Refused: ``dns_error``, ``private_address`` if any address is not public, or ``never``.
        """
        host = host.lower().rstrip(".")
        if self._never and (barred := self._barred(host)) is not None:
            raise Refused("never", f"{barred} is on the list of hosts never to visit")
        mapped = next((mapping for mapping in self._mappings if mapping.covers(host)), None)
        if mapped is not None:
            addresses: tuple[Address, ...] = (mapped.address,)
            port = mapped.port or port
        else:
            addresses = _literal(host) or await self._look_up(host)
        if not self._allow_private:
            for address in addresses:
                if not is_public(address):
                    raise Refused("private_address", f"{host} is {address}")
        return addresses, port

    def is_local(self, host: str) -> bool:
        """Whether a host is known to be mapped or private, so that politeness is not needed."""
        host = host.lower().strip("[]")
        if any(mapping.covers(host) for mapping in self._mappings):
            return True
        known = self._known.get(host)
        addresses = _literal(host) or (known[1] if known else ())
        return bool(addresses) and not all(is_public(address) for address in addresses)

    def _barred(self, host: str) -> str | None:
        """Give the listed host that a host is, or is below."""
        parts = host.split(".")
        above = (".".join(parts[place:]) for place in range(len(parts)))
        return next((name for name in above if name in self._never), None)

    async def _look_up(self, host: str) -> tuple[Address, ...]:
        known = self._known.get(host)
        if known and time.monotonic() - known[0] < _KEEP_S:
            return known[1]
        if host not in self._pending:
            task = asyncio.ensure_future(_ask(host))
            self._pending[host] = task
            task.add_done_callback(lambda _: self._pending.pop(host, None))
        addresses = await asyncio.shield(self._pending[host])
        self._known[host] = (time.monotonic(), addresses)
        return addresses


def _literal(host: str) -> tuple[Address, ...]:
    try:
        return (ip_address(host.strip("[]").partition("%")[0]),)
    except ValueError:
        return ()


async def _ask(host: str) -> tuple[Address, ...]:
    loop = asyncio.get_running_loop()
    look_up = partial(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM)
    try:
        # getaddrinfo also reads the odd spellings of addresses (0x7f.1, 2130706433), as dialling
        # would; what comes back is checked, so none of them gets round the check.
        found = await asyncio.wait_for(loop.run_in_executor(_LOOK_UPS, look_up), _DIAL_S)
    except (OSError, UnicodeError) as error:
        raise Refused("dns_error", f"{host}: {error or 'timeout'}") from None
    return tuple(dict.fromkeys(ip_address(item[4][0].partition("%")[0]) for item in found))  # type: ignore[union-attr]


@dataclass(slots=True, eq=False)
class _Pipe:
    """One connection of a client and what it was dialled to."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter | None = None
    host: str = ""
    port: int = 0


@dataclass(slots=True)
class _Page:
    """What a gate knows of the page that it serves now."""

    limit: int
    received: int = 0
    refusals: dict[tuple[str, int], Refused] = field(default_factory=dict)


class Gate:
    """A listening port of the proxy, for one page at a time.

    Args:
        resolver: Shared by all gates.
    """

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._pipes: set[_Pipe] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._page = _Page(limit=0)

    async def __aenter__(self) -> "Gate":  # noqa: PYI034 - beartype reads no Self here
        """Listen on a free loopback port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=_HEAD)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the port and every connection."""
        if self._server is not None:
            self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # transports close one step later

    @property
    def url(self) -> str:
        """What a client is given as its proxy."""
        if self._server is None:
            raise ValueError("the gate is not open")
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def begin(self, limit: int) -> None:
        """Serve a new page: drop what is left of the last one.

        Args:
            limit: Most bytes to receive for the page.
        """
        self.cut()
        self._page = _Page(limit=limit)

    @property
    def received(self) -> int:
        """Bytes received for this page."""
        return self._page.received

    @property
    def exhausted(self) -> bool:
        """Whether the page has used up its bytes."""
        return self._page.received > self._page.limit

    def refusal(self, url: str) -> Refused | None:
        """Why the host of a URL was not reached at its port on this page, if so."""
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return self._page.refusals.get(((parts.hostname or "").rstrip("."), port))

    def cut(self, host: str | None = None) -> None:
        """End the connections to a host, or all; what has arrived is still delivered.

        Args:
            host: ``None`` for all.
        """
        for pipe in list(self._pipes):
            if host is None or pipe.host == host.lower().strip("[]"):
                for writer in (pipe.server, pipe.client if host is None else None):
                    if writer is not None:
                        writer.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        pipe = _Pipe(writer)
        if task is not None:
            self._tasks.add(task)
        self._pipes.add(pipe)
        try:
            await self._serve(reader, pipe)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # either side went away, or sent no head; there is nobody to tell
        finally:
            self._pipes.discard(pipe)
            if task is not None:
                self._tasks.discard(task)
            for end in (pipe.server, writer):
                if end is not None:
                    end.close()

    async def _serve(self, reader: asyncio.StreamReader, pipe: _Pipe) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        page = self._page
        try:
            method, target, headers = _parse_head(head)
            host, port = _destination(method, target)
            pipe.host, pipe.port = host, port
            try:
                server, pipe.server = await self._dial(host, port)
            except Refused as refused:
                page.refusals.setdefault((host, port), refused)
                raise
        except Refused as refused:
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
        problem: object = None
        for address in addresses:
            try:
                return await asyncio.wait_for(
                    asyncio.open_connection(str(address), port, limit=_HEAD), _DIAL_S
                )
            except OSError as error:  # TimeoutError is one
                problem = error or "timeout"
        raise Refused("net_error", f"{host}:{port}: {problem}")

    async def _relay(
        self,
        reader: asyncio.StreamReader,
        server: asyncio.StreamReader,
        pipe: _Pipe,
        page: _Page,
        *,
        plain: bool,
    ) -> None:
        if pipe.server is None:
            raise ValueError("nothing was dialled")
        upload = asyncio.ensure_future(_copy(reader, pipe.server))
        try:
            in_head = plain
            while chunk := await (_read_head(server) if in_head else server.read(_CHUNK)):
                page.received += len(chunk)
                if page.received > page.limit:
                    refused = Refused("too_large", f"more than {page.limit} bytes")
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
    """Read the head of a response, saying that the connection ends with it unless it is interim.

    Without this a client could send its next request, maybe for another host, to this server.
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
    lines = head[:-4].split(b"\r\n")
    parts = lines[0].decode("latin-1").split(" ")
    if len(parts) != 3:
        raise Refused("bad_request", "not a request line")
    return parts[0], parts[1], lines[1:]


def _destination(method: str, target: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{target}" if method == "CONNECT" else target)
        port = parts.port or 80
    except ValueError:
        raise Refused("bad_request", "not an address") from None
    if not parts.hostname or (method != "CONNECT" and parts.scheme != "http"):
        raise Refused("bad_request", "not an absolute http address")
    return parts.hostname.lower().rstrip("."), port


def _forwarded(method: str, target: str, headers: list[bytes]) -> bytes:
    """Rewrite the head of a proxied request for the server itself."""
    parts = urlsplit(target)
    path = target.split(parts.netloc, 1)[1] or "/"
    path = path if path.startswith("/") else "/" + path
    kept = [
        line
        for line in headers
        if not line.lower().startswith((b"proxy-", b"connection:", b"keep-alive:"))
    ]
    first = f"{method} {path} HTTP/1.1".encode("latin-1")
    return b"\r\n".join([first, *kept, b"Connection: close"]) + b"\r\n\r\n"


def _refusal_response(refused: Refused) -> bytes:
    status = "403 Forbidden" if refused.reason == "private_address" else "502 Bad Gateway"
    body = f"{refused}\n".encode()
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    ).encode() + body
