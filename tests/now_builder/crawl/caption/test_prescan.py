"""Which encoding the ``<meta>`` tags of a page declare: a table, Chromium on it, and any bytes."""

import base64
import random
import time

import pytest
import webencodings
from hypothesis import given
from hypothesis import strategies as st
from playwright.sync_api import sync_playwright

from now_builder.crawl.caption.charset import decode
from now_builder.crawl.caption.prescan import declared_labels
from now_builder.machine.chromium import find_chromium

PRAGMA = "<meta http-equiv='%s' content='%s'>"
LONG = "x" * 2000

GBK = {
    "nothing but the tag": "<meta charset=gbk>",
    "in upper case, with spaces": '<META CHARSET=" GBK ">',
    "form feeds and slashes between attributes": "<meta/\x0ccharset='gbk'//>",
    "no space behind a quoted value": '<meta a="b"charset=gbk>',
    "spaces around the equals sign": "<meta charset \n=\t gbk>",
    "a name that begins with an equals sign": "<meta =x charset=gbk>",
    "a quote as a name": '<meta " charset=gbk>',
    "a quote in an unquoted value": '<meta a=x" charset=gbk>',
    "the last charset of several": "<meta charset=big5 charset=gbk>",
    "a tag inside the tag": "<meta <meta charset=gbk>",
    "an unknown label before": "<meta charset=none><meta charset=gbk>",
    "an empty label before": "<meta charset=' '><meta charset=gbk>",
    "an end tag before": "</meta charset=big5><meta charset=gbk>",
    "pragma": PRAGMA % ("Content-Type", "text/html; charset=gbk"),
    "pragma behind the content": "<meta content='charset=gbk' http-equiv=content-type>",
    "pragma with a quoted label": PRAGMA % ("content-type", 'charset="gbk"x'),
    "pragma, label up to a space": PRAGMA % ("content-type", "charset=gbk big5"),
    "pragma, label up to a quote": PRAGMA % ("content-type", 'charset=gbk"'),
    "pragma, the word charset before": PRAGMA % ("content-type", "charset; charset = gbk"),
    "pragma with a blank behind": PRAGMA % ("content-type ", "charset=big5") + "<meta charset=gbk>",
    "pragma with a blank before": PRAGMA % ("\tcontent-type", "charset=big5")
    + "<meta charset=gbk>",
    "pragma of another kind": PRAGMA % ("content-style-type", "charset=big5")
    + "<meta charset=gbk>",
    "pragma whose quote never ends": PRAGMA % ("content-type", 'charset="big5')
    + "<meta charset=gbk>",
    "content without a pragma": "<meta content='charset=big5'><meta charset=gbk>",
    "in a quoted attribute": '<p title="<meta charset=big5>"><meta charset=gbk>',
    "in a quoted attribute of an end tag": "</p a='<meta charset=big5>'><meta charset=gbk>",
    "in an attribute over lines": '<p title="a>\n<meta charset=big5>\n"><meta charset=gbk>',
    "the other quote in quotes": "<p a='\"'><meta charset=gbk><p a='\"'>",
    "a tag named alike": "<metacharset=big5><metadata charset=big5><meta charset=gbk>",
    "in a comment": "<!-- > <meta charset=big5> --><meta charset=gbk>",
    "comments that end at once": "<!--><!---><meta charset=gbk>-->",
    "a comment that ends oddly": "<!-- --!><meta charset=gbk>-->",
    "in a doctype": "<!x <meta charset=big5><meta charset=gbk>",
    "in an instruction": "<?x <meta charset=big5><meta charset=gbk>",
    "in an end tag without a name": "</ <meta charset=big5><meta charset=gbk>",
    "in a script": "<script>'<meta charset=big5>'</script><meta charset=gbk>",
    "in a script in a script": "<script><!--<script></script><meta charset=big5>--></script>"
    "<meta charset=gbk>",
    "a script with half a comment": "<script>'<!--'</script><meta charset=gbk>",
    "a script with a comment that ends at once": "<script><!--><script></script><meta charset=gbk>",
    "in a style": "<style><meta charset=big5></style ><meta charset=gbk>",
    "in a title": "<title></titles><meta charset=big5></TITLE><meta charset=gbk>",
    "in a text area": "<textarea><meta charset=big5></textarea/><meta charset=gbk>",
    "in an attribute that opens a script": '<p a="<script>"><meta charset=gbk>',
    "in noscript": "<noscript><meta charset=gbk></noscript>",
    "behind a long comment": f"<!--{LONG}--><meta charset=gbk>",
    "behind a long title": f"<title>{LONG}</title><meta charset=gbk>",
    "behind a long head": f"<html><head>{'<link rel=x>' * 200}<meta charset=gbk>",
    "at the end of the first bytes": f"<p>{'x' * 1020}<meta charset=gbk>",
}
"""Pages that declare GBK, by what is odd about them; where Big5 is written it is not declared."""

NOTHING = {
    "a tag that does not end": "<meta charset=gbk",
    "a pragma that does not end": "<meta http-equiv=content-type content='charset=gbk'",
    "a quote that does not end": '<meta charset="gbk><p>',
    "a quote that does not end before": '<p title="><meta charset=gbk>',
    "only a quote behind": '<meta charset=gbk">',
    "in a quote that ends further on": "<meta a=' charset=gbk><p>'</p>",
    "no space": "<metacharset=gbk>",
    "in text without an end": "<plaintext><meta charset=gbk>",
    "in a title without an end": "<title><meta charset=gbk>",
    "in a comment without an end": "<!-- <meta charset=gbk>",
    "nothing": "",
    "less than a tag": "<",
    "a tag's name": "<meta",
    "no label": "<meta charset><meta charset=>",
}


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
