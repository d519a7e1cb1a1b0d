"""The reader of pages: any bytes with any content type have a description or none."""

import random

from now_builder.crawl.caption.describe import describe
from now_builder.crawl.caption.language import detect_language

ERRORS = ()
LONGEST = 2**14
_TOKENS = [
    b"<meta name=description content='", b"<meta charset=", b"<title>", b"</title>", b"<script",
    b" type=application/ld+json>", b'{"@graph":[', b'"description":"', b"</script>", b"<!--",
    b"-->", b"<![CDATA[", b"<template>", b"<svg>", b"<html lang=", b"&#x", b"&lt;", b"<?xml ",
    b" encoding='", b"http-equiv=refresh", b"utf-16", b"gbk", b"euc-jp", b"iso-2022-jp", b"big5",
    b"x-user-defined", b"replacement", b"windows-1252", b"\xef\xbb\xbf", b"\xff\xfe", b"\x1b$B",
    b"\xd8\x00", b"\x00", b"<p/", b"<plaintext>", b'="', b"'", b"\xe4\xb8\xad",
]  # fmt: skip


def seeds() -> list[bytes]:
    """Return small pages behind their content types."""
    pages = [
        ("text/html", b"<meta name=description content='a b'><title>t</title>"),
        ("text/html; charset=gbk", "<meta name=description content='\u4e2d\u6587'>".encode("gbk")),
        ("", "<p>\u65e5\u672c\u8a9e</p><meta property=og:description content=x>".encode("cp932")),
        ("", "\ufeff<html lang=de><meta name=description content=x>".encode("utf-16-le")),
        ("", "<meta charset=euc-jp><meta name=Description content='\u3042'>".encode("euc-jp")),
        ("", b"<?xml version='1.0' encoding='koi8-r'?><html><meta itemprop=description content=x>"),
        (
            "text/html; charset=utf-8",
            b'<script type=application/ld+json>{"@graph": [{"description": "\\ud83d"}]}</script>',
        ),
    ]
    return [kind.encode() + b"\n" + page for kind, page in pages]


def read(content: bytes) -> None:
    """Read the content type in the first line and the page in the others."""
    kind, _, page = content.partition(b"\n")
    found = describe(page, kind.decode("latin-1") or None)
    for text in (found.caption or "", found.title or ""):
        text.encode()  # no halves of surrogate pairs
        assert text == " ".join(text.split())  # one line
    detect_language(found.caption or "", found.lang)


def mutate(content: bytes, longest: int, seed: int) -> bytes:
    """Change bytes, or put a piece of markup somewhere, or repeat a piece many times."""
    import atheris

    chance = random.Random(seed)
    how, at = chance.random(), chance.randint(0, len(content))
    if how < 0.3:
        content = content[:at] + chance.choice(_TOKENS) + content[at:]
    elif how < 0.35 and content:
        piece = content[at : at + chance.randint(1, 40)]
        content = content[:at] + piece * chance.choice([2, 50, 2000]) + content[at:]
    else:
        content = atheris.Mutate(content, longest)
    return content[:longest]
