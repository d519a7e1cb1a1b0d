"""Hostile pages and answers, or ones that look hostile; served by the awkward server."""

import asyncio
import gzip
import itertools
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from .cases import read_cases

BIG = 300_000_000
_BLOCK = b"<p>more and more and more</p>\n" * 4000


def harmful(description: str, script: str = "", body: str = "<p>text</p>", head: str = "") -> bytes:
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Harm</title>'
        f'<meta name="description" content="{description}">{head}</head>'
        f"<body>{body}<script>{script}</script></body></html>"
    ).encode()


CHINESE = "全家人都喜欢的北京餐厅，从早到晚都有热腾腾的饺子"
_CHINESE_PAGE = harmful(CHINESE)
_WITH_BYTES = harmful("before MARK after", body="<p>MARK</p>")

HARMFUL: dict[str, bytes] = {
    path: harmful(**parts)
    for path, parts in read_cases(Path(__file__).with_suffix(".toml")).items()
} | {
    "/surrogate-scripted": harmful(
        "half a character",
        "document.body.append('\\ud800 half');"
        "document.title = '\\udc00'; history.replaceState({}, '', '?\\ud800');"
        "const m = document.createElement('meta'); m.name = 'description';"
        "m.content = 'half \\ud800'; document.head.append(m);",
    ).replace(b'<meta name="description" content="half a character">', b""),
    "/surrogate-bytes": _WITH_BYTES.replace(b"MARK", b"\xed\xa0\x80"),
    "/invalid": _WITH_BYTES.replace(b"MARK", b"\xff\xfe\xc3\x28\xf0\x9f"),
    "/nul": _WITH_BYTES.replace(b"MARK", b"\0"),
    "/noncharacters": _WITH_BYTES.replace(b"MARK", "\uffff\ufdd0\u202e\u2028".encode()),
    "/gbk-as-utf-8": _CHINESE_PAGE.decode().encode("gbk"),
}  # fmt: skip

_OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nConnection: close\r\n"
_PAGE = harmful("whole")

ANSWERS: dict[str, bytes] = {
    "/to-long-host": b"HTTP/1.1 302 Found\r\nLocation: http://" + b"a" * 300 + b".invalid/\r\n\r\n",
    "/to-long-labels": b"HTTP/1.1 302 Found\r\nLocation: http://" + b"abcdefghi." * 30
    + b"invalid/\r\n\r\n",
    "/to-data": b"HTTP/1.1 302 Found\r\nLocation: data:text/html,<p>x\r\n\r\n",
    "/to-script": b"HTTP/1.1 302 Found\r\nLocation: javascript:alert(1)\r\n\r\n",
    "/to-nothing": b"HTTP/1.1 302 Found\r\nLocation: \r\n\r\n",
    "/to-bytes": b"HTTP/1.1 302 Found\r\nLocation: /\xff\xfe\xed\xa0\x80\r\n\r\n",
    "/no-status": b"Content-Type: text/html\r\n\r\n" + _PAGE,
    "/bare": _PAGE,
    "/noise": bytes(range(256)) * 4000,
    "/odd-status": b"HTTP/1.1 999 Odd\r\nContent-Type: text/html\r\n\r\n" + _PAGE,
    "/zero-status": b"HTTP/1.1 000 None\r\nContent-Type: text/html\r\n\r\n" + _PAGE,
    "/word-status": b"HTTP/1.1 two OK\r\nContent-Type: text/html\r\n\r\n" + _PAGE,
    "/injected": _OK + b"X-A: one\rSet-Cookie: a=b\r\nX-B: two\nX-C: \0three\r\n: four\r\n"
    b" folded\r\nno colon\r\nX-D: \xff\xfe\r\n\r\n" + _PAGE,
    "/two-lengths": _OK + b"Content-Length: 5\r\nContent-Length: 7\r\n\r\n" + _PAGE,
    "/wrong-length": _OK + b"Content-Length: -3\r\n\r\n" + _PAGE,
    "/vast-length": _OK + b"Content-Length: 99999999999999999999999\r\n\r\n" + _PAGE,
    "/torn-gzip": _OK + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(_PAGE * 50)[:-200],
    "/no-gzip": _OK + b"Content-Encoding: gzip\r\n\r\n" + _PAGE,
    "/bad-chunks": _OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + _PAGE,
    "/empty": _OK + b"Content-Length: 0\r\n\r\n",
    "/nothing": b"",
}  # fmt: skip
"""Raw answers, after which the connection ends."""

Send = Callable[[bytes], Awaitable[None]]


def _blocks(size: int) -> Iterator[bytes]:
    for _ in range(size // len(_BLOCK) + 1):
        yield _BLOCK


async def _big(send: Send, head: bytes) -> None:
    await send(_OK + head + b"\r\n" + harmful("big")[:-14])
    for block in _blocks(BIG):
        await send(block)


async def _half_head(send: Send) -> None:
    await send(b"HTTP/1.1 200 OK\r\nContent-Type: text/ht")
    await asyncio.sleep(3600)


async def _dripping_head(send: Send) -> None:
    await send(b"HTTP/1.1 200 OK\r\n")
    for number in itertools.count():
        await send(b"X-%d: y\r\n" % number)
        await asyncio.sleep(0.2)


async def _endless_hints(send: Send) -> None:
    while True:
        await send(b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n" * 500)


async def _part(send: Send) -> None:
    await send(b"HTTP/1.1 200 OK\r\nContent-Type: text/javascript\r\nConnection: close\r\n\r\n")
    for block in _blocks(BIG // 10):
        await send(block)


STREAMS: dict[str, Callable[[Send], Awaitable[None]]] = {
    "/big": lambda send: _big(send, b""),
    "/big-declared": lambda send: _big(send, b"Content-Length: %d\r\n" % BIG),
    "/half-head": _half_head,
    "/dripping-head": _dripping_head,
    "/endless-hints": _endless_hints,
    **{f"/part/{number}": _part for number in range(10)},
}
"""Answers that are sent in parts."""
