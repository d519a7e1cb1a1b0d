"""robots.txt: requested once per origin through the proxy, and parsed by RFC 9309."""

import asyncio
import gzip
import socket
import zlib
from collections.abc import Awaitable, Callable

import pytest

from now_builder.crawl.politeness import plain, site_rules
from now_builder.crawl.politeness.proxy import Proxy
from now_builder.crawl.politeness.resolver import Resolver, parse_mapping
from now_builder.crawl.politeness.site_rules import SiteRules
from now_builder.crawl.visit import PageError


class Sites:
    """Hosts with a robots.txt each: (status, headers, body); ``None`` closes the connection.

    The first ``broken`` requests are closed too.
    """

    def __init__(self, answers: dict[str, tuple[int, str, bytes] | None], broken: int = 0) -> None:
        self.answers, self.broken = answers, broken
        self.asked: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        host = next(line[6:] for line in head.split("\r\n") if line.lower().startswith("host: "))
        self.asked.append(host + head.split(" ")[1])
        answer = self.answers.get(host.strip())
        if len(self.asked) <= self.broken:
            answer = None
        if answer is not None:
            status, headers, body = answer
            writer.write(
                f"HTTP/1.1 {status} x\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode()
                + body
            )
            await writer.drain()
        writer.close()


def ask(sites: Sites, work: Callable[[SiteRules], Awaitable[None]]) -> None:
    async def run() -> None:
        server = await asyncio.start_server(sites.serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        mapping = parse_mapping(f"*.test:127.0.0.1:{port}")
        async with Proxy(Resolver([mapping], allow_private=True)) as proxy:
            proxy.begin(1 << 40)
            robots = SiteRules(proxy, "noise-of-web/test", frozenset(), obey_robots=True)
            await work(robots)
            await robots.close()
        server.close()

    asyncio.run(run())


def verdict_of(answer: tuple[int, str, bytes] | None) -> str:
    """Return the verdict if a.test gives an answer; b.test and ☃.test disallow everything."""
    closed = (200, "", CLOSED)
    verdicts = []

    async def work(robots: SiteRules) -> None:
        verdicts.append((await robots.decide("http://a.test/page")).verdict)

    ask(Sites({"a.test": answer, "b.test": closed, "xn--n3h.test": closed}), work)
    return verdicts[0]


CLOSED = b"User-agent: *\nDisallow: /\n"
RULES = b"""User-agent: *
Disallow: /all
User-agent: Noise-of-Web
Crawl-delay: 7
Disallow: /ours
Allow: /ours/but-this
"""


def test_the_rules_for_our_token_count_before_those_for_all() -> None:
    sites = Sites({"a.test": (200, "", RULES)})

    async def work(robots: SiteRules) -> None:
        verdicts = [
            (await robots.decide(f"http://a.test{path}")).verdict
            for path in ("/", "/all", "/ours", "/ours/x?y=1", "/ours/but-this")
        ]
        assert verdicts == ["allowed", "allowed", "robots", "robots", "allowed"]
        for path in ("/", "/ours"):  # also of pages that may not be visited
            assert (await robots.decide(f"http://a.test{path}")).delay_s == 7

    ask(sites, work)
    assert sites.asked == ["a.test/robots.txt"]


ANSWERS = [
    ((404, "", b""), "allowed"),
    ((403, "", b"User-agent: *\nDisallow: /"), "allowed"),
    ((410, "", b""), "allowed"),
    ((404, "Content-Encoding: gzip\r\n", b"not gzip"), "allowed"),
    ((500, "", b""), "robots_unreachable"),
    ((503, "", b""), "robots_unreachable"),
    ((429, "", b""), "robots_unreachable"),
    ((200, "", b""), "allowed"),
    ((200, "", b"\xef\xbb\xbfUser-agent: *\r\nDisallow: /\r\n"), "robots"),
    ((200, "", b"User-agent: noise-of-web/0.1.0\nDisallow: /"), "robots"),
    ((200, "", b"\xff\xfe\x00 binary \x00"), "allowed"),
    ((200, "", b"<html>not a robots file</html>"), "allowed"),
    ((200, "", b"User-agent: *\nDisallow: /\n" + b"#" * 900_000), "robots"),
    ((301, "Location: http://b.test/robots.txt\r\n", b""), "robots"),
    ((302, "Location: /robots.txt\r\n", b""), "robots_unreachable"),
    ((302, "Location:  \r\n", b""), "allowed"),
    ((301, "Location: http://☃.test/robots.txt\r\n", b""), "robots"),
    ((301, "Location: http://[::/\r\n", b""), "robots_unreachable"),
    ((301, "Location: ftp://b.test/robots.txt\r\n", b""), "robots_unreachable"),
    (None, "robots_unreachable"),
]


def test_the_verdict_depends_on_the_answer() -> None:
    for answer, verdict in ANSWERS:
        assert verdict_of(answer) == verdict, answer


CODED = {
    "x-gzip": (gzip.compress(CLOSED), "robots"),
    "X-GZIP": (gzip.compress(CLOSED), "robots"),
    "gzip": (gzip.compress(CLOSED), "robots"),
    "deflate": (zlib.compress(CLOSED), "robots"),
    "deflate, x-gzip": (gzip.compress(zlib.compress(CLOSED)), "robots"),
    "br": (bytes.fromhex("8b0c80") + CLOSED + b"\x03", "robots_unreachable"),
    "zstd": (bytes.fromhex("28b52ffd2019c90000") + CLOSED, "robots_unreachable"),
    "x-compress": (b"\x1f\x9d\x90U\xe6\x94", "robots_unreachable"),
    "gzip, br": (gzip.compress(b"\x0b\x02\x80abc\x03"), "robots_unreachable"),
    "utf-8": (CLOSED, "robots"),
    "none": (CLOSED, "robots"),
    "": (CLOSED, "robots"),
    "identity, none": (CLOSED, "robots"),
}
"""Bodies by Content-Encoding; those of Brotli and Zstandard contain CLOSED uncompressed."""


def test_a_compressed_robots_txt_is_decoded_or_unreachable() -> None:
    for coding, (body, verdict) in CODED.items():
        assert verdict_of((200, f"Content-Encoding: {coding}\r\n", body)) == verdict, coding


def test_a_broken_connection_is_retried_once_and_then_cached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plain, "_FAILED_S", 1.0)
    once = Sites({"a.test": (200, "", RULES)}, broken=1)

    async def at_once(robots: SiteRules) -> None:
        decisions = await asyncio.gather(*(robots.decide(f"http://a.test/{n}") for n in range(9)))
        assert {decision.verdict for decision in decisions} == {"allowed"}

    ask(once, at_once)
    assert len(once.asked) == 2
    sites = Sites({"a.test": (200, "", RULES)}, broken=2)

    async def work(robots: SiteRules) -> None:
        for _ in range(3):
            assert (await robots.decide("http://a.test/")).verdict == "robots_unreachable"
        assert len(sites.asked) == 2
        await asyncio.sleep(1.2)
        assert (await robots.decide("http://a.test/")).verdict == "allowed"
        await asyncio.sleep(1.2)
        assert (await robots.decide("http://a.test/")).verdict == "allowed"

    ask(sites, work)
    assert len(sites.asked) == 3


def test_a_host_that_is_up_again_is_requested_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a request and later: the proxy refuses a host only while it is down."""
    sites = Sites({"a.test": (200, "", RULES)})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    async def run(*, at_once: bool) -> None:
        mapping = parse_mapping(f"*.test:127.0.0.1:{port}")
        async with Proxy(Resolver([mapping], allow_private=True)) as proxy:
            proxy.begin(1 << 40)
            robots = SiteRules(proxy, "noise-of-web/test", frozenset(), obey_robots=True)
            if not at_once:
                with pytest.raises(PageError, match="net_error"):
                    await robots.decide("http://a.test/")
            deciding = asyncio.ensure_future(robots.decide("http://a.test/"))
            await asyncio.sleep(0.5 if at_once else 0)
            if not at_once:
                with pytest.raises(PageError, match="net_error"):
                    await deciding
            server = await asyncio.start_server(sites.serve, "127.0.0.1", port)
            if not at_once:
                await asyncio.sleep(0.3)
                deciding = asyncio.ensure_future(robots.decide("http://a.test/"))
            assert (await deciding).verdict == "allowed"
            for scheme in ("http", "https"):  # not an error of robots.txt
                with pytest.raises(PageError, match="dns_error"):
                    await robots.decide(f"{scheme}://nowhere.invalid/")
            await robots.close()
            server.close()

    monkeypatch.setattr(plain, "_FAILED_S", 0.2)
    asyncio.run(run(at_once=False))
    monkeypatch.setattr(site_rules, "_RETRY_S", 2.0)
    asyncio.run(run(at_once=True))
