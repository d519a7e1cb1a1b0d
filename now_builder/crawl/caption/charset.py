"""Decode the bytes of a page like a browser."""

import codecs
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import webencodings
from bs4.dammit import EncodingDetector

_BOMS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xfe\xff", "utf-16be"), (b"\xff\xfe", "utf-16le"))
_HEAD = 1 << 13
"""Number of bytes searched for a declaration; the browser reports later ones."""

_COMMENT = re.compile(rb"<!--.*?(?:-->|\Z)", re.DOTALL)
_CHARSET = re.compile(r"charset\s*+=\s*+[\"']?+\s*+([^\s\"';]++)", re.IGNORECASE)
_NOT_ASCII = re.compile(rb"[\x80-\xff]+")
_HALF_LETTER = re.compile(rb"(?<=[a-z])[\xc3-\xc5](?=[\s\"'<.])")
"""First byte of a truncated Latin letter in UTF-8; in other encodings an upper-case letter, which
does not end a word."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """Decoded text, and the source of its encoding.

    Attributes:
        text: The text; undecodable bytes are U+FFFD.
        charset: WHATWG name in lower case.
        source: ``bom``, ``header``, ``meta`` (declared in the page), ``utf-8`` (undeclared, valid
            except for a few bytes), ``browser`` or ``default``.
    """

    text: str
    charset: str
    source: str


def decode(content: bytes, content_type: str | None, browser: str | None = None) -> Decoded:
    """Decode a page like a browser.

    The encoding is the first of: byte-order mark, charset of the HTTP header, declaration in the
    page (unless the browser used another encoding), UTF-8 (which browsers never guess), the
    encoding that the browser used, windows-1252.

    Source:
        WHATWG HTML, "Determining the character encoding"; WHATWG Encoding for the labels.
    """
    for mark, charset in _BOMS:
        if content.startswith(mark):
            return Decoded(_decode(content[len(mark) :], charset), charset, "bom")
    header = _CHARSET.search(content_type or "")
    used = _encoding_name(browser)
    if header and (name := _encoding_name(header[1])):
        charset, source = name, "header"
    elif (name := _declared(content)) and name == (used or name):
        charset, source = name, "meta"
    elif _is_utf8(content):
        charset = source = "utf-8"
    else:
        charset, source = (used, "browser") if used else ("windows-1252", "default")
    return Decoded(_decode(content, charset), charset, source)


def _encoding_name(label: str | None) -> str | None:
    encoding = webencodings.lookup((label or "").strip())
    return None if encoding is None else str(encoding.name)


def _declared(content: bytes) -> str | None:
    """Return the encoding in a ``<meta>`` or an XML declaration.

    A declaration of UTF-16 means UTF-8: it could not be read otherwise.
    """
    start = _COMMENT.sub(b"", content[:_HEAD])
    charset = _encoding_name(EncodingDetector.find_declared_encoding(start, is_html=True))
    return "utf-8" if charset in {"utf-16le", "utf-16be"} else charset


def misread(texts: Iterable[str], charset: str, browser: str) -> bool:
    """Return whether texts that the browser decoded as ``browser`` differ in ``charset``."""
    if charset == browser or webencodings.lookup(browser) is None:
        return False
    codec = webencodings.lookup(browser).codec_info
    for text in texts:
        correct = _decode(codec.encode(text, "ignore")[0], charset)
        if correct != text and not correct.replace("\ufffd", "").isascii():
            return True
    return False


def replace_surrogates(value: Any) -> Any:
    """Replace lone surrogates in a JSON value by U+FFFD, so that it can be written."""
    if isinstance(value, str):
        if value.isascii():
            return value
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [replace_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {name: replace_surrogates(item) for name, item in value.items()}
    return value


def _decode(content: bytes, charset: str) -> str:
    encoding = webencodings.lookup(charset)
    # Python's GBK lacks characters of such pages; the standard decodes GBK as GB18030.
    codec = codecs.lookup("gb18030") if encoding.name == "gbk" else encoding.codec_info
    errors = "replace" if encoding.name == "replacement" else _ERRORS
    text = str(codec.decode(content, errors)[0])
    return text.translate(_JIS) if encoding.name in {"euc-jp", "iso-2022-jp"} else text


_ERRORS = "now-builder"
_JIS = str.maketrans("〜‖−¢£¬—", "～∥－￠￡￢―")
"""Characters that the standard's table of JIS X 0208 (from Windows) maps unlike Python's."""


def _as_browsers(error: UnicodeError) -> tuple[str, int]:
    """Decode bytes that browsers decode and Python's codecs do not; others become U+FFFD.

    These are the euro sign of Windows in GBK, characters of EUC-JP outside JIS X 0208 (``①``,
    ``㈱``), decoded as in Shift_JIS, and undefined bytes of Windows, decoded as C1 controls.
    """
    if not isinstance(error, UnicodeDecodeError):
        raise error
    pair = error.object[error.start : error.start + 2]
    first = pair[0]
    match error.encoding:
        case "gb18030" if first == 0x80:
            return "€", error.start + 1
        case "gb18030":  # keeps ASCII bytes
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
    """Return whether the bytes are UTF-8, except for a few damaged ones.

    Runs of non-ASCII bytes in other encodings are rarely valid UTF-8. Some of their characters are
    valid by chance: up to two of three in short Thai texts.
    """
    rest = _HALF_LETTER.sub(b"", content)
    runs = [run.decode("utf-8", "replace") for run in _NOT_ASCII.findall(rest)]
    broken = sum("\ufffd" in run for run in runs)
    invalid = sum(run.count("\ufffd") for run in runs)
    valid = sum(map(len, runs)) - invalid
    return valid >= 4 * invalid or (valid >= invalid and len(runs) >= 2 * broken)
