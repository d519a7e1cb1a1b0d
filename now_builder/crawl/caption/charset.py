"""Decode the bytes of a page as browsers do."""

import codecs
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import webencodings
from bs4.dammit import EncodingDetector

_BOMS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xfe\xff", "utf-16be"), (b"\xff\xfe", "utf-16le"))
_HEAD = 1 << 13
"""Bytes of a page in which a declaration is searched; the browser knows of later ones."""

_COMMENT = re.compile(rb"<!--.*?(?:-->|\Z)", re.DOTALL)
_CHARSET = re.compile(r"charset\s*+=\s*+[\"']?+\s*+([^\s\"';]++)", re.IGNORECASE)
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
        source: ``bom``, ``header``, ``meta`` (declared in the page), ``utf-8`` (undeclared, valid
            but for a few bytes), ``browser`` or ``default``.
    """

    text: str
    charset: str
    source: str


def decode(content: bytes, content_type: str | None, browser: str | None = None) -> Decoded:
    """Decode a page as browsers do.

    The order: byte-order mark, charset of the HTTP header, declaration in the page, UTF-8, the
    encoding that the browser used, windows-1252. A declaration that the browser understood
    otherwise, or did not find, does not count; but no browser guesses UTF-8.

    Source:
        WHATWG HTML, "Determining the character encoding"; WHATWG Encoding for the labels.
    """
    for mark, charset in _BOMS:
        if content.startswith(mark):
            return Decoded(_decode(content[len(mark) :], charset), charset, "bom")
    header = _CHARSET.search(content_type or "")
    used = _known(browser)
    if header and (found := _known(header[1])):
        charset, source = found, "header"
    elif (found := _declared(content)) and found == (used or found):
        charset, source = found, "meta"
    elif _is_utf8(content):
        charset = source = "utf-8"
    else:
        charset, source = (used, "browser") if used else ("windows-1252", "default")
    return Decoded(_decode(content, charset), charset, source)


def _known(label: str | None) -> str | None:
    encoding = webencodings.lookup((label or "").strip())
    return None if encoding is None else str(encoding.name)


def _declared(content: bytes) -> str | None:
    """Return the encoding that a ``<meta>`` or an XML declaration names.

    It is not UTF-16, as the declaration could be read.
    """
    start = _COMMENT.sub(b"", content[:_HEAD])
    charset = _known(EncodingDetector.find_declared_encoding(start, is_html=True))
    return "utf-8" if charset in {"utf-16le", "utf-16be"} else charset


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
    errors = "replace" if encoding.name == "replacement" else _ERRORS
    text = str(codec.decode(content, errors)[0])
    return text.translate(_JIS) if encoding.name in {"euc-jp", "iso-2022-jp"} else text


_ERRORS = "now-builder"
_JIS = str.maketrans("〜‖−¢£¬—", "～∥－￠￡￢―")
"""Differences of the standard's table of JIS X 0208 (that of Windows) from Python's."""


def _as_browsers(error: UnicodeError) -> tuple[str, int]:
    """Decode what Python's codecs lack; other bytes are U+FFFD.

    These are the euro sign of Windows in GBK, characters of EUC-JP beyond JIS X 0208 (``①``,
    ``㈱``), which Shift_JIS has, and bytes that Windows leaves undefined, which are C1 controls.
    """
    if not isinstance(error, UnicodeDecodeError):
        raise error
    pair = error.object[error.start : error.start + 2]
    first = pair[0]
    match error.encoding:
        case "gb18030" if first == 0x80:
            return "€", error.start + 1
        case "gb18030":  # no byte of ASCII is lost
            two = first != 0xFF and pair[1:] > b"\x7f"
            return "\ufffd", error.start + (2 if two else 1)
        case "euc_jp" if len(pair) == 2 and min(pair) > 0xA0 and max(pair) < 0xFF:
            row, cell = first - 0xA1, pair[1] - 0xA1
            lead = row // 2 + (0x81 if row < 62 else 0xC1)
            trail = cell + (0x9F if row % 2 else 0x40 if cell < 63 else 0x41)
            return bytes([lead, trail]).decode("cp932", "replace"), error.start + 2
        case "euc_jp":
            return "\ufffd", error.start + 1
        case "charmap" if first < 0xA0:
            return chr(first), error.start + 1
    return "\ufffd", error.end


codecs.register_error(_ERRORS, _as_browsers)


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
