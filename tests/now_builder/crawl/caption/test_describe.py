"""HTML to caption: odd pages, odd encodings, and Chromium itself as the oracle."""

import codecs
import json
import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playwright.sync_api import sync_playwright

from now_builder.crawl.caption.charset import decode
from now_builder.crawl.caption.describe import choose, describe, with_scripted
from now_builder.formats.text import clean
from now_builder.machine.chromium import find_chromium

UTF8 = "text/html; charset=utf-8"

ODD = {
    "plain": "<meta name=description content='a b'>",
    "capitals": '<META NAME="DESCRIPTION" CONTENT="Up">',
    "in the body": "<body><p>x<meta name=description content='in body'></body>",
    "ampersands": "<meta name=description content='a&region=b &copy; &copy2020 &amp;amp; x&lt'>",
    "numeric": "<meta name=description content='&#x1F600; &#128; &#60b&#62 &LT; &ampx AT&T'>",
    "noscript": "<noscript><meta name=description content=no></noscript>"
    "<meta name=description content=yes>",
    "template": "<template><meta name=description content=no></template>"
    "<meta name=description content=yes>",
    "comment": "<!-- <meta name=description content=no> --><meta name=description content=yes>",
    "title": "<title><meta name=description content=no></title><meta name=description content=yes>",
    "textarea": "<textarea><meta name=description content=no></textarea>"
    "<meta name=description content=yes>",
    "script": "<script>'<meta name=description content=no>'</script>"
    "<meta name=description content=yes>",
    "script in a comment in a script": "<script><!-- <script> </script> "
    "<meta name=description content=no> --></script><meta name=description content=yes>",
    "a quote that never ends": '<meta name="description" content="abc><p class="x">text</p>',
    "no quotes": "<meta name=description content=hello world>",
    "twice the attribute": '<meta name=description content="one" content="two">',
    "in svg": "<svg><desc>no</desc><meta name=description content=out></svg>",
    "iframe": '<iframe srcdoc="<meta name=description content=no>">'
    "<meta name=description content=n></iframe><meta name=description content=yes>",
    "first empty": "<meta name=description content=' '><meta name=description content=yes>",
    "frameset": "<html><head><meta name=description content=fs></head><frameset><frame src=x>",
    "deep": "<div>" * 600 + "<meta name=description content=deep>",
    "xhtml": '<?xml version="1.0" encoding="utf-8"?><html xmlns="http://www.w3.org/1999/xhtml">'
    '<head><meta name="description" content="x"/></head></html>',
    "in a table": "<table><tr><meta name=description content=tab></table>",
    "spaces in the name": '<meta name=" description " content=sp>',
    "slashes": '<meta/name="description"/content="sl"/>',
    "odd end tag": "<style></style x><meta name=description content=yes>",
    "end of file": '<meta name=description content="yes"',
    "white space": "<meta name=description content='a\r\n\tb&nbsp;c\u3000d\u00ad\u200be'>",
    "controls": "<meta name=description content='a&#1;b&#x85;c&#127;d'>",
    "none": "<p>nothing</p>",
}


@pytest.mark.browser
def test_odd_pages_are_read_as_chromium_reads_them() -> None:
    script = """html => {
      const frame = document.body.appendChild(document.createElement("iframe"));
      const doc = frame.contentDocument;
      doc.open(); doc.write(html); doc.close();
      const found = [...doc.querySelectorAll("meta")].map(
        (meta) => [meta.getAttribute("name") || "", meta.getAttribute("content") || ""]);
      frame.remove();
      return found.filter(([name, text]) =>
        name.trim().toLowerCase() === "description" && text.trim()).map((pair) => pair[1])[0];
    }"""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_chromium())
        page = browser.new_page()
        oracle = {name: page.evaluate(script, html) for name, html in ODD.items()}
        browser.close()
    found = {name: describe(html.encode(), UTF8).caption for name, html in ODD.items()}
    assert found == {name: text and clean(text) for name, text in oracle.items()}


def test_entities_are_decoded_once_and_nothing_else_is_mended() -> None:
    html = "<meta name=description content='&amp;lt;b&amp;gt; &lt;i&gt;  soft\u200bzero'>"
    assert describe(html.encode(), UTF8).caption == "&lt;b&gt; <i> soft\u200bzero"


def test_the_caption_is_in_nfc_but_not_in_nfkc() -> None:
    html = "<meta name=description content='e\u0301 \uff21'>"
    assert describe(html.encode(), UTF8).caption == "\u00e9 \uff21"


def test_every_candidate_is_recorded_by_source() -> None:
    html = """<html lang="pt-BR"><title> A  title </title>
    <meta property="og:description" content="og"><meta name="twitter:description" content="tw">
    <meta name="DC.Description" content="dc"><meta itemprop="description" content="item">
    <meta http-equiv="Description" content="he"><meta name="description" content="first">
    <meta name="Description" content="second"><meta name="description" content="first">
    <script type="application/ld+json">{"@graph": [{"@type": "Article", "description": "ld"},
    {"@type": "Person", "description": "author"}]}</script>"""
    page = describe(html.encode(), UTF8)
    assert (page.caption, page.source) == ("first", "name")
    assert page.candidates == {
        "og": ["og"], "twitter": ["tw"], "dc": ["dc"], "itemprop": ["item"], "http-equiv": ["he"],
        "name": ["first", "second"], "json-ld": ["ld"],
    }  # fmt: skip
    assert (page.title, page.lang) == ("A title", "pt-BR")
    assert json.loads(json.dumps(page.candidates)) == page.candidates


def test_fallbacks_come_in_order_and_only_when_wanted() -> None:
    html = b"<meta name=twitter:description content=tw><meta property=og:description content=og>"
    assert (describe(html, UTF8).caption, describe(html, UTF8).source) == ("og", "og")
    assert describe(html, UTF8, fallback=False).caption is None


def test_a_scripted_description_counts_only_where_the_source_has_none() -> None:
    named = describe(b"<meta name=description content=source>", UTF8)
    assert choose(with_scripted(named, ["scripted"]), fallback=True) == ("source", "name")
    other = describe(b"<meta property=og:description content=og>", UTF8)
    assert choose(with_scripted(other, [" ", "scripted"]), fallback=True) == ("scripted", "script")


@pytest.mark.parametrize("ld", ["{", "[1, null]", '{"description": 5}', "[" * 100_000, '"x"'])
def test_broken_json_ld_is_no_description(ld: str) -> None:
    html = f'<script type="application/ld+json">{ld}</script>'
    assert describe(html.encode(), UTF8).caption is None


@pytest.mark.parametrize("content", [b"", b"\0\0", b"word", b"/etc/passwd", b"\xff\xfe", b"<"])
def test_what_is_hardly_a_page_has_no_description(content: bytes) -> None:
    assert describe(content, None).caption is None


@given(st.binary(max_size=300), st.sampled_from([None, UTF8, "text/html; charset=shift_jis"]))
def test_any_bytes_can_be_described(content: bytes, kind: str | None) -> None:
    caption = describe(content, kind).caption
    assert caption is None or caption == clean(caption)


# --- encodings ---

TEXTS = {
    "zh": "本站提供最新的手机评测和数码产品导购信息，欢迎访问",
    "zh-TW": "本站提供最新的手機評測和數位產品導購資訊，歡迎光臨",
    "ja": "最新のスマートフォンのレビューとパソコンの比較情報をお届けします",
    "ko": "최신 스마트폰 리뷰와 컴퓨터 비교 정보를 제공합니다",
    "ru": "Последние обзоры смартфонов и сравнение компьютеров",
    "fr": "Dernières critiques de téléphones, préparées à la maison",
}
CODECS = {
    "gbk": ("zh", "gbk"), "gb2312": ("zh", "gbk"), "gb18030": ("zh", "gb18030"),
    "big5": ("zh-TW", "big5"), "shift_jis": ("ja", "cp932"), "euc-jp": ("ja", "euc_jp"),
    "euc-kr": ("ko", "cp949"), "ks_c_5601-1987": ("ko", "cp949"),
    "iso-2022-jp": ("ja", "iso2022_jp"),
    "windows-1251": ("ru", "cp1251"), "koi8-r": ("ru", "koi8_r"), "iso-8859-1": ("fr", "cp1252"),
    "utf-8": ("zh", "utf-8"), "utf-16le": ("zh", "utf-16-le"),
}  # fmt: skip


def html_of(text: str, declaration: str = "") -> str:
    return (
        f"<!DOCTYPE html><html><head>{declaration}<title>{text[:8]}</title>"
        f'<meta name="description" content="{text}"></head><body><h1>{text}</h1></body></html>'
    )


@pytest.mark.parametrize("label", CODECS)
def test_the_header_names_the_encoding(label: str) -> None:
    language, codec = CODECS[label]
    page = describe(html_of(TEXTS[language]).encode(codec), f'text/html; Charset="{label}"')
    assert (page.caption, page.charset_source) == (TEXTS[language], "header")


@pytest.mark.parametrize(
    ("label", "form"),
    [
        (label, form)
        for label in CODECS
        if label != "utf-16le"
        for form in [
            '<meta charset="{}">',
            "<META CHARSET={}>",
            '<meta http-equiv="Content-Type" content="text/html; charset={}">',
            "<meta content='text/html;charset={}' http-equiv=content-type />",
            "<!-- <meta charset=utf-16> --><meta charset='{}'>",
            "<script>" + " " * 3000 + "</script><meta charset={}>",
        ]
    ],
)
def test_a_meta_tag_names_the_encoding(label: str, form: str) -> None:
    language, codec = CODECS[label]
    html = html_of(TEXTS[language], form.format(label))
    page = describe(html.encode(codec), "text/html")
    assert (page.caption, page.charset_source) == (TEXTS[language], "meta")


@pytest.mark.parametrize(
    "label",
    ["gbk", "big5", "shift_jis", "euc-jp", "euc-kr", "windows-1251", "koi8-r", "iso-8859-1"],
)
def test_an_undeclared_encoding_is_detected_on_a_short_page(label: str) -> None:
    language, codec = CODECS[label]
    page = describe(html_of(TEXTS[language]).encode(codec), "text/html")
    assert (page.caption, page.charset_source) == (TEXTS[language], "detected")


def test_a_long_page_of_scripts_does_not_bury_the_text() -> None:
    html = html_of(TEXTS["zh"], "<script>" + "var a = 1;\n" * 20_000 + "</script>")
    assert describe(html.encode("gbk"), None).caption == TEXTS["zh"]


@pytest.mark.parametrize(
    ("mark", "codec"),
    [
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
    ],
)
def test_a_byte_order_mark_wins_over_everything(mark: bytes, codec: str) -> None:
    content = mark + html_of(TEXTS["zh"], "<meta charset=big5>").encode(codec)
    page = describe(content, "text/html; charset=euc-kr")
    assert (page.caption, page.charset_source) == (TEXTS["zh"], "bom")


def test_the_header_wins_over_the_meta_tag() -> None:
    content = html_of(TEXTS["zh"], "<meta charset=big5>").encode("gbk")
    assert describe(content, "text/html; charset=gb2312").caption == TEXTS["zh"]


def test_an_unknown_label_is_passed_over() -> None:
    content = html_of(TEXTS["zh"], "<meta charset=nonsense><meta charset=gbk>").encode("gbk")
    page = describe(content, "text/html; charset=what")
    assert (page.caption, page.charset) == (TEXTS["zh"], "gbk")


def test_a_meta_tag_that_says_utf_16_means_utf_8() -> None:
    content = html_of(TEXTS["zh"], "<meta charset=utf-16>").encode()
    assert describe(content, None).caption == TEXTS["zh"]


def test_undeclared_utf_8_is_told_even_when_its_last_character_is_cut_off() -> None:
    decoded = decode(TEXTS["zh"].encode()[:-1], None)
    assert (decoded.charset, decoded.source) == ("utf-8", "utf-8")


def test_plain_ascii_is_utf_8() -> None:
    assert decode(string.printable.encode(), None).charset == "utf-8"


def test_rare_characters_of_gbk_pages_are_read() -> None:
    assert describe(
        html_of("镕基喆㙍𠀀").encode("gb18030"), "text/html; charset=gb2312"
    ).caption == ("镕基喆㙍𠀀")


@pytest.mark.parametrize(
    "page",
    [
        b"<b></i>" * 150_000,
        b"".join(b"<meta name=og:description content=%d>" % n for n in range(25_000)),
    ],
    ids=["end tags of nothing", "descriptions"],
)
def test_the_time_of_a_page_grows_as_its_length(page: bytes) -> None:
    started = time.process_time()
    found = describe(b"<meta name=description content=x>" + page, UTF8)
    assert found.caption == "x"
    assert time.process_time() - started < 3  # it was 33 and 4 seconds


@pytest.mark.parametrize("label", ["gbk", "gb2312", "gb18030"])
@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"\xd6\xd0\x80\xce\xc4", "中€文"),
        (b"\xff1", "\ufffd1"),
        (b"\x81 a", "\ufffd a"),
        (b"\x81\xffa", "\ufffda"),
        (b"\x810 ", "\ufffd0 "),
        (b"a\x81", "a\ufffd"),
    ],
)
def test_bytes_that_gbk_lacks_are_read_as_the_standard_does(label, content, text):
    """Encoding Standard, gb18030 decoder: 0x80 is the euro sign, no ASCII byte is lost."""
    assert decode(content, f"text/html; charset={label}").text == text
