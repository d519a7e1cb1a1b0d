"""The way out: what is not public is refused by address, at every request and redirect."""

import asyncio
import gc
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

from now_builder.crawl.browser import pool
from now_builder.crawl.politeness import proxy as proxy_module
from now_builder.crawl.politeness import resolver
from now_builder.crawl.politeness.proxy import Proxy
from now_builder.crawl.politeness.resolver import Resolver, is_public, parse_mapping
from now_builder.crawl.run import crawl
from now_builder.crawl.visit import PageError
from now_builder.errors import ConfigError
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


def test_a_private_address_is_told_from_a_public_one() -> None:
    assert [address for address in PRIVATE if is_public(ip_address(address))] == []
    assert [address for address in PUBLIC if not is_public(ip_address(address))] == []


def test_a_mapping_covers_its_host_or_the_hosts_below() -> None:
    for text in ("", "a.test", "a.test:", "a.test:name", "a.test:1.2.3", "a.test:127.0.0.1:0",
                 "a.test:127.0.0.1:99999", ":127.0.0.1", "a.test:127.0.0.1:80:80"):  # fmt: skip
        with pytest.raises(ConfigError, match="--resolve"):
            parse_mapping(text)
    one, below = parse_mapping("a.test:127.0.0.1:80"), parse_mapping("*.test:[::1]")
    assert (one.covers("a.test"), one.covers("b.test")) == (True, False)
    assert (below.covers("b.a.test"), below.covers("test"), below.covers("atest")) == (
        True, False, False,
    )  # fmt: skip
    assert str(below.address) == "::1"


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


HOSTS = ("127.0.0.1", "localhost", "10.0.0.1", "169.254.169.254", "2130706433", "0x7f.1")


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

    _through(work)


def resolve_to(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Answer look-ups in turn, the last for ever; give the list of names that were asked for."""
    asked = []

    def answer(host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        asked.append(host)
        found = answers[min(len(asked), len(answers)) - 1]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    return asked


def test_a_name_that_resolves_to_loopback_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch, ["93.184.216.34", "127.0.0.1"])
    with pytest.raises(PageError, match="private_address"):
        asyncio.run(Resolver([], allow_private=False).resolve("rebind.example", 80))


def test_a_name_is_looked_up_once_so_that_it_cannot_change_its_mind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = resolve_to(monkeypatch, ["93.184.216.34"], ["127.0.0.1"])

    async def run() -> None:
        resolver = Resolver([], allow_private=False)
        both = await asyncio.gather(*(resolver.resolve("rebind.example", 80) for _ in range(2)))
        again = await resolver.resolve("Rebind.example.", 443)
        assert {str(found[0][0]) for found in [*both, again]} == {"93.184.216.34"}

    asyncio.run(run())
    assert asked == ["rebind.example"]


def test_a_mapped_loopback_address_still_needs_allow_private() -> None:
    async def work(proxy: Proxy, client: httpx.AsyncClient) -> None:
        assert (await client.get("http://a.test/")).status_code == 403
        assert proxy.refusal("http://a.test/") is not None

    _through(work, "*.test:127.0.0.1:1")


def test_a_mapped_host_is_reached_with_its_own_name() -> None:
    with Awkward() as server:

        async def work(_proxy: Proxy, client: httpx.AsyncClient) -> None:
            response = await client.get("http://some.test/plain?x=1#y")
            assert response.status_code == 404  # the query is part of the path
            response = await client.get("http://some.test/plain")
            assert response.content == PAGES["/plain"]
            assert response.headers["connection"] == "close"

        _through(work, *server.resolve, allow_private=True)
    assert server.hits["/plain?x=1"] == 1


def test_a_page_gets_no_more_than_its_bytes() -> None:
    with Awkward() as server:

        async def work(proxy: Proxy, client: httpx.AsyncClient) -> None:
            received = (await client.get("http://a.test/endless")).content
            assert len(received) < 1_100_000
            assert proxy.exhausted
            refused = proxy.refusal("http://a.test/")
            assert refused is not None
            assert refused.code == "too_large"
            proxy.begin(1_000_000)
            assert (await client.get("http://a.test/plain")).status_code == 200

        _through(work, *server.resolve, allow_private=True)


def test_heads_without_end_count_as_bytes_of_the_page() -> None:
    with Awkward() as server:

        async def work(proxy: Proxy, client: httpx.AsyncClient) -> None:
            with pytest.raises(httpx.HTTPError):
                await client.get("http://a.test/endless-hints")
            assert proxy.exhausted
            assert proxy.received < 1_100_000

        _through(work, *server.resolve, allow_private=True)


def test_names_that_take_long_hold_up_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """More slow names than the event loop's own pool has threads."""

    def answer(host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        if host.startswith("slow"):
            time.sleep(1.5)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.216.34", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", answer)

    async def run() -> None:
        resolver = Resolver([], allow_private=False)
        slow = [asyncio.create_task(resolver.resolve(f"slow{n}.example", 80)) for n in range(40)]
        await asyncio.sleep(0.1)
        begun = time.monotonic()
        await resolver.resolve("quick.example", 80)
        assert time.monotonic() - begun < 0.7
        await asyncio.gather(*slow)

    asyncio.run(run())


REQUESTS = (
    [(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", b"502"), (b"nonsense\r\n\r\n", b"502"),
     (b"CONNECT :::: HTTP/1.1\r\n\r\n", b"502"), (b"GET ftp://a.test/ HTTP/1.1\r\n\r\n", b"502"),
     (b"CONNECT a.test:99999 HTTP/1.1\r\n\r\n", b"502"),
     (b"GET http://127.0\t.0.1:1/ HTTP/1.1\r\n\r\n", b"502"),  # a parser skips the tab
     (b"GET https://a.test/ HTTP/1.1\r\n\r\n", b"502"), (b"CONNECT :443 HTTP/1.1\r\n\r\n", b"502"),
     (b"GET http:///x HTTP/1.1\r\n\r\n", b"502"), (b"GET  http://::1:1/ HTTP/1.1\r\n\r\n", b"502"),
     (b"GET http://::1:1/ HTTP/1.1\r\n\r\n", b"403")]  # httpx leaves out the brackets
)  # fmt: skip


def test_what_is_no_request_for_a_proxy_is_answered_so() -> None:
    async def work(proxy: Proxy, _client: httpx.AsyncClient) -> None:
        for head, status in REQUESTS:
            assert (await _answer(proxy, head)).startswith(b"HTTP/1.1 " + status), head

    _through(work)


@pytest.mark.browser
def test_the_browser_cannot_get_round_the_refusal(tmp_path: Path) -> None:
    """The listed host is mapped to a public-looking name; what it leads to is private."""
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
def test_https_goes_through_the_same_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A certificate that nobody trusts is in ``test_survival``."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
         "/CN=secure.test", "-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    arguments = (*pool._ARGUMENTS, "--ignore-certificate-errors")
    monkeypatch.setattr(pool, "_ARGUMENTS", arguments)
    with Awkward(context) as server:
        urls = write_list(tmp_path, [f"https://secure.test/{x}" for x in ("plain", "redirect")])
        crawl(urls, tmp_path / "captures", settings_for(server, robots=False))
    rows = read_rows(tmp_path / "captures")
    assert [(row.status, row.caption) for row in rows] == [("ok", "a plain page")] * 2
    sources = {capture.html for capture in read_captures(tmp_path / "captures")}
    assert sources == {PAGES["/plain"]}


def test_look_ups_and_connections_that_are_cancelled_are_not_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One client waits for a look-up, one has sent nothing, when the crawl is stopped."""

    async def slow(host: str) -> tuple[()]:
        asked.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise PageError("dns_error", host) from None
        return ()

    async def stop() -> None:
        look_ups = Resolver([], allow_private=False)
        async with Proxy(look_ups) as proxy:
            port = int(proxy.url.rpartition(":")[2])
            _, silent = await asyncio.open_connection("127.0.0.1", port)
            _, waiting = await asyncio.open_connection("127.0.0.1", port)
            waiting.write(b"CONNECT a.test:443 HTTP/1.1\r\n\r\n")
            await asked.wait()
        await look_ups.close()
        for writer in (silent, waiting):
            writer.close()

    asked = asyncio.Event()
    monkeypatch.setattr(resolver, "_query", slow)
    asyncio.run(stop())
    gc.collect()
    assert [record for record in caplog.records if record.name == "asyncio"] == []


def test_who_connects_while_the_proxy_closes_is_closed_with_it() -> None:
    async def stop(steps: int) -> list[socket.socket]:
        async with Proxy(Resolver([], allow_private=False)) as proxy:
            address = ("127.0.0.1", int(proxy.url.rpartition(":")[2]))
            clients = [socket.create_connection(address) for _ in range(3)]
            for _ in range(steps):
                await asyncio.sleep(0)
        return clients

    for steps in range(6):
        for client in asyncio.run(stop(steps)):
            client.close()
    gc.collect()  # pytest fails a test that leaves a transport open


class _Server:
    """Answers each connection with some bytes, and keeps the head that it was sent."""

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
    """All that the proxy answers."""
    reader, writer = await _ask(proxy, head)
    answer = await reader.read()
    writer.close()
    return answer


@asynccontextmanager
async def _served(
    answer: bytes, limit: int = 1000, *, hold: bool = False
) -> AsyncIterator[tuple[_Server, Proxy]]:
    """A server that gives an answer as every host of ``*.test``, and a proxy before it."""
    names = Resolver([parse_mapping("*.test:127.0.0.1")], allow_private=True)
    async with _Server(answer, hold=hold) as server, Proxy(names) as proxy:
        proxy.begin(limit)
        yield server, proxy


def test_the_next_address_is_dialled_where_the_first_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolve_to(monkeypatch, ["127.0.0.2", "127.0.0.1"])

    async def run() -> None:
        async with (
            _Server(b"HTTP/1.1 200 OK\r\n\r\nhere") as server,
            Proxy(Resolver([], allow_private=True)) as proxy,
        ):
            proxy.begin(1000)
            head = f"GET http://a.example:{server.port}/ HTTP/1.1\r\n\r\n".encode()
            assert (await _answer(proxy, head)).endswith(b"here")
            assert proxy.refusal(f"http://a.example:{server.port}/") is None

    asyncio.run(run())


def test_a_host_that_nobody_answers_for_is_named_with_its_port_until_the_page_ends() -> None:
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


def test_a_host_that_takes_too_long_is_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object, **__: object) -> None:
        await asyncio.sleep(30)

    async def run() -> None:
        async with Proxy(Resolver([], allow_private=True)) as proxy:
            monkeypatch.setattr(asyncio, "open_connection", never)
            with pytest.raises(PageError, match=r"net_error: 127\.0\.0\.9:80: timeout"):
                await proxy._dial("127.0.0.9", 80)

    monkeypatch.setattr(proxy_module, "_DIAL_S", 0.05)
    asyncio.run(run())


TARGETS = (
    [("http://a.test:PORT/x?q=1", "/x?q=1"), ("http://a.test:PORT", "/"),
     ("http://a.test:PORT?q=http://a.test:PORT/", "/?q=http://a.test:PORT/"),
     ("http://tp/http?tp", "/http?tp"), ("http://you:me@tp/", "/")]
)  # fmt: skip


def test_a_request_goes_on_without_what_is_the_proxys() -> None:
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


def test_only_the_last_head_of_an_answer_says_that_the_connection_ends() -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n"
    last = b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nKeep-Alive: timeout=5\r\nX: y\r\n\r\n"
    body = b"HTTP/1.1 in a body is no head\r\n\r\nConnection: stays\r\n\r\n"

    async def run() -> None:
        async with _served(early * 2 + last + body) as (server, proxy):
            head = f"GET http://a.test:{server.port}/ HTTP/1.1\r\n\r\n".encode()
            closing = b"HTTP/1.1 200 OK\r\nX: y\r\nConnection: close\r\n\r\n"
            assert await _answer(proxy, head) == early * 2 + closing + body
            assert proxy.received >= len(early * 2 + closing + body)
            assert not proxy.exhausted

    asyncio.run(run())


def test_a_host_is_cut_off_alone_and_a_new_page_cuts_off_all() -> None:
    async def run() -> None:
        async with _served(b"ready\n", hold=True) as (server, proxy):
            opened = {}
            for host in ("a.test", "b.test"):
                head = f"CONNECT {host}:{server.port} HTTP/1.1\r\n\r\n".encode()
                reader, writer = opened[host] = await _ask(proxy, head)
                assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
                assert await reader.readline() == b"ready\n"
            proxy.cut("a.test")
            assert await asyncio.wait_for(opened["a.test"][0].read(), 5) == b""
            reader, writer = opened["b.test"]
            writer.write(b"still here\n")
            assert await asyncio.wait_for(reader.readline(), 5) == b"still here\n"
            proxy.begin(1000)
            assert await asyncio.wait_for(reader.read(), 5) == b""
            for _, writer in opened.values():
                writer.close()

    asyncio.run(run())


def test_a_refusal_is_found_by_its_scheme_and_without_the_last_dot_until_the_host_is_reached() -> (
    None
):
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


def test_a_page_may_have_exactly_its_bytes() -> None:
    async def run(limit: int, answer: bytes) -> tuple[bytes, bool]:
        async with _served(answer, limit) as (server, proxy):
            url = f"http://a.test:{server.port}/"
            found = await _answer(proxy, f"GET {url} HTTP/1.1\r\n\r\n".encode())
            assert (proxy.refusal(url) is not None) == proxy.exhausted
            return found, proxy.exhausted

    answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + b"x" * 100
    assert asyncio.run(run(len(answer), answer)) == (answer, False)
    found, exhausted = asyncio.run(run(len(answer) - 1, answer))
    assert len(found) < len(answer)
    assert exhausted


def test_heads_may_be_as_long_as_cookies_make_them() -> None:
    """Longer than asyncio reads by default (64 KiB)."""
    long = b"X-Long: " + b"x" * 100_000 + b"\r\n"

    async def run() -> None:
        answer = b"HTTP/1.1 200 OK\r\n" + long + b"\r\nhere"
        async with _served(answer, 1_000_000) as (server, proxy):
            first = f"GET http://a.test:{server.port}/ HTTP/1.1\r\n".encode()
            assert (await _answer(proxy, first + long + b"\r\n")).endswith(b"here")
            assert long in server.heads[0]

    asyncio.run(run())


def test_behind_a_change_of_protocols_nothing_is_a_head() -> None:
    switching = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: own\r\n\r\n"

    async def run() -> None:
        async with _served(switching + b"no head") as (server, proxy):
            head = f"GET http://a.test:{server.port}/ HTTP/1.1\r\n\r\n".encode()
            assert (await _answer(proxy, head)).endswith(b"\r\n\r\nno head")

    asyncio.run(run())


def test_a_proxy_that_closes_waits_for_its_connections() -> None:
    async def run() -> None:
        names = Resolver([parse_mapping("a.test:127.0.0.1")], allow_private=True)
        before = asyncio.all_tasks()
        async with _Server(b"ready\n", hold=True) as server:
            async with Proxy(names) as proxy:
                proxy.begin(1000)
                head = f"CONNECT a.test:{server.port} HTTP/1.1\r\n\r\n".encode()
                reader, writer = await _ask(proxy, head)
                await reader.readuntil(b"ready\n")
                port = int(proxy.url.rpartition(":")[2])
                own = [t for t in asyncio.all_tasks() - before if _file(t) != __file__]
                assert len(own) == 2
            assert all(task.done() for task in own)
            assert not proxy._pipes
            assert not proxy._tasks
            writer.close()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)

    asyncio.run(run())


def _file(task: asyncio.Task[Any]) -> str:
    return str(task.get_coro().cr_code.co_filename)
