"""Undeclared encodings: UTF-8 with damages, what the browser took, and what it shows."""

import random
import time
from pathlib import Path

import pytest

from now_builder.crawl.caption.charset import decode, misread
from now_builder.crawl.caption.describe import describe
from tests.now_builder.crawl.cases import read_cases

CASES = read_cases(Path(__file__).with_name("languages.toml"))
SENTENCES, LEGACY = CASES["sentences"], CASES["legacy"]
_CODECS = {"windows-874": "cp874", "macintosh": "mac_roman"}
STRAY = [b"\xa0", b"\x92", b"\xff", b"\x80", b"\xe9", b"\xc3", b"\xf0"]


def page(description: bytes, text: str, codec: str) -> bytes:
    body = f"<title>Bakery</title></head><body><h1>{text}</h1><p>{text}".encode(codec, "ignore")
    return b'<html><head><meta name=description content="' + description + b'">' + body


def damaged(text: str, rng: random.Random) -> bytes:
    """A text in UTF-8: cut within a character, a byte lost, one put in, or another one."""
    content = text.encode()
    inner = [at for at, byte in enumerate(content) if byte & 0xC0 == 0x80]
    at, kind = rng.choice(inner), rng.randrange(4)
    if kind == 0:
        return content[:at]
    put = b"" if kind == 1 else rng.choice(STRAY)
    return content[:at] + put + content[at + (kind != 2) :]


@pytest.mark.parametrize("language", SENTENCES)
def test_utf_8_with_a_damage_stays_utf_8(language: str) -> None:
    text, rng = SENTENCES[language], random.Random(language)
    for _ in range(25):
        description = damaged(text, rng)
        found = describe(page(description, text, "utf-8"), "text/html", "windows-1252")
        assert (found.charset, found.charset_source) == ("utf-8", "utf-8"), description
        assert found.caption == " ".join(description.decode("utf-8", "replace").split())


@pytest.mark.parametrize(
    "content",
    [
        "Más abajo, a la derecha, la tradici".encode() + b'\xc3"><p>casa',
        "<p>Größe, gr".encode() + b"\xc3</p>",
        "儿童服装商店，全国配".encode() + b'\xe9\x80"><p>shop',
        "Лавка ".encode() + b"\xd0<p>" + "и ещё".encode() + b"\xff",
    ],
)
def test_little_utf_8_is_enough(content: bytes) -> None:
    assert decode(content, None).charset == "utf-8"


@pytest.mark.parametrize(
    "content",
    [
        b"caf\xe9",
        b"caf\xe9 \xc3\xa9t\xe9 d\xe9j\xe0 vu",
        b"\xabCAF\xc9\xbb, d\xe9j\xe0",
        b"It\x92s",
    ],
)
def test_what_is_utf_8_by_accident_is_not(content: bytes) -> None:
    assert decode(content, None, "windows-1252").source == "browser"


@pytest.mark.parametrize(
    ("language", "label"), [(name, label) for name, labels in LEGACY.items() for label in labels]
)
def test_an_undeclared_encoding_is_the_browsers(language: str, label: str) -> None:
    text, codec = SENTENCES[language], _CODECS.get(label, label)
    encoded = text.encode(codec, "ignore")
    found = describe(page(encoded, text, codec), "text/html", label)
    assert (found.charset, found.charset_source) == (label, "browser")
    assert found.caption == " ".join(encoded.decode(codec).split())
    assert decode(page(encoded, text, codec), None).charset != "utf-8"


@pytest.mark.parametrize("browser", ["no-such-encoding", "", None])
def test_without_a_browser_that_knows_the_encoding_it_is_the_default(browser: str | None) -> None:
    content = page(SENTENCES["zh"].encode("gbk"), SENTENCES["zh"], "gbk")
    assert decode(content, None, browser).source == "default"


def test_a_declaration_comes_before_the_browser() -> None:
    content = b"<meta charset=gbk>" + SENTENCES["zh"].encode("gbk")
    assert decode(content, None, "windows-1252").source == "meta"
    assert decode(b"<p>plain", None, "windows-1252").charset == "utf-8"


@pytest.mark.parametrize("language", SENTENCES)
@pytest.mark.parametrize("browser", ["windows-1252", "windows-1250", "windows-1257", "iso-8859-2"])
def test_undeclared_utf_8_is_misread(language: str, browser: str) -> None:
    shown = SENTENCES[language].encode().decode(browser.replace("windows-", "cp"), "ignore")
    assert misread(["Bakery", shown], "utf-8", browser)


@pytest.mark.parametrize(
    ("seen", "charset", "browser", "there"),
    [
        (["plain text"], "utf-8", "windows-1252", False),
        ([], "utf-8", "windows-1252", False),
        (["© 2024 café"], "utf-8", "windows-1252", False),  # entities, or put there by a script
        (["Свежий хлеб"], "utf-8", "windows-1252", False),  # put there by a script
        (["Â© 2024"], "utf-8", "windows-1252", True),
        (["ÃƒÂ©"], "windows-1252", "windows-1252", False),  # the page itself has it so
        (["Ñâåæèé õëåá"], "windows-1251", "windows-1252", True),  # declared far below
        (["Ð"], "utf-8", "unknown", False),
    ],
)
def test_only_what_reads_otherwise_is_misread(
    seen: list[str],
    charset: str,
    browser: str,
    there: bool,  # noqa: FBT001
) -> None:
    assert misread(seen, charset, browser) is there


@pytest.mark.parametrize(
    "piece", [b"\xff", b"\xff ", b"\xd0\xa0 ", b"a\xc3 ", b"\xe4\xb8 \xe4\xb8\xad"]
)
def test_no_bytes_take_long(piece: bytes) -> None:
    before = time.process_time()
    decode(piece * (3_000_000 // len(piece)), None, "windows-1252")
    assert time.process_time() - before < 10
