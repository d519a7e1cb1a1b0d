"""Which encoding the ``<meta>`` tags of a page declare: a table, Chromium on it, and any bytes."""

import base64
import random
import time
from pathlib import Path

import pytest
import webencodings
from hypothesis import given
from hypothesis import strategies as st
from playwright.sync_api import sync_playwright

from now_builder.crawl.caption.charset import decode
from now_builder.crawl.caption.prescan import declared_labels
from now_builder.machine.chromium import find_chromium
from tests.now_builder.crawl.cases import read_cases

LONG = "x" * 2000
CASES = read_cases(Path(__file__).with_name("prescan.toml"))
GBK, NOTHING = CASES["gbk"], CASES["nothing"]


def found(html: str | bytes) -> str | None:
    """The encoding that Chromium should find, other than by a guess."""
    content = html if isinstance(html, bytes) else html.encode("latin-1")
    for label, in_reach in declared_labels(content):
        encoding = webencodings.lookup(label.decode("latin-1"))
        if encoding and in_reach:
            return str(encoding.name)
    return None


@pytest.mark.parametrize("name", GBK)
def test_a_page_declares_gbk(name: str) -> None:
    assert found(GBK[name]) == "gbk"
    decoded = decode(GBK[name].encode() + "中文".encode("gbk"), None)
    assert (decoded.charset, decoded.source) == ("gbk", "meta")


@pytest.mark.parametrize("name", NOTHING)
def test_a_page_declares_nothing(name: str) -> None:
    assert found(NOTHING[name]) is None
    assert decode(NOTHING[name].encode(), None).source != "meta"


@pytest.mark.parametrize("before", [f"<body>{LONG}", f"<p>{'x' * 1021}", f"</head>{LONG}"])
def test_a_tag_in_a_far_body_is_taken_only_for_want_of_others(before: str) -> None:
    page = (before + "<meta charset=gbk>").encode()
    assert list(declared_labels(page)) == [(b"gbk", False)]
    assert decode(page, None).charset == "gbk"
    assert decode(b'<?xml version="1.0" encoding="koi8-r"?>' + page, None).charset == "koi8-r"


PIECES = (
    "<meta |charset=gbk|charset='big5'|charset|=|\"|'|>|/>|/|<!--|-->|--!>|<p |<a b='|</p|<title>|"
    "</title>|<script>|</script>|<!-- <script|http-equiv=content-type |</|<| |x|<!x|<?|<style>|"
    "content='a; charset=euc-kr'|content=\"charset=\"|</style>|<meta charset=shift_jis>|<head>|"
    "</head>|<meta charset=koi8-r>|" + "y" * 400
).split("|")


@pytest.mark.browser
def test_chromium_finds_the_same() -> None:
    rng = random.Random(5)
    pages = [*GBK.values(), *NOTHING.values()]
    pages += ["".join(rng.choices(PIECES, k=rng.randint(2, 14))) for _ in range(80)]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_chromium())
        tab = browser.new_page()
        oracle = []
        for html in pages:
            data = base64.b64encode(html.encode()).decode()
            tab.goto(f"data:text/html;base64,{data}", wait_until="domcontentloaded")
            oracle.append(tab.evaluate("document.characterSet.toLowerCase()"))
        browser.close()
    assert [(html, found(html) or "windows-1252") for html in pages] == list(
        zip(pages, oracle, strict=True)
    )


ANY = st.lists(st.sampled_from(PIECES).map(str.encode) | st.binary(max_size=4)).map(b"".join)


@given(ANY, ANY)
def test_what_follows_never_changes_what_was_declared(content: bytes, more: bytes) -> None:
    before = list(declared_labels(content))
    assert list(declared_labels(content + more))[: len(before)] == before


@given(ANY)
def test_once_out_of_reach_is_out_of_reach(content: bytes) -> None:
    reached = [in_reach for _, in_reach in declared_labels(content)]
    assert reached == sorted(reached, reverse=True)


@pytest.mark.parametrize(
    "piece",
    ["<", "<!--", "<title>", "<script><!--", '<p a="', "<meta ", "a=", "= ", "/", "</", "<meta a",
     "<meta charset=", "--", "charset ", "<meta content='charset charset'>", "<a>", "<!", "'\""],
)  # fmt: skip
def test_no_page_takes_long(piece: str) -> None:
    """A megabyte of anything is read in one pass: ten times as much as this takes in a second."""
    began = time.process_time()
    for begin in ("<p charset>", "<p charset", "<meta content='charset"):
        list(declared_labels((begin + piece * (300_000 // len(piece))).encode()))
    assert time.process_time() - began < 5
