"""Encodings: the order of their sources, damaged UTF-8, and the encoding of the browser."""

import codecs
import random
import time
from pathlib import Path

from now_builder.crawl.caption.charset import decode, misread
from now_builder.crawl.caption.describe import describe
from tests.now_builder.crawl.cases import read_cases

from .descriptions import CHINESE

CASES = read_cases(Path(__file__).with_name("languages.toml"))
SENTENCES, LEGACY = CASES["sentences"], CASES["legacy"]
_CODECS = {"windows-874": "cp874", "macintosh": "mac_roman"}
STRAY = [b"\xa0", b"\x92", b"\xff", b"\x80", b"\xe9", b"\xc3", b"\xf0"]
GB2312 = "text/html; Charset=gb2312"


def page(description: bytes, text: str, codec: str) -> bytes:
    body = f"<title>Bakery</title></head><body><h1>{text}</h1><p>{text}".encode(codec, "ignore")
    return b'<html><head><meta name=description content="' + description + b'">' + body


def damaged(text: str, rng: random.Random) -> bytes:
    """Encode a text as UTF-8; then truncate it or remove, insert or replace a byte."""
    content = text.encode()
    inner = [at for at, byte in enumerate(content) if byte & 0xC0 == 0x80]
    at, damage = rng.choice(inner), rng.randrange(4)
    if damage == 0:
        return content[:at]
    put = b"" if damage == 1 else rng.choice(STRAY)
    return content[:at] + put + content[at + (damage != 2) :]


def test_an_encoding_says_how_it_was_found() -> None:
    for content, header, browser, charset, source in [
        (codecs.BOM_UTF8 + b"<meta charset=big5>", GB2312, None, "utf-8", "bom"),
        (codecs.BOM_UTF16_LE, GB2312, None, "utf-16le", "bom"),
        (b"<meta charset=big5>", GB2312, "big5", "gbk", "header"),
        (b"<meta charset=big5>", "text/html; charset=what", None, "big5", "meta"),
        (b"<!-- <meta charset=gbk> --><meta charset=big5>", None, None, "big5", "meta"),
        (b"<?xml version='1.0' encoding='koi8-r'?>", "text/html", None, "koi8-r", "meta"),
        (b"<meta charset=utf-16>", None, None, "utf-8", "meta"),
        # The browser used another encoding than the declared one; it never guesses UTF-8.
        (b"<script>'<meta charset=big5>'</script>\xd6\xd0", None, "GBK", "gbk", "browser"),
        (b"<meta charset=utf-8>" + CHINESE.encode(), None, "windows-1252", "utf-8", "utf-8"),
        (b"<meta charset=gbk>" + CHINESE.encode("gbk"), None, "GBK", "gbk", "meta"),
        ((3 * CHINESE).encode()[:-1], None, "windows-1252", "utf-8", "utf-8"),
        (b"plain", None, "windows-1252", "utf-8", "utf-8"),
        *((CHINESE.encode("gbk"), None, name, "windows-1252", "default") for name in ("", "no")),
    ]:
        decoded = decode(content, header, browser)
        assert (decoded.charset, decoded.source) == (charset, source), content


def test_bytes_that_gbk_lacks_are_read_as_the_standard_does() -> None:
    """Encoding Standard, gb18030 decoder: 0x80 is the euro sign, no ASCII byte is lost."""
    for label in ("gbk", "gb18030"):
        for content, text in [
            (b"\xd6\xd0\x80\xce\xc4", "中€文"), (b"\xff1", "\ufffd1"), (b"\x81 a", "\ufffd a"),
            (b"\x81\xffa", "\ufffda"), (b"\x810 ", "\ufffd0 "), (b"a\x81", "a\ufffd"),
            ("镕基喆㙍𠀀".encode("gb18030"), "镕基喆㙍𠀀"),
        ]:  # fmt: skip
            assert decode(content, f"text/html; charset={label}").text == text, content


def test_utf_8_with_a_damage_stays_utf_8() -> None:
    for language, text in SENTENCES.items():
        rng = random.Random(language)
        for _ in range(8):
            description = damaged(text, rng)
            result = describe(page(description, text, "utf-8"), "text/html", "windows-1252")
            assert (result.charset, result.charset_source) == ("utf-8", "utf-8"), description
            assert result.caption == " ".join(description.decode("utf-8", "replace").split())


def test_little_utf_8_is_enough_and_none_by_accident() -> None:
    for content in (
        "Más abajo, a la derecha, la tradici".encode() + b'\xc3"><p>casa',
        "<p>Größe, gr".encode() + b"\xc3</p>",
        "儿童服装商店，全国配".encode() + b'\xe9\x80"><p>shop',
        "Лавка ".encode() + b"\xd0<p>" + "и ещё".encode() + b"\xff",
    ):
        assert decode(content, None).charset == "utf-8", content
    for content in (
        b"caf\xe9",
        b"caf\xe9 \xc3\xa9t\xe9 d\xe9j\xe0 vu",
        b"\xabCAF\xc9\xbb, d\xe9j\xe0",
        b"It\x92s",
    ):
        assert decode(content, None, "windows-1252").source == "browser", content


def test_an_undeclared_encoding_is_the_browsers() -> None:
    for language, labels in LEGACY.items():
        for label in labels:
            text, codec = SENTENCES[language], _CODECS.get(label, label)
            encoded = text.encode(codec, "ignore")
            result = describe(page(encoded, text, codec), "text/html", label)
            assert (result.charset, result.charset_source) == (label, "browser")
            assert result.caption == " ".join(encoded.decode(codec).split())
            assert decode(page(encoded, text, codec), None).charset != "utf-8"


def test_only_texts_that_differ_are_misread() -> None:
    for browser in ("windows-1252", "iso-8859-2"):
        for text in SENTENCES.values():
            garbled = text.encode().decode(browser.replace("windows-", "cp"), "ignore")
            assert misread(["Bakery", garbled], "utf-8", browser), garbled
    for texts, charset, browser, expected in [
        (["plain text"], "utf-8", "windows-1252", False),
        ([], "utf-8", "windows-1252", False),
        (["© 2024 café"], "utf-8", "windows-1252", False),  # entities, or put there by a script
        (["Свежий хлеб"], "utf-8", "windows-1252", False),  # put there by a script
        (["Â© 2024"], "utf-8", "windows-1252", True),
        (["ÃƒÂ©"], "windows-1252", "windows-1252", False),  # the page itself has it so
        (["Ñâåæèé õëåá"], "windows-1251", "windows-1252", True),  # declared far below
        (["Ð"], "utf-8", "unknown", False),
    ]:
        assert misread(texts, charset, browser) is expected, texts


def test_no_bytes_take_long() -> None:
    for piece in (b"\xff ", b"\xd0\xa0 ", b"a\xc3 ", b"\xe4\xb8 \xe4\xb8\xad", b"<!--", b"<meta "):
        before = time.process_time()
        decode(piece * (1_000_000 // len(piece)), None, "windows-1252")
        assert time.process_time() - before < 4, piece
