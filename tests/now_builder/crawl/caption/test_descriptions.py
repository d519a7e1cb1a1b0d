"""Captions of odd and hostile pages, compared with the standards and with Chromium."""

import base64
import subprocess
import sys
import time
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playwright.sync_api import sync_playwright

from now_builder.crawl.caption.describe import describe
from now_builder.formats.text import clean
from now_builder.machine.chromium import find_chromium

from .descriptions import CASES, UTF8, Case

FOUND = """() => [[...document.querySelectorAll("meta")].filter((meta) =>
    (meta.getAttribute("name") || "").trim().toLowerCase() === "description"
  ).map((meta) => meta.getAttribute("content") || ""), document.characterSet.toLowerCase()]"""


def test_a_page_has_its_caption_source_and_charset() -> None:
    for name, case in CASES.items():
        page = describe(case.content, case.header, case.charset if case.judge else None)
        assert (page.caption, page.source) == (case.caption, case.source), name
        assert case.charset in {None, page.charset}, name


@pytest.mark.browser
def test_chromium_finds_the_same() -> None:
    judged = {name: case for name, case in CASES.items() if case.judge}
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_chromium())
        page = browser.new_page()
        for name, case in judged.items():
            header = (case.header or "").replace(" ", "")
            data = base64.b64encode(case.content).decode()
            page.goto(f"data:{header};base64,{data}", wait_until="domcontentloaded")
            texts, charset = page.evaluate(FOUND)
            assert next(filter(None, map(clean, texts)), None) == case.caption, name
            assert case.charset in {None, charset}, name
            assert describe(case.content, case.header, charset).caption == case.caption, name
        browser.close()


def test_every_candidate_is_recorded_by_source() -> None:
    metas = """<html lang="pt-BR"><title> A  title </title>
    <meta property="og:description" content="og"><meta name="twitter:description" content="tw">
    <meta name="DC.Description" content="dc"><meta itemprop="description" content="item">
    <meta http-equiv="Description" content="he"><meta name="Description" content="%s">
    <meta name="description" content="%s"><meta name="description" content="%s">
    <script type="application/ld+json">{"@graph": [{"@type": "Article", "description": "ld"},
    {"@type": "Person", "description": "author"}]}</script>"""
    others = {"og": ["og"], "twitter": ["tw"], "dc": ["dc"], "http-equiv": ["he"]}
    items = {"itemprop": ["item"], "json-ld": ["ld"]}
    page = describe((metas % ("first", "second", "first")).encode(), UTF8)
    assert (page.caption, page.source) == ("first", "name")
    assert (page.title, page.lang) == ("A title", "pt-BR")
    named = {"name": ["first", "second"]}
    assert page.candidates == named | others
    assert describe((metas % ("", " ", "")).encode(), UTF8).candidates == others | items


def test_a_scripted_description_counts_only_where_the_source_has_none() -> None:
    named = describe(b"<meta name=description content=source>", UTF8, scripted=["scripted"])
    assert (named.caption, named.candidates) == ("source", {"name": ["source"]})
    other = describe(b"<meta property=og:description content=og>", UTF8, scripted=[" ", "scripted"])
    assert (other.caption, other.source) == ("scripted", "script")


def test_the_language_of_the_page_may_stand_in_a_meta() -> None:
    assert describe(b"<meta http-equiv=Content-Language content='fr, en'>", UTF8).lang == "fr"
    assert describe(b"<!-- <html lang=de> --><html lang=en><html lang=fr>", UTF8).lang == "en"


# --- random bytes ---

HEADERS = st.sampled_from([None, "", UTF8, *{case.header for case in CASES.values()}])
PIECES = st.sampled_from(
    b"<!--|-->|<meta |name=description |content=|charset=gbk|\"|'|>|<|/|<title>|</title>|<svg>|"
    b"<script type=application/ld+json>|</script>|<noscript>|<template>|&#|&#xD800;|&amp;|\x00|"
    b"\xef\xbb\xbf|\xff\xfe|\xfe\xff|\xa4\xa4|\x1b$B|<![CDATA[|<?xml encoding='|<html lang=x>|"
    b'{"description": "\\ud800"}|e\xcc\x81|\xc2\x85|itemprop=description |itemscope '.split(b"|")
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


@settings(max_examples=250)
@given(
    content=st.binary(max_size=400) | st.lists(PIECES, max_size=40).map(b"".join) | mutated(),
    header=HEADERS,
)
def test_no_bytes_crash_it_and_what_it_gives_is_clean(content: bytes, header: str | None) -> None:
    page = describe(content, header)
    texts = [text for candidates in page.candidates.values() for text in candidates]
    assert (page.caption is None) == (page.source is None)
    assert page.caption is None or page.caption in texts or page.source == "json-ld"
    for text in [*texts, *([page.title] if page.title else [])]:
        assert text
        assert unicodedata.is_normalized("NFC", text)
        assert not any(unicodedata.category(letter) in {"Cc", "Cs"} for letter in text)
        assert clean(text) == text
        text.encode()


# --- large pages ---

FIRST = b"<meta name=description content=first>"
LARGE = {  # beginning of a page, and the piece that is repeated to its end
    "elements": (FIRST, b"<p class=a>text <b>bold</b></p>\n"),
    "angles": (FIRST, b"<"),
    "nesting": (FIRST, b"<div>"),
    "end tags of nothing": (FIRST, b"<b></i>"),
    "a meta that never ends": (FIRST + b"<meta ", b"a=b "),
    "metas": (FIRST, b"<meta>"),
    "metas that open a quote": (FIRST, b"<meta x='"),
    "descriptions": (FIRST, b"<meta name=og:description content=x>"),
    "comments that open": (FIRST, b"<!-- "),
    "scripts that open": (FIRST, b"<script>"),
    "entities": (FIRST, b"&amp;"),
    "not ASCII, undeclared": (FIRST, "текст ".encode("cp1251")),
    "white space after charset": (
        FIRST + b"<meta http-equiv=content-type content='charset=",
        b" ",
    ),
    "JSON-LD of comments": (b"<script type=application/ld+json>{", b"/* // <!-- "),
    "JSON-LD of quotes": (b"<script type=application/ld+json>{", b'"\\'),
    "JSON-LD of commas": (b"<script type=application/ld+json>{", b", ,\n"),
    "JSON-LD of objects": (b"<script type=application/ld+json>[", b"{},"),
    "items in items": (b"<meta itemprop=description>", b"<p itemscope><meta itemprop=description>"),
}


def large(name: str, size: int) -> bytes:
    start, piece = LARGE[name]
    return start + piece * (size // len(piece))


def test_the_time_of_a_page_grows_as_its_length() -> None:
    for name in LARGE:
        began = time.process_time()
        caption = describe(large(name, 250_000), None).caption
        assert time.process_time() - began < 5, name
        assert caption == ("first" if LARGE[name][0].startswith(FIRST) else None), name


_MEASURE = """
import resource, sys
from now_builder.crawl.caption.describe import describe
describe(sys.stdin.buffer.read(), None)
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
"""


@pytest.mark.slow
def test_a_page_of_50_mb_takes_bounded_time_and_memory() -> None:
    page = large("metas", 50_000_000)
    command = [sys.executable, "-c", _MEASURE]
    done = subprocess.run(command, input=page, capture_output=True, check=True)
    seconds, mib = map(float, done.stdout.split())
    assert seconds < 60
    assert mib < 1500
