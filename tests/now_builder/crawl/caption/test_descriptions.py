"""Hostile and odd pages, one by one, against what the standards and Chromium make of them."""

import base64
import random
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playwright.sync_api import sync_playwright

from now_builder.crawl.caption.charset import decode
from now_builder.crawl.caption.describe import describe
from now_builder.formats.text import clean
from now_builder.inspect.recheck import descriptions
from now_builder.machine.chromium import find_chromium

from .descriptions import CASES, UTF8, Case

FOUND = """() => [[...document.querySelectorAll("meta")].filter((meta) =>
    (meta.getAttribute("name") || "").trim().toLowerCase() === "description"
  ).map((meta) => meta.getAttribute("content") || ""), document.characterSet.toLowerCase()]"""


def by_the_tree(content: bytes, header: str | None) -> list[str]:
    """The slow, obvious way: a whole tree by BeautifulSoup, and every description in it."""
    text = re.sub(r"^\s*<\?xml[^>]*>", "", decode(content, header).text.replace("\0", "\ufffd"))
    return descriptions(text + "\n", parser="lxml")


@pytest.mark.parametrize("name", CASES)
def test_a_page_has_its_caption_source_and_charset(name: str) -> None:
    case = CASES[name]
    found = describe(case.content, case.header)
    assert (found.caption, found.source) == (case.caption, case.source)
    assert case.charset in {None, found.charset}
    assert found.candidates.get("name", []) == by_the_tree(case.content, case.header)


@pytest.mark.browser
def test_chromium_finds_the_same() -> None:
    judged = {name: case for name, case in CASES.items() if case.judge}
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_chromium())
        page = browser.new_page()
        found = {}
        for name, case in judged.items():
            kind = (case.header or "").replace(" ", "")
            data = base64.b64encode(case.content).decode()
            page.goto(f"data:{kind};base64,{data}", wait_until="domcontentloaded")
            texts, charset = page.evaluate(FOUND)
            found[name] = (next(filter(None, map(clean, texts)), None), charset)
        browser.close()
    assert found == {
        name: (case.caption, case.charset or found[name][1]) for name, case in judged.items()
    }


# --- anything at all ---

HEADERS = st.sampled_from(
    [None, "", "text/html", UTF8, *{case.header for case in CASES.values()}, "charset=utf-16be"]
)
PIECES = st.sampled_from(
    b"<!--|-->|<meta |name=description |content=|charset=gbk|\"|'|>|<|/|<title>|</title>|<svg>|"
    b"<script type=application/ld+json>|</script>|<noscript>|<template>|&#|&#xD800;|&amp;|\x00|"
    b"\xef\xbb\xbf|\xff\xfe|\xfe\xff|\xa4\xa4|\x1b$B|<![CDATA[|<?xml encoding='|<html lang=x>|"
    b'{"description": "\\ud800"}|e\xcc\x81|\xc2\x85'.split(b"|")
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A page of the corpus, with bytes cut out, put in, repeated or turned."""
    case: Case = draw(st.sampled_from([c for c in CASES.values() if len(c.content) < 20_000]))
    content = case.content
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        end = draw(st.integers(start, min(len(content), start + 60)))
        put = draw(PIECES | st.binary(max_size=4))
        content = content[:start] + put * draw(st.sampled_from([1, 1, 1, 50])) + content[end:]
    return content


@settings(max_examples=400)
@given(
    content=st.binary(max_size=400) | st.lists(PIECES, max_size=40).map(b"".join) | mutated(),
    header=HEADERS,
)
def test_no_bytes_crash_it_and_what_it_gives_is_clean(content: bytes, header: str | None) -> None:
    page = describe(content, header)
    assert page == describe(content, header)
    texts = [text for found in page.candidates.values() for text in found]
    assert (page.caption is None) == (page.source is None)
    assert page.caption is None or page.caption in texts or page.source == "json-ld"
    for text in [*texts, *([page.title] if page.title else [])]:
        assert text
        assert unicodedata.is_normalized("NFC", text)
        assert not any(unicodedata.category(letter) in {"Cc", "Cs"} for letter in text)
        assert " ".join(text.split()) == text
        assert clean(text) == text
        text.encode()


# --- 50 MB ---

SIZE = 50_000_000
LARGE = {  # what a page begins with, and what it repeats to its end
    "many elements": (b"", b"<p class=a>text <b>bold</b></p>\n"),
    "one text": (b"", b"word "),
    "angles": (b"", b"<"),
    "nesting": (b"", b"<div>"),
    "an attribute that never ends": (b'<p title="', b"a b=c "),
    "a meta that never ends": (b"<meta ", b"a=b "),
    "meta on meta": (b"", b"<meta x='"),
    "comments that open": (b"", b"<!-- "),
    "scripts that open": (b"", b"<script>"),
    "titles": (b"", b"<title>x</title>"),
    "entities": (b"", b"&amp;"),
    "not ASCII, undeclared": (b"", "текст ".encode("cp1251")),
    "white space": (b"", b" "),
    "white space in JSON-LD": (b"<script type=application/ld+json>", b" "),
    "white space after charset": (b"<meta http-equiv=content-type content='charset=", b" "),
    "white space in a charset that ends": (
        b"<meta http-equiv=content-type content='charset=" + b" " * 800_000,
        b"'>",
    ),
    "JSON-LD": (b'<script type=application/ld+json>"', b"x"),
    "JSON-LD of comments": (b"<script type=application/ld+json>{", b"/* // <!-- "),
    "JSON-LD of quotes": (b"<script type=application/ld+json>{", b'"\\'),
    "JSON-LD of commas": (b"<script type=application/ld+json>{", b", ,\n"),
    "JSON-LD of objects": (b"<script type=application/ld+json>[", b"{},"),
}


def large(name: str, size: int) -> bytes:
    start, piece = LARGE[name]
    return b"<meta name=description content=first>" + start + piece * (size // len(piece))


LIMIT_S, LIMIT_MIB = 60, 1500
_MEASURE = """
import pathlib, resource, sys
from now_builder.crawl.caption.charset import decode
from now_builder.crawl.caption.describe import describe
content = pathlib.Path(sys.argv[1]).read_bytes()
for size in map(int, sys.argv[2:]):
    before = resource.getrusage(resource.RUSAGE_SELF)
    caption = describe(content[:size], None).caption
    after = resource.getrusage(resource.RUSAGE_SELF)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    status = pathlib.Path("/proc/self/status").read_text()  # ru_maxrss is the parent's, too
    print(caption, spent, int(status.split("VmHWM:")[1].split()[0]) / 1024)
"""


def measured(path: Path, *sizes: int) -> list[tuple[str, float, float]]:
    """Caption, CPU seconds and MiB, in a process of its own that checks no types."""
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, path, *map(str, sizes)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = [line.split() for line in done.stdout.splitlines()]
    return [(caption, float(seconds), float(memory)) for caption, seconds, memory in lines]


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_a_page_of_50_mb_takes_bounded_time_and_memory(name: str, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_bytes(large(name, SIZE))
    [(caption, seconds, memory)] = measured(path, SIZE)
    print(f"{name}: {seconds:.1f} s, {memory:.0f} MiB")  # noqa: T201 - figures for the log
    assert caption == "first"
    assert seconds < LIMIT_S
    assert memory < LIMIT_MIB


@pytest.mark.parametrize("name", LARGE)
def test_four_times_the_bytes_take_four_times_the_time(name: str, tmp_path: Path) -> None:
    """Not sixteen times: no part of it is quadratic."""
    path = tmp_path / "page.html"
    path.write_bytes(large(name, 1_000_000))
    [(_, short, _), (_, long, _)] = measured(path, 250_000, 1_000_000)
    assert long < 0.3 + 8 * short


def test_a_random_megabyte_is_no_page() -> None:
    assert describe(random.Random(0).randbytes(1_000_000), None).caption is None
