"""The proxy refuses addresses that are not public, at every request and redirect."""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Self

import httpx
import pytest

from now_builder.crawl.browser import pool
from now_builder.crawl.politeness import resolver
from now_builder.crawl.politeness.proxy import Proxy
from now_builder.crawl.politeness.resolver import Resolver, is_public, parse_mapping
from now_builder.crawl.run import crawl
from now_builder.formats.shard import read_captures, read_rows
from tests.now_builder.crawl.awkward import PAGES, Awkward
from tests.now_builder.crawl.crawls import settings_for, visit, write_list

PRIVATE = (
    ["127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
     "0.0.0.0", "224.0.0.1", "255.255.255.255", "240.0.0.1", "192.0.2.1", "::1", "::", "fe80::1",
     "fc00::1", "ff02::1", "fec0::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1",
     "64:ff9b:1::7f00:1", "64:ff9b:1::808:808", "64:ff9b:1:7f00:0:100:808:808",
     "2002:7f00:1::", "2002:a00:1::1", "::7f00:1", "2001:db8::1",
     "2001:0:4136:e378:8000:63bf:3fff:fdd2"]
)  # fmt: skip
PUBLIC = ["8.8.8.8", "93.184.216.34", "2606:4700::6810:84e5", "::ffff:8.8.8.8", "64:ff9b::808:808"]


def test_only_public_addresses_are_public() -> None:
    assert [address for address in PRIVATE if is_public(ip_address(address))] == []
    assert [address for address in PUBLIC if not is_public(ip_address(address))] == []


def _through(
    work: Callable[[Proxy, httpx.AsyncClient], Awaitable[None]],
    *mappings: str,
    allow_private: bool = False,
) -> None:
    async def run() -> None:
        resolver = Resolver([parse_mapping(text) for text in mappings], allow_private=allow_private)
        async with Proxy(resolver) as proxy:
            proxy.begin(1_000_000)
            async with httpx.AsyncClient(proxy=proxy.url, trust_env=False, timeout=60) as client:
                await work(proxy, client)

    asyncio.run(run())


def test_a_mapped_host_gets_the_request_under_its_own_name() -> None:
    with Awkward() as server:

        async def work(proxy: Proxy, client: httpx.AsyncClient) -> None:
            response = await client.get("http://some.test/plain?x=1#y")
            assert response.status_code == 404  # the query is part of the path
            received = (await client.get("http://a.test/endless")).content
            assert len(received) < 1_100_000
            assert proxy.exhausted
            refused = proxy.refusal("http://a.test/")
            assert refused is not None
            assert refused.code == "too_large"
            proxy.begin(1_000_000)
            response = await client.get("http://some.test/plain")
            assert response.content == PAGES["/plain"]
            assert response.headers["connection"] == "close"
            with pytest.raises(httpx.HTTPError):
                await client.get("http://a.test/endless-hints")
            assert proxy.exhausted
            assert proxy.received < 1_100_000

        _through(work, *server.resolve, allow_private=True)
    assert server.hits["/plain?x=1"] == 1


HOSTS = ("a.test", "127.0.0.1", "localhost", "10.0.0.1", "169.254.169.254", "2130706433", "0x7f.1")


def test_a_private_host_is_refused_however_it_is_spelt() -> None:
    async def work(proxy: Proxy, client: httpx.AsyncClient) -> None:
        for host in HOSTS:
            response = await client.get(f"http://{host}:1/")
            assert response.status_code == 403
            refused = proxy.refusal(f"http://{host}:1/")
            assert refused is not None
            assert refused.code == "private_address"
            with pytest.raises(httpx.ProxyError):
                await client.get(f"https://{host}:1/")

    _through(work, "*.test:127.0.0.1:1")


REQUESTS = (
    [(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", b"502"), (b"nonsense\r\n\r\n", b"502"),
     (b"CONNECT :::: HTTP/1.1\r\n\r\n", b"502"), (b"GET ftp://a.test/ HTTP/1.1\r\n\r\n", b"502"),
     (b"CONNECT a.test:99999 HTTP/1.1\r\n\r\n", b"502"),
     (b"GET http://127.0\t.0.1:1/ HTTP/1.1\r\n\r\n", b"502"),  # a parser skips the tab
     (b"GET https://a.test/ HTTP/1.1\r\n\r\n", b"502"), (b"CONNECT :443 HTTP/1.1\r\n\r\n", b"502"),
     (b"GET http:///x HTTP/1.1\r\n\r\n", b"502"), (b"GET  http://::1:1/ HTTP/1.1\r\n\r\n", b"502"),
     (b"GET http://::1:1/ HTTP/1.1\r\n\r\n", b"403")]  # httpx leaves out the brackets
)  # fmt: skip


def test_an_invalid_request_gets_an_error_status() -> None:
    async def work(proxy: Proxy, _client: httpx.AsyncClient) -> None:
        for head, status in REQUESTS:
            assert (await _answer(proxy, head)).startswith(b"HTTP/1.1 " + status), head

    _through(work)


@pytest.mark.browser
def test_the_browser_cannot_bypass_the_refusal(tmp_path: Path) -> None:
    """The listed host is mapped; the pages to which it leads are private."""
    with Awkward() as server:
        urls = [f"127.0.0.1:{server.port}/plain", f"localhost:{server.port}/plain", "[::1]:8080/",
                "/plain"]  # fmt: skip
        rows = visit(tmp_path, server, urls, allow_private=False, robots=False)
    assert {(row.status, row.error) for row in rows.values()} == {("refused", "private_address")}
    assert not server.hits


@pytest.mark.browser
def test_a_redirect_to_a_private_address_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loopback counts as public here, and nothing else does that is not: the server must be met."""
    monkeypatch.setattr(resolver, "is_public", lambda address: str(address) == "127.0.0.1")
    paths = ["/to-private", "/to-metadata", "/spies", "/plain"]
    with Awkward() as server:
        rows = visit(tmp_path, server, paths, allow_private=False, per_host_delay_s=0)
    assert [(rows[path].status, rows[path].error) for path in paths] == [
        ("refused", "private_address"), ("refused", "private_address"), ("ok", None), ("ok", None),
    ]  # fmt: skip
    assert rows["/to-metadata"].final_url == "http://169.254.169.254/latest"


@pytest.mark.browser
@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
def test_https_goes_through_the_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An untrusted certificate is an error, found by the request for robots.txt or the browser."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
         "/CN=secure.test", "-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    arguments = (*pool._ARGUMENTS, "--ignore-certificate-errors")
    with Awkward(context) as server:
        urls = write_list(tmp_path, [f"https://secure.test/{x}" for x in ("plain", "redirect")])
        for robots in (True, False):
            crawl(urls, tmp_path / str(robots), settings_for(server, robots=robots))
            for row in read_rows(tmp_path / str(robots)):
                assert (row.status, row.error) == ("failed", "tls_error")
        monkeypatch.setattr(pool, "_ARGUMENTS", arguments)
        crawl(urls, tmp_path / "captures", settings_for(server, robots=False))
    rows = read_rows(tmp_path / "captures")
    assert [(row.status, row.caption) for row in rows] == [("ok", "a plain page")] * 2
    sources = {capture.html for capture in read_captures(tmp_path / "captures")}
    assert sources == {PAGES["/plain"]}


class _Server:
    """Answers each connection with these bytes and stores the head of the request."""

    def __init__(self, answer: bytes = b"", *, hold: bool = False) -> None:
        self.answer, self.hold = answer, hold
        self.heads: list[bytes] = []
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.hold:
            self.heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(self.answer)
        await writer.drain()
        if self.hold:
            while line := await reader.readline():  # an echo, until the other side goes
                writer.write(line)
                await writer.drain()
        writer.close()


async def _ask(proxy: Proxy, head: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    port = int(proxy.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head)
    return reader, writer


async def _answer(proxy: Proxy, head: bytes) -> bytes:
    """Return the whole answer of the proxy."""
    reader, writer = await _ask(proxy, head)
    answer = await reader.read()
    writer.close()
    return answer


@asynccontextmanager
async def _served(
    answer: bytes, limit: int = 1000, *, hold: bool = False
) -> AsyncIterator[tuple[_Server, Proxy]]:
    """Yield a server that answers for every host of ``*.test``, and a proxy for it."""
    names = Resolver([parse_mapping("*.test:127.0.0.1")], allow_private=True)
    async with _Server(answer, hold=hold) as server, Proxy(names) as proxy:
        proxy.begin(limit)
        yield server, proxy


def test_an_unreachable_host_and_port_is_refused_until_the_page_ends() -> None:
    async def work(proxy: Proxy, client: httpx.AsyncClient) -> None:
        assert (await client.get("http://a.test/")).status_code == 502
        refused = proxy.refusal("http://a.test/")
        assert refused is not None
        assert refused.code == "net_error"
        assert refused.message.startswith("a.test:1: ")
        assert (
            "refused" in refused.message.lower() or "connect call failed" in refused.message.lower()
        )
        assert proxy.refusal("https://a.test/") is None  # another port
        assert proxy.refusal("http://b.test/") is None
        proxy.begin(1000)
        assert proxy.refusal("http://a.test/") is None

    _through(work, "a.test:127.0.0.1:1", allow_private=True)


TARGETS = (
    [("http://a.test:PORT/x?q=1", "/x?q=1"), ("http://a.test:PORT", "/"),
     ("http://a.test:PORT?q=http://a.test:PORT/", "/?q=http://a.test:PORT/"),
     ("http://tp/http?tp", "/http?tp"), ("http://you:me@tp/", "/")]
)  # fmt: skip


EARLY = b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n" * 2
KEPT_ALIVE = b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nKeep-Alive: timeout=5\r\nX: y\r\n\r\n"
CLOSING = b"HTTP/1.1 200 OK\r\nX: y\r\nConnection: close\r\n\r\n"
BODY = b"HTTP/1.1 in a body is no head\r\n\r\nConnection: stays\r\n\r\n"
SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: own\r\n\r\n"
LONG = b"X-Long: " + b"x" * 100_000 + b"\r\n"  # more than asyncio reads by default (64 KiB)
PASSED_ON = (
    [(EARLY + KEPT_ALIVE + BODY, EARLY + CLOSING + BODY, 1000),
     (SWITCHING + b"no head", b"\r\n\r\nno head", 1000),
     (b"HTTP/1.1 200 OK\r\n" + LONG + b"\r\nhere", b"here", 1_000_000),
     (CLOSING + b"x" * 100, CLOSING + b"x" * 100, len(CLOSING) + 100),
     (CLOSING + b"x" * 100, None, len(CLOSING) + 99)]
)  # fmt: skip
"""Answers, the expected end of what the client receives, and the byte limit."""


def test_only_the_last_head_of_an_answer_closes_the_connection() -> None:
    async def run(answer: bytes, expected: bytes | None, limit: int) -> None:
        async with _served(answer, limit) as (server, proxy):
            url = f"http://a.test:{server.port}/"
            more = LONG if limit > 10_000 else b""
            answered = await _answer(proxy, f"GET {url} HTTP/1.1\r\n".encode() + more + b"\r\n")
            assert more in server.heads[0]
            assert (proxy.refusal(url) is not None) == proxy.exhausted == (expected is None)
            assert answered.endswith(expected) if expected else len(answered) < len(answer)

    for answer, expected, limit in PASSED_ON:
        asyncio.run(run(answer, expected, limit))


def test_connections_are_closed_by_host_or_all_at_a_new_page_and_at_the_end() -> None:
    async def run() -> None:
        before = asyncio.all_tasks()
        async with _served(b"ready\n", hold=True) as (server, proxy):

            async def connect(host: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
                head = f"CONNECT {host}:{server.port} HTTP/1.1\r\n\r\n".encode()
                reader, writer = await _ask(proxy, head)
                await reader.readuntil(b"ready\n")
                return reader, writer

            opened = [await connect(host) for host in ("a.test", "b.test")]
            proxy.cut("a.test")
            assert await asyncio.wait_for(opened[0][0].read(), 5) == b""
            reader, writer = opened[1]
            writer.write(b"still here\n")
            assert await asyncio.wait_for(reader.readline(), 5) == b"still here\n"
            proxy.begin(1000)
            assert await asyncio.wait_for(reader.read(), 5) == b""
            opened.append(await connect("d.test"))
            opened[-1][1].write_eof()  # the server hears that no more comes, and ends
            assert await asyncio.wait_for(opened[-1][0].read(), 5) == b""
            opened.append(await connect("c.test"))
            tasks = asyncio.all_tasks() - before
            serving = [task for task in tasks if "Proxy." in str(task.get_coro())]
        assert serving
        assert all(task.done() for task in serving)
        assert not proxy._pipes
        assert not proxy._tasks
        for _, writer in opened:
            writer.close()

    asyncio.run(run())


def test_a_request_is_forwarded_without_headers_for_the_proxy() -> None:
    async def run(target: str, first: str) -> None:
        async with _Server(b"HTTP/1.1 204 No Content\r\n\r\n") as server, AsyncExitStack() as stack:
            hosts = ["a.test:127.0.0.1", f"tp:127.0.0.1:{server.port}"]
            names = Resolver([parse_mapping(host) for host in hosts], allow_private=True)
            proxy = await stack.enter_async_context(Proxy(names))
            proxy.begin(1000)
            port = str(server.port)
            head = (
                f"GET {target.replace('PORT', port)} HTTP/1.1\r\nHost: a.test\r\n"
                "Proxy-Connection: keep-alive\r\nPROXY-Authorization: Basic eDp5\r\n"
                "Connection: keep-alive\r\nKeep-Alive: timeout=5\r\nX-Own: 1\r\n\r\n"
            )
            assert (await _answer(proxy, head.encode())).startswith(b"HTTP/1.1 204")
            lines = server.heads[0].decode().split("\r\n")
            assert lines == [
                f"GET {first.replace('PORT', port)} HTTP/1.1", "Host: a.test", "X-Own: 1",
                "Connection: close", "", "",
            ]  # fmt: skip

    for target, first in TARGETS:
        asyncio.run(run(target, first))


def test_a_refusal_is_stored_by_host_and_port_until_the_host_is_reached() -> None:
    async def run() -> None:
        async with _Server(b"HTTP/1.1 200 OK\r\n\r\nhere") as server:
            names = Resolver([parse_mapping("a.test:127.0.0.1")], allow_private=False)
            async with Proxy(names) as proxy:
                proxy.begin(1000)
                for target in ("a.test:443", f"A.test.:{server.port}", f"..a.test:{server.port}"):
                    await _answer(proxy, f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())
                assert proxy.refusal("https://a.test/x") is not None
                assert proxy.refusal("http://a.test/x") is None
                for host in ("a.test", "a.test."):
                    assert proxy.refusal(f"http://{host}:{server.port}/") is not None
                assert proxy.refusal(f"http://..a.test:{server.port}/") is not None
                names._allow_private = True
                head = f"GET http://a.test:{server.port}/ HTTP/1.1\r\n\r\n".encode()
                assert (await _answer(proxy, head)).endswith(b"here")
                assert proxy.refusal(f"http://a.test:{server.port}/") is None
                assert proxy.refusal("https://a.test/x") is not None

    asyncio.run(run())
