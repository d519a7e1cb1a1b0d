"""Decode the bytes of a page as browsers do."""

import codecs
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import webencodings

from now_builder.crawl.caption.prescan import declared_labels

_BOMS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xfe\xff", "utf-16be"), (b"\xff\xfe", "utf-16le"))
_XML_WITHIN = 1024
_MEANT = {"utf-16be": "utf-8", "utf-16le": "utf-8", "x-user-defined": "windows-1252"}
"""Encodings meant by pages that declare these in plain bytes."""

_XML = re.compile(
    rb"\s*<\?xml[\s][^>]*?\bencoding\s*=\s*(?:\"([^\"<>]*)\"|'([^'<>]*)')", re.IGNORECASE
)
_CHARSET = re.compile(rb"charset\s*+=\s*+[\"']?+\s*+([^\s\"';]++)", re.IGNORECASE)
_NOT_ASCII = re.compile(rb"[\x80-\xff]+")
_HALF_LETTER = re.compile(rb"(?<=[a-z])[\xc3-\xc5](?=[\s\"'<.])")
"""The first byte of a Latin letter in UTF-8, cut off; in other encodings a capital, which ends no
word."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """Decoded text, and how its encoding was found.

    Attributes:
        text: the text; undecodable bytes are U+FFFD.
        charset: WHATWG name, lower case.
        source: ``bom``, ``header``, ``meta``, ``xml`` (its declaration), ``utf-8`` (undeclared,
            valid but for a few bytes), ``browser`` or ``default``.
    """

    text: str
    charset: str
    source: str


def decode(content: bytes, content_type: str | None, browser: str | None = None) -> Decoded:
    """Decode a page as browsers do.

    The order: byte-order mark, charset of the HTTP header, ``<meta>`` in the first 1,024 bytes or
    in the head, XML declaration, ``<meta>`` further on, UTF-8, the encoding that the browser
    guessed, windows-1252.

    Source:
        WHATWG HTML, "Determining the character encoding"; WHATWG Encoding for the labels.
    """
    for mark, charset in _BOMS:
        if content.startswith(mark):
            return Decoded(_decode(content[len(mark) :], charset), charset, "bom")
    ways: tuple[tuple[str, Callable[[], str | None]], ...] = (
        ("header", lambda: _header_charset(content_type)),
        ("meta", lambda: _meta_charset(content, in_reach=True)),
        ("xml", lambda: _xml_charset(content)),
        # Chromium, which looks no further, guesses now; the page knows better.
        ("meta", lambda: _meta_charset(content, in_reach=False)),
        ("utf-8", lambda: "utf-8" if _is_utf8(content) else None),
        ("browser", lambda: _known((browser or "").encode())),
        ("default", lambda: "windows-1252"),
    )
    charset, source = next((found, name) for name, look in ways if (found := look()))
    return Decoded(_decode(content, charset), charset, source)


def misread(seen: Iterable[str], charset: str, browser: str) -> bool:
    """Return whether texts on the screen, read in ``browser``, are others in ``charset``."""
    if charset == browser or webencodings.lookup(browser) is None:
        return False
    codec = webencodings.lookup(browser).codec_info
    for text in seen:
        meant = _decode(codec.encode(text, "ignore")[0], charset)
        if meant != text and not meant.replace("\ufffd", "").isascii():
            return True
    return False


def whole_characters(value: Any) -> Any:
    """Replace halves of surrogate pairs in a JSON value by U+FFFD, so that it can be written."""
    if isinstance(value, str):
        if value.isascii():
            return value
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [whole_characters(item) for item in value]
    if isinstance(value, dict):
        return {name: whole_characters(item) for name, item in value.items()}
    return value


def _decode(content: bytes, charset: str) -> str:
    encoding = webencodings.lookup(charset)
    # Python's GBK lacks what pages labelled so use; the standard decodes both with GB18030.
    codec = codecs.lookup("gb18030") if encoding.name == "gbk" else encoding.codec_info
    errors = "replace"
    if encoding.name in {"gbk", "gb18030"}:
        errors = _EURO
    elif encoding.name.startswith("windows-"):
        errors = _C1
    elif encoding.name == "euc-jp":
        errors = _ROW_13
    text = str(codec.decode(content, errors)[0])
    return text.translate(_JIS) if encoding.name in {"euc-jp", "iso-2022-jp"} else text


_C1, _ROW_13, _EURO = "now-builder-c1", "now-builder-row-13", "now-builder-euro"
_JIS = str.maketrans("〜‖−¢£¬—", "～∥－￠￡￢―")
"""Differences of the standard's table of JIS X 0208 (that of Windows) from Python's."""


def _c1(rest: bytes) -> tuple[str, int]:
    """Decode a byte that Windows leaves undefined: a C1 control, or unknown."""
    return chr(rest[0]) if rest[0] < 0xA0 else "\ufffd", 1


def _euro(rest: bytes) -> tuple[str, int]:
    """Decode the byte 0x80 of GBK and GB18030 as the standard does: the euro sign of Windows."""
    first, *second = rest
    if first == 0x80:
        return "€", 1
    # No byte of ASCII is lost.
    return "\ufffd", 2 if first != 0xFF and second and second[0] > 0x7F else 1


def _row_13(rest: bytes) -> tuple[str, int]:
    """Decode the characters of web EUC-JP beyond JIS X 0208 (``①``, ``㈱``) by Shift_JIS."""
    if len(rest) == 2 and min(rest) > 0xA0 and max(rest) < 0xFF:
        row, cell = rest[0] - 0xA1, rest[1] - 0xA1
        lead = row // 2 + (0x81 if row < 62 else 0xC1)
        trail = cell + (0x9F if row % 2 else 0x40 if cell < 63 else 0x41)
        return bytes([lead, trail]).decode("cp932", "replace"), 2
    return "\ufffd", 1


def _register(name: str, decode_pair: Callable[[bytes], tuple[str, int]]) -> None:
    """Decode by a function of two bytes, which returns a text and the bytes used, on errors."""

    def handle(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeDecodeError):
            raise error
        text, used = decode_pair(error.object[error.start : error.start + 2])
        return text, error.start + used

    codecs.register_error(name, handle)


for _name, _function in ((_C1, _c1), (_ROW_13, _row_13), (_EURO, _euro)):
    _register(_name, _function)


def _header_charset(content_type: str | None) -> str | None:
    found = _CHARSET.search((content_type or "").encode("latin-1", "replace"))
    return _known(found[1]) if found else None


def _known(label: bytes) -> str | None:
    encoding = webencodings.lookup(label.decode("latin-1").strip())
    return None if encoding is None else str(encoding.name)


def _meta_charset(content: bytes, *, in_reach: bool) -> str | None:
    """Find the encoding that a ``<meta>`` declares, where browsers look or beyond."""
    labels = (label for label, reached in declared_labels(content) if reached == in_reach)
    return next(filter(None, map(_meant, labels)), None)


def _xml_charset(content: bytes) -> str | None:
    found = _XML.match(content, 0, _XML_WITHIN)
    return _meant(found[1] or found[2] or b"") if found else None


def _meant(label: bytes) -> str | None:
    """Return the encoding meant by a label in the page, which cannot be UTF-16 if it was read."""
    charset = _known(label)
    return _MEANT.get(charset, charset) if charset else None


def _is_utf8(content: bytes) -> bool:
    """Whether the bytes are UTF-8, but for a few that were damaged.

    In other encodings runs of bytes that are not ASCII hardly ever are UTF-8; of the characters in
    them, some are by accident, up to two of three in short texts in Thai.
    """
    rest = _HALF_LETTER.sub(b"", content)
    runs = [run.decode("utf-8", "replace") for run in _NOT_ASCII.findall(rest)]
    broken = sum("\ufffd" in run for run in runs)
    invalid = sum(run.count("\ufffd") for run in runs)
    valid = sum(map(len, runs)) - invalid
    return valid >= 4 * invalid or (valid >= invalid and len(runs) >= 2 * broken)
