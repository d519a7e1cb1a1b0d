"""Pages and answers that mean harm, or look as if they did; served by the awkward server."""

import asyncio
import gzip
import itertools
from collections.abc import Awaitable, Callable, Iterator

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
    "/popups-1000": harmful("popups", "for (let i = 0; i < 1000; i += 1) open('/plain?' + i)"),
    "/popups-timer": harmful(
        "popups for ever",
        "setInterval(() => { for (let i = 0; i < 1000; i += 1) open('/plain?' + i) }, 1)",
    ),
    "/memory": harmful(
        "eats the heap", "const all = []; while (true) all.push(new Array(1e5).fill(Math.random()))"
    ),
    "/memory-buffers": harmful(
        "eats buffers", "const all = []; while (true) all.push(new Uint8Array(1e7).fill(1))"
    ),
    "/memory-slowly": harmful(
        "eats as it goes",
        "const all = []; setInterval(() => all.push(new Uint8Array(4e7).fill(1)), 10)",
    ),
    "/canvases": harmful(
        "canvas on canvas",
        "setInterval(() => { const c = document.createElement('canvas');"
        "c.width = c.height = 4000; document.body.append(c);"
        "c.getContext('2d').fillRect(0, 0, 4000, 4000) }, 10)",
    ),
    "/nodes": harmful("many nodes", body="<p>" * 1_500_000),
    "/nodes-scripted": harmful(
        "many nodes by script",
        "for (let i = 0; i < 1.5e6; i += 1) document.body.append(document.createElement('p'))",
    ),
    "/text": harmful("one long word", body="x" * 9_000_000),
    "/reload": harmful("again", "onload = () => location.reload()"),
    "/frames": harmful("in itself", "document.write(`<iframe src='/frames?${Math.random()}'>`)"),
    "/frames-timer": harmful(
        "frames for ever",
        "setInterval(() => { const f = document.createElement('iframe');"
        "f.srcdoc = '<p>inside</p>'; document.body.append(f) }, 1)",
    ),
    "/worker": harmful(
        "a worker that spins",
        "for (let i = 0; i < 8; i += 1) new Worker(URL.createObjectURL(new Blob(['while (1);'])))",
    ),
    "/push-state": harmful(
        "history storm", "setInterval(() => history.pushState({}, '', '?' + Math.random()), 0)"
    ),
    "/push-state-loop": harmful(
        "history loop", "while (true) history.pushState({}, '', '?' + Math.random())"
    ),
    "/hash": harmful("hash storm", "setInterval(() => { location.hash = Math.random() }, 0)"),
    "/console": harmful("talks", "while (true) console.log('x'.repeat(1e4))"),
    "/console-timer": harmful(
        "talks and talks",
        "setInterval(() => { for (let i = 0; i < 1000; i += 1) console.log('y'.repeat(1e4)) }, 1)",
    ),
    "/throws": harmful(
        "throws",
        "setInterval(() => { for (let i = 0; i < 1000; i += 1)"
        "Promise.reject(new Error('z'.repeat(1e4))) }, 1)",
    ),
    "/fetch-storm": harmful("asks on", "setInterval(() => { for (let i = 0; i < 100; i += 1)"
        "fetch('/plain?' + Math.random()).catch(() => 0) }, 1)"),
    "/downloads": harmful(
        "files on files",
        "const a = document.createElement('a'); a.href = '/download'; a.download = 'x';"
        "document.body.append(a); setInterval(() => a.click(), 1)",
    ),
    "/mailto": harmful(
        "writes letters", "setInterval(() => { location = 'mailto:a@b.test?' + Math.random() }, 1)"
    ),
    "/sockets": harmful(
        "sockets", "setInterval(() => new WebSocket('ws://site.test/hang?' + Math.random()), 1)"
    ),
    "/titles": harmful(
        "titles", "setInterval(() => { for (let i = 0; i < 1000; i += 1)"
        "document.title = Math.random() }, 1)",
    ),
    "/writes": harmful("writes on", "while (true) document.write('<p>more')"),
    "/print": harmful("prints", "print(); setInterval(print, 10)"),
    "/asks": harmful(
        "asks for all",
        "navigator.geolocation.getCurrentPosition(() => 0, () => 0);"
        "window.Notification && Notification.requestPermission();"
        "navigator.mediaDevices && navigator.mediaDevices.getUserMedia({audio: true, video: true})"
        ".catch(() => 0); navigator.clipboard && navigator.clipboard.readText().catch(() => 0);"
        "prompt('name?'); confirm('sure?'); document.documentElement.requestFullscreen()"
        ".catch(() => 0); navigator.requestMIDIAccess && navigator.requestMIDIAccess()"
        ".catch(() => 0);",
    ),
    "/refresh-data": harmful(
        "to data", head='<meta http-equiv="refresh" content="0; url=data:text/html,<p>gone">'
    ),
    "/refresh-script": harmful(
        "to script", head='<meta http-equiv="refresh" content="0; url=javascript:alert(1)">'
    ),
    "/blob": harmful(
        "to a blob",
        "location = URL.createObjectURL(new Blob(['<p>gone'], {type: 'text/html'}))",
    ),
    "/parts": harmful(
        "big parts", body="".join(f'<script src="/part/{n}"></script>' for n in range(10))
    ),
    "/fetches": harmful(
        "fetches on", "const more = () => fetch('/part/0').then((r) => r.blob()).then(more); more()"
    ),
    "/surrogate-scripted": harmful(
        "half a character",
        "document.body.append('\\ud800 half');"
        "document.title = '\\udc00'; history.replaceState({}, '', '?\\ud800');"
        "const m = document.createElement('meta'); m.name = 'description';"
        "m.content = 'half \\ud800'; document.head.append(m);",
    ).replace(b'<meta name="description" content="half a character">', b""),
    "/surrogate": harmful("a &#xD800; b &#55357; c"),
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
"""What is sent as it stands; then the connection ends."""

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
"""What is sent bit by bit."""
