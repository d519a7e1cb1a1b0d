"""A local server of many small sites with opt-outs and odd answers."""

import asyncio
import time
from collections import Counter

from .awkward import Awkward, page, response

PAGE = response(200, "text/html; charset=utf-8", page("a page"))


class Sites(Awkward):
    """Answers by host and path (``a.test/x``); several answers of one are given in turn.

    Other requests get a page at ``/`` of any host, and otherwise 404.

    Attributes:
        times: When each URL was asked for, by host and path.
    """

    def __init__(self, answers: dict[str, bytes | list[bytes]]) -> None:
        super().__init__()
        self.answers = answers
        self.hits: Counter[str] = Counter()
        self.times: dict[str, list[float]] = {}

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        host = next(line[6:] for line in head if line.lower().startswith("host: "))
        where = host.partition(":")[0] + head[0].split(" ")[1]
        self.times.setdefault(where, []).append(time.monotonic())
        fallback = PAGE if where.endswith("test/") else response(404, "text/plain", b"none")
        answers = self.answers.get(where, fallback)
        if isinstance(answers, list):
            answers = answers[min(self.hits[where], len(answers) - 1)]
        self.hits[where] += 1
        writer.write(answers)
        await writer.drain()


HTML = "text/html; charset=utf-8"


def text(content: str, *headers: str) -> bytes:
    return response(200, "text/plain", content.encode(), *headers)


def tdm(*rules: str) -> bytes:
    return response(200, "application/json", f"[{', '.join(rules)}]".encode())


ALL_RESERVED = '{"location": "/", "tdm-reservation": 1}'
ALL_AGENTS = "User-agent: *\n"
ADDS = (
    "<script>const m = document.createElement('meta'); m.name = '{}'; m.content = '{}';"
    "document.head.append(m)</script>"
)

REFUSED: dict[str, tuple[dict[str, bytes], str]] = {
    "signal": (
        {"/robots.txt": text(f"{ALL_AGENTS}Content-Signal: search=yes,ai-train=no\nAllow: /\n")},
        "content-signal: robots.txt, line 2: Content-Signal: search=yes,ai-train=no",
    ),
    "usage": (
        {"/robots.txt": text(f"{ALL_AGENTS}content-usage: train-ai=n\n")},
        "content-usage: robots.txt, line 2: content-usage: train-ai=n",
    ),
    "ai-training": (
        {"/robots.txt": text(f"{ALL_AGENTS}DisallowAITraining: /\n")},
        "disallowaitraining: robots.txt, line 2: DisallowAITraining: /",
    ),
    "header": (
        {"/": response(200, HTML, page("x"), "Content-Usage: bots=y", "content-usage: train-ai=n")},
        "content-usage: header Content-Usage: bots=y, train-ai=n",
    ),
    "noml": (
        {"/": response(200, HTML, page("x"), "X-Robots-Tag: otherbot: noai", "X-Robots-Tag: noml")},
        "noml: header X-Robots-Tag: noml",
    ),
    "tdmrep": (
        {"/.well-known/tdmrep.json": tdm(ALL_RESERVED)},
        'tdm-reservation: /.well-known/tdmrep.json, location "/"',
    ),
    "ai-txt": (
        {"/ai.txt": text(f"# Spawning AI\n{ALL_AGENTS}Disallow: *.html\nDisallow: *.jpg\n")},
        "ai.txt: ai.txt, line 3: Disallow: *.html",
    ),
    "robots-by-script": (
        {"/": response(200, HTML, page("x", ADDS.format("Robots", "index; noimageai")))},
        'noimageai: <meta name="Robots" content="index; noimageai">, put there by a script',
    ),
    "tdm-by-script": (
        {"/": response(200, HTML, page("x", ADDS.format("tdm-reservation", "1")))},
        'tdm-reservation: <meta name="tdm-reservation" content="1">, put there by a script',
    ),
    "us-by-script": (
        {"/": response(200, HTML, page("x", ADDS.format("noise-of-web", "noai")))},
        'noai: <meta name="noise-of-web" content="noai">, put there by a script',
    ),
}  # fmt: skip
ALLOWED: dict[str, dict[str, bytes]] = {
    "yes": {
        "/robots.txt": text(
            f"{ALL_AGENTS}Content-Signal: ai-train=yes\nContent-Usage: train-ai=y\n\n"
            "User-agent: otherbot\nContent-Signal: ai-train=no\nDisallow: /\n"
        ),
        "/": response(200, HTML, page("x"), "Content-Usage: train-ai=y, search=n"),
        "/ai.txt": text(f"User-agent: otherbot\nDisallow: /\n{ALL_AGENTS}Disallow: *.jpg\n"),
        "/.well-known/tdmrep.json": tdm('{"location": "/*", "tdm-reservation": 0}', ALL_RESERVED),
    },
    "taken-back": {
        "/.well-known/tdmrep.json": tdm(ALL_RESERVED),
        "/": response(200, HTML, page("x"), "TDM-Reservation: 0"),
    },
    "broken": {
        "/.well-known/tdmrep.json": response(200, "application/json", b'[{"location": "/", '),
        "/ai.txt": response(500, "text/plain", b"Disallow: /"),
    },
    "not-that-file": {"/.well-known/tdmrep.json": PAGE, "/ai.txt": PAGE},
    "other-by-script": {"/": response(200, HTML, page("x", ADDS.format("otherbot", "noai")))},
}


MANY = [f"many.test/{n}" for n in range(6)]
TDM_RULES = (
    '{"location": "/shop/*/big$", "tdm-reservation": 0}',
    '{"location": "/shop/*", "tdm-reservation": 1, "tdm-policy": "https://part.test/policy"}',
    '{"location": "/", "tdm-reservation": 0}',
)
TDM_ERRORS = {"/": None, "/shop/a": "opt_out", "/shop/a/big": None, "/shopping": None}
FRAMES = ("/fine", "/hidden/a", "/moved", "http://other.test/hidden/b", "http://other.test/nest",
          "http://down.test/")  # fmt: skip
HIDDEN = text(f"{ALL_AGENTS}Disallow: /hidden\n")
SYMBOLS = ["xn--n3h.test/", "☃.test/x", "💩.test/", "moved.test/", "1דוגמה.test/"]
TYPES = {
    "text/html, text/html; charset=utf-8": None, "text/plain, text/html": None,
    "text/html, text/plain": "not_html", "*/*": None, "unknown/unknown": None,
    "Application/Unknown; x=y": None, "text /html": None, "html": None,
    "text/html(a comment)": None, "text/plain": "not_html", "text/html/": "not_html",
}  # fmt: skip
NOWHERE = {
    "nowhere0.test/": response(302, HTML, page("x"), "Location:"),
    "nowhere1.test/": response(301, HTML, page("x"), "Location:   "),
    "nowhere2.test/": response(308, HTML, page("x")),
}
SITES = {name: answers for name, (answers, _) in REFUSED.items()} | ALLOWED
OPTING = [f"{name}.test/" for name in SITES]

ANSWERS: dict[str, bytes | list[bytes]] = {
    **{f"{name}.test{path}": said for name, site in SITES.items() for path, said in site.items()},
    **dict.fromkeys(MANY, PAGE),
    "closed.test/robots.txt": text(f"{ALL_AGENTS}Disallow: /\n"),
    "part.test/.well-known/tdmrep.json": tdm(*TDM_RULES),
    **{f"part.test{path}": PAGE for path in TDM_ERRORS},
    "led.test/": response(302, HTML, b"", "Location: http://part.test/shop/a"),
    "framed.test/": response(
        200, HTML, page("frames", "".join(f'<iframe src="{url}"></iframe>' for url in FRAMES))
    ),
    "framed.test/robots.txt": HIDDEN,
    "framed.test/fine": PAGE,
    "framed.test/moved": response(302, HTML, b"", "Location: /hidden/c"),
    "other.test/robots.txt": HIDDEN,
    "other.test/nest": response(200, HTML, page("x", '<iframe src="/hidden/d"></iframe>')),
    "down.test/robots.txt": response(503, "text/plain", b""),
    "moved.test/": response(302, HTML, b"", "Location: http://☕.test/"),
    "xn--n3h.test/x": PAGE,
    **{f"t{n}.test/": response(200, kind, page("x")) for n, kind in enumerate(TYPES)},
    **NOWHERE,
}
_TYPED = [f"t{n}.test/" for n in range(len(TYPES))]
URLS = [
    *OPTING, *MANY, "closed.test/", *(f"part.test{path}" for path in TDM_ERRORS), "led.test/",
    "framed.test/", *SYMBOLS, *_TYPED, *NOWHERE,
]  # fmt: skip
"""The pages to crawl."""
