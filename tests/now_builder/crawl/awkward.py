"""A local server of awkward pages; every host name of it is ``*.test``."""

import asyncio
import gzip
import ssl
import struct
import threading
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET
from typing import Self

from .cases import read_cases
from .hostile import ANSWERS, HARMFUL, STREAMS

OPEN = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n"
TEXT = "<p>" + "A page that shows too little is waited for. " * 16 + "</p>"


def page(
    description: str | None, body: str = "<h1>Hello</h1>", head: str = "", text: str = TEXT
) -> bytes:
    meta = "" if description is None else f'<meta name="description" content="{description}">'
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>A page</title>'
        '<meta name="viewport" content="width=device-width">'
        f"{meta}{head}</head><body>{body}{text}</body></html>"
    ).encode()


def _png(side: int = 8) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    rows = b"".join(b"\0" + b"\xc0\x20\x20" * side for _ in range(side))
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )  # fmt: skip


GBK = (
    '<html><head><title>旅行</title><meta name="description" content="北京最好吃的餐厅推荐，'
    '全家人都喜欢"></head><body>' + "欢迎光临" * 800 + "</body></html>"
)


def undeclared(description: str, text: str, codec: str, head: str = "") -> bytes:
    return (
        f'<html><head><title>A page</title><meta name=description content="{description}">{head}'
        f"</head><body><h1>{text}</h1>{f'<p>{text}</p>' * 40}</body></html>"
    ).encode(codec)


BREAD = "Świeży chleb i ciasta każdego ranka w naszej piekarni, także w święta"
TEA = "Чай и кофе из дальних стран"
UNDECLARED: dict[str, bytes] = {
    "/gbk": GBK.encode("gbk"),
    "/windows-1250": undeclared(BREAD, BREAD, "cp1250"),
    "/utf-8": undeclared(TEA, TEA, "utf-8"),
    "/utf-8-late": undeclared(TEA, TEA, "utf-8", f"<p>{' ' * 1100}<meta charset=utf-8>"),
    "/utf-8-unseen": undeclared(TEA, "Tea and coffee &copy; <!-- чай -->", "utf-8"),
    "/utf-8-script": undeclared(
        "tea", f"<script>document.querySelector('h1').append('{TEA}')</script>", "utf-8"
    ),
    "/utf-8-damaged": undeclared(TEA, TEA, "utf-8").replace(
        "кофе".encode(), "коф".encode() + b"\xd0"
    ),
    "/ascii": undeclared("plain", "plain", "ascii"),
}
"""Pages served as text/html without a declared encoding."""

SLOW: dict[str, tuple[float, str, bytes]] = {
    "/slow": (1.5, "text/html; charset=utf-8", page("slow but fine")),
    "/slow-red.png": (0.4, "image/png", _png()),
    "/slow.css": (0.7, "text/css", b"main { display: block !important }"),
    "/slow-script.js": (
        0.4, "text/javascript",
        b"for (const i of document.querySelectorAll('.later')) i.src = i.dataset.src",
    ),
}  # fmt: skip
"""Seconds until an answer, its type and its body."""

AWKWARD = read_cases(Path(__file__).with_suffix(".toml"))
PAGES: dict[str, bytes] = {
    path: page(**{"description": None} | parts) for path, parts in AWKWARD.items()
}


class Awkward:
    """The server, in a thread of its own.

    Attributes:
        hits: Requests by path.
        agents: User agents that asked.
        pages: HTML by path; a test may add to it.
    """

    def __init__(self, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        self._tls, self._host = tls, host
        self.hits: Counter[str] = Counter()
        self.agents: set[str] = set()
        self.pages = PAGES | HARMFUL | UNDECLARED
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()
        self._routes: dict[str, Callable[[asyncio.StreamWriter], Awaitable[None]]] = {
            "/hang": self._hang, "/hang.woff2": self._hang, "/silent": self._hang,
            "/endless": self._endless, "/drip": self._drip, "/truncated": self._truncated,
            "/reset": self._reset,
        }  # fmt: skip
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def url(self, path: str, host: str = "site.test") -> str:
        return f"http://{host}{path}"

    @property
    def resolve(self) -> list[str]:
        return [f"*.test:127.0.0.1:{self.port}"]

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            asyncio.start_server(self._accept, self._host, 0, limit=1 << 20, ssl=self._tls)
        )
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        for listening in server.sockets:
            self._loop.remove_reader(listening)
        self._loop.run_until_complete(asyncio.sleep(0.1))  # also close new connections
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.run_until_complete(asyncio.sleep(0.1))  # transports close in the next step
        self._loop.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        path = head.split(" ")[1]
        self.hits[path] += 1
        for line in head.split("\r\n"):
            if line.lower().startswith("user-agent:"):
                self.agents.add(line.partition(":")[2].strip())
        if path in SLOW:
            seconds, *answer = SLOW[path]
            await asyncio.sleep(seconds)
            writer.write(response(200, *answer))
            await writer.drain()
        elif path in self._routes:
            await self._routes[path](writer)
        elif path in STREAMS:

            async def send(content: bytes) -> None:
                writer.write(content)
                await writer.drain()
                await asyncio.sleep(0)  # so that a connection that is lost is noticed

            await STREAMS[path](send)
        else:
            writer.write(self._busy(path) if path.startswith("/busy") else self._answer(path))
            await writer.drain()

    def _answer(self, path: str) -> bytes:
        html = "text/html; charset=utf-8"
        if path == "/robots.txt":
            return response(200, "text/plain", b"User-agent: *\nDisallow: /hidden\n")
        if path in ANSWERS:
            return ANSWERS[path]
        if path.startswith("/frames?"):
            path = "/frames"
        if path in self.pages:
            header = "text/html" if path == "/old" or path in UNDECLARED else html
            return response(200, header, self.pages[path])
        if path.startswith("/page/"):
            number = path.rpartition("/")[2]
            return response(200, html, page(f"number {number}", f"<h1>{number}</h1>" * 20))
        moves = {
            "/redirect": "/plain",
            "/loop": "/loop",
            "/to-hidden": "http://other.test/hidden",
            "/to-private": "http://10.1.2.3/secret",
            "/to-metadata": "http://169.254.169.254/latest",
            "/to-loopback": "http://localhost:1/",
            "/to-file": "file:///etc/passwd",
            "/to-nowhere": "http://nowhere.invalid/",
        }
        if path in moves:
            return response(302, html, b"", f"Location: {moves[path]}")
        return _answers().get(path, response(404, html, page("not here")))

    def _busy(self, path: str) -> bytes:
        """Refuse twice; ``/busy/STATUS/RETRY-AFTER``."""
        _, _, status, after = path.split("/")
        if self.hits[path] > 2:
            return response(200, "text/html", page("no longer busy"))
        header = [f"Retry-After: {after}"] if after != "-" else []
        return response(int(status), "text/html", b"later", *header)

    async def _hang(self, _writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(3600)

    async def _endless(self, writer: asyncio.StreamWriter) -> None:
        writer.write(OPEN + page("endless")[:-14])
        while True:
            writer.write(b"<p>more and more and more</p>" * 2000)
            await writer.drain()
            await asyncio.sleep(0)

    async def _drip(self, writer: asyncio.StreamWriter) -> None:
        writer.write(OPEN + page("drips")[:-14])
        while True:
            await writer.drain()
            await asyncio.sleep(0.2)
            writer.write(b"<p>drip</p>")

    async def _truncated(self, writer: asyncio.StreamWriter) -> None:
        body = page("cut off", "<h1>Begins</h1>" + "<p>text</p>" * 50)
        writer.write(response(200, "text/html; charset=utf-8", body)[:-400])
        await writer.drain()

    async def _reset(self, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()


@cache
def _answers() -> dict[str, bytes]:
    """Answers that never change, a bomb of 80 MB among them: made once, not at every request."""
    html = "text/html; charset=utf-8"
    tag = "X-Robots-Tag: otherbot: noindex, nofollow\r\nX-Robots-Tag: noai"
    return {
        "/tagged": response(200, html, page("tagged"), tag),
        "/sandboxed": response(
            200, html, page("without scripts"), "Content-Security-Policy: sandbox"
        ),
        "/299": response(299, html, page("a success without a name")),
        "/404": response(404, html, page("an error page")),
        "/500": response(500, html, page("an error page")),
        "/401": response(401, html, b"who?", 'WWW-Authenticate: Basic realm="x"'),
        "/204": response(204, html, b""),
        "/pdf": response(200, "application/pdf", b"%PDF-1.4"),
        "/json": response(200, "application/json", b"{}"),
        "/download": response(
            200, html, page("a file"), 'Content-Disposition: attachment; filename="x.html"'
        ),
        "/octets": response(200, "application/octet-stream", b"\0\1\2"),
        "/red.png": response(200, "image/png", _png()),
        "/bomb": response(
            200, html, gzip.compress(b" " * 80_000_000, 9), "Content-Encoding: gzip"
        ),
        "/gzip": response(
            200, "text/html; charset=gbk", gzip.compress(GBK.encode("gbk")),
            "Content-Encoding: gzip",
        ),
        "/long-header": response(200, html, page("x"), "X-Long: " + "x" * 400_000),
        "/untyped": b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + page("no content type"),
        "/chunked": b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked"
        b"\r\n\r\n" + b"".join(
            b"%x\r\n%s\r\n" % (len(part), part)
            for part in (page("in chunks")[:50], page("in chunks")[50:])
        ) + b"0\r\n\r\n",
    }  # fmt: skip


def response(status: int, kind: str, body: bytes, *headers: str) -> bytes:
    lines = [
        f"HTTP/1.1 {status} Status", f"Content-Type: {kind}", f"Content-Length: {len(body)}",
        "Connection: close", *headers,
    ]  # fmt: skip
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
