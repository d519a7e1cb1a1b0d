"""Rules of tdmrep.json and ai.txt for a path, and invalid files."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from now_builder.crawl.politeness import plain
from now_builder.crawl.politeness.proxy import Proxy
from now_builder.crawl.politeness.resolver import Resolver, parse_mapping
from now_builder.crawl.politeness.robots_rules import path_of
from now_builder.crawl.politeness.site_rules import SiteRules, parse_tdm_file

BOTH = frozenset({"tdm-reservation", "ai.txt"})


def reserved(content: bytes | str, path: str = "/x") -> bool:
    rules = parse_tdm_file(content.encode() if isinstance(content, str) else content)
    rule = next((rule for rule in rules if rule.matches(path_of(f"http://a.test{path}"))), None)
    return rule is not None and not rule.allows


def rule(location: object, value: object = 1) -> dict[str, object]:
    return {"location": location, "tdm-reservation": value}


RULES = [
    ([rule("/")], "/x", True),
    ([rule("/*")], "/x?y=1", True),
    ([rule("/", 0)], "/x", False),
    ([rule("/a/"), rule("/", 0)], "/a/b", True),
    ([rule("/a/"), rule("/", 0)], "/a", False),
    ([rule("/", 0), rule("/a/")], "/a/b", False),
    ([rule("/a/*.pdf$")], "/a/b.pdf", True),
    ([rule("/a/*.pdf$")], "/a/b.pdf?x", False),
    ([rule("/A")], "/a", False),
    ([rule("/caf%C3%A9")], "/café", True),
    ([rule("/café")], "/caf%c3%a9/x", True),
    ([rule("/b")], "/a", False),
    ([rule("/", "1")], "/x", True),
    ([rule("/", value=True)], "/x", True),
    ([rule("/", "yes"), rule("/", 1)], "/x", False),
    ([rule("/", 2)], "/x", False),
    ([rule("/", None)], "/x", False),
    ([{"location": "/"}], "/x", False),
    ([None, 3, rule(7), {"tdm-reservation": 1}, rule(""), rule("/")], "/x", True),
    ([], "/x", False),
]


def test_the_first_rule_that_matches_decides() -> None:
    for rules, path, expected in RULES:
        assert reserved(json.dumps(rules), path) == expected, (rules, path)


def test_an_invalid_file_reserves_nothing() -> None:
    for content in (
        b"", b"<!doctype html><title>Not found</title>", b'[{"location": "/", "tdm-reser',
        json.dumps(rule("/")).encode(), b'"/"', b"1", b"[" * 100_000, b"\xff\xfe\x00", b"null",
        b'[{"location": "/", "tdm-reservation": 1},]',
    ):  # fmt: skip
        assert parse_tdm_file(content) == ()
    # A byte-order mark and a lone surrogate do no harm.
    assert reserved(b"\xef\xbb\xbf" + json.dumps([rule("/")]).encode())
    assert reserved(json.dumps([rule("/\ud800"), rule("/")]))


def ask(
    answers: dict[str, tuple[int, bytes]],
    obeyed: frozenset[str],
    work: Callable[[SiteRules], Awaitable[None]],
) -> Counter[str]:
    """Run ``work`` while a.test answers by path; return the number of requests by path."""
    asked: Counter[str] = Counter()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).decode().split(" ")[1]
        asked[path] += 1
        status, body = answers.get(path, (404, b"<title>Nothing here</title>"))
        writer.write(f"HTTP/1.1 {status} x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        mapping = parse_mapping(f"*.test:127.0.0.1:{server.sockets[0].getsockname()[1]}")
        async with Proxy(Resolver([mapping], allow_private=True)) as proxy:
            proxy.begin(1 << 40)
            files = SiteRules(proxy, "noise-of-web/test", obeyed, obey_robots=False)
            await work(files)
            await files.close()
        server.close()

    asyncio.run(run())
    return asked


AI_TXT = b"""# Spawning AI
User-Agent: *
Disallow: *.txt
Disallow: *.jpg
Disallow: /art/
Allow: *.mp3
"""


def test_both_files_are_requested_once_and_opt_outs_name_their_lines() -> None:
    answers = {
        "/.well-known/tdmrep.json": (200, json.dumps([rule("/art/old"), rule("/", 0)]).encode()),
        "/ai.txt": (200, AI_TXT),
    }

    async def work(files: SiteRules) -> None:
        assert await files.opt_outs("http://a.test/") == {}
        assert await files.opt_outs("http://a.test/photo.jpg") == {
            "ai.txt": "ai.txt, line 4: Disallow: *.jpg"
        }
        assert await files.opt_outs("http://a.test/art/old") == {
            "tdm-reservation": '/.well-known/tdmrep.json, location "/art/old"',
            "ai.txt": "ai.txt, line 5: Disallow: /art/",
        }
        await asyncio.gather(*(files.opt_outs(f"http://a.test/{n}") for n in range(9)))

    assert set(ask(answers, BOTH, work).values()) == {1}


def test_ai_txt_opts_out_of_pages_that_it_disallows() -> None:
    for content, refused in [
        (b"User-Agent: *\nDisallow: /\nDisallow: *\n", True),
        (b"User-Agent: *\nDisallow: *.html\nAllow: /\n", True),
        (b"User-Agent: *\nAllow: *.html\nDisallow: *.jpg\n", False),
        (b"User-Agent: GPTBot\nDisallow: /\n", False),
        (b"User-Agent: *\nDisallow: /\nUser-agent: noise-of-web\nAllow: /\n", False),
        (b"# About us\n> a summary for models\n", False),
    ]:

        async def work(files: SiteRules, expected: object = refused) -> None:
            assert ("ai.txt" in await files.opt_outs("http://a.test/about")) == expected

        ask({"/ai.txt": (200, content)}, BOTH, work)


def test_a_file_is_requested_if_obeyed_and_again_after_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plain, "_FAILED_S", 0.3)

    async def work(files: SiteRules) -> None:
        for _ in range(2):
            assert await files.opt_outs("http://a.test/") == {}
            await asyncio.sleep(0.5)

    assert ask({}, frozenset({"noai"}), work) == {}
    assert ask({}, frozenset({"ai.txt"}), work) == {"/ai.txt": 1}
    assert ask({}, frozenset({"tdm-reservation"}), work) == {"/.well-known/tdmrep.json": 1}
    assert ask({"/ai.txt": (503, b"")}, frozenset({"ai.txt"}), work)["/ai.txt"] == 2
