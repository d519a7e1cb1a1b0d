"""Bytes to text, in the order in which browsers decide on an encoding."""

import codecs
import re
from dataclasses import dataclass
from typing import Any

import webencodings
from charset_normalizer import from_bytes

_BOMS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xfe\xff", "utf-16be"), (b"\xff\xfe", "utf-16le"))
_PRESCAN = 1024
_CANDIDATES = [
    "gb18030", "big5", "cp932", "euc_jp", "cp949", "cp1251", "koi8_r", "cp1252",
    "cp1253", "cp1255", "cp1256", "cp874",
]  # fmt: skip
"""Python's names of the encodings that pages use without saying so."""

_LABELS = {
    "gb18030": "gbk", "cp932": "shift_jis", "cp949": "euc-kr", "cp1251": "windows-1251",
    "cp1252": "windows-1252", "cp1253": "windows-1253", "cp1255": "windows-1255",
    "cp1256": "windows-1256", "cp874": "windows-874",
}  # fmt: skip
_SAMPLE = 1 << 16
_REPLACED_BY_UTF8 = {"utf-16be", "utf-16le"}

_COMMENT = re.compile(rb"<!--.*?(?:-->|$)", re.DOTALL)
_META = re.compile(rb"<meta[\s/](?:[^>\"']|\"[^\"]*\"|'[^']*')*>?", re.IGNORECASE)
_ATTRIBUTE = re.compile(
    rb"([^\s=/>\"']+)(?:\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s>\"']*)))?", re.DOTALL
)
_CHARSET = re.compile(rb"charset\s*=\s*[\"']?\s*([^\s\"';]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Decoded:
    """Text, and how its encoding was found.

    Attributes:
        text: Undecodable bytes are U+FFFD.
        charset: WHATWG name, lower case.
        source: ``bom``, ``header``, ``meta``, ``utf-8`` (valid, undeclared), ``detected`` or
            ``default``.
    """

    text: str
    charset: str
    source: str


def decode(content: bytes, content_type: str | None) -> Decoded:
    """Decode a page as browsers do.

    The order: byte-order mark, charset of the HTTP header, ``<meta>`` in the first 1,024 bytes,
    ``<meta>`` further on, valid UTF-8, detection, windows-1252.

    Args:
        content: As served, content encodings such as gzip undone.
        content_type: The HTTP header, or ``None``.

    Source:
        WHATWG HTML, "Determining the character encoding"; WHATWG Encoding for the labels.
    """
    for mark, charset in _BOMS:
        if content.startswith(mark):
            return Decoded(_decode(content[len(mark) :], charset), charset, "bom")
    declared = _header_charset(content_type)
    if declared:
        return Decoded(_decode(content, declared), declared, "header")
    declared = _meta_charset(content[:_PRESCAN]) or _meta_charset(content[_PRESCAN - 256 :])
    if declared:
        return Decoded(_decode(content, declared), declared, "meta")
    if _is_utf8(content):
        return Decoded(_decode(content, "utf-8"), "utf-8", "utf-8")
    detected = _detect(content)
    if detected:
        return Decoded(_decode(content, detected), detected, "detected")
    return Decoded(_decode(content, "windows-1252"), "windows-1252", "default")


def whole_characters(value: Any) -> Any:
    """Give a JSON value whose texts can be written: half a surrogate pair becomes U+FFFD.

    Args:
        value: Of strings, numbers, lists and objects; scripts may put half a pair anywhere.
    """
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
    return str(codec.decode(content, "replace")[0])


def _header_charset(content_type: str | None) -> str | None:
    found = _CHARSET.search((content_type or "").encode("latin-1", "replace"))
    return _known(found[1]) if found else None


def _known(label: bytes) -> str | None:
    encoding = webencodings.lookup(label.decode("latin-1").strip())
    return None if encoding is None else str(encoding.name)


def _meta_charset(head: bytes) -> str | None:
    """Find the encoding that a ``<meta>`` declares in plain bytes."""
    for tag in _META.findall(_COMMENT.sub(b"", head)):
        attributes: dict[bytes, bytes] = {}
        for name, *values in _ATTRIBUTE.findall(tag[5:]):
            attributes.setdefault(name.lower(), b"".join(values))
        label = attributes.get(b"charset")
        if label is None and attributes.get(b"http-equiv", b"").strip().lower() == b"content-type":
            found = _CHARSET.search(attributes.get(b"content", b""))
            label = found[1] if found else None
        charset = _known(label) if label else None
        if charset:
            # A page that could be read so far to find this cannot be UTF-16.
            return "utf-8" if charset in _REPLACED_BY_UTF8 else charset
    return None


def _is_utf8(content: bytes) -> bool:
    """Tell whether all of it is UTF-8, but for a last character that was cut off."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(content, final=False)
    except UnicodeDecodeError:
        return False
    return True


def _detect(content: bytes) -> str | None:
    """Guess an undeclared encoding from the bytes that are not ASCII, with their surroundings."""
    sample = _informative(content)
    best = from_bytes(sample, cp_isolation=_CANDIDATES).best()
    if best is None:
        return None
    return _known(_LABELS.get(best.encoding, best.encoding.replace("_", "-")).encode())


def _informative(content: bytes) -> bytes:
    """Leave out long runs of ASCII, in which scripts and styles bury the text."""
    if len(content) <= _SAMPLE:
        return content
    lines = [line for line in content.splitlines() if not line.isascii()]
    return b"\n".join(lines)[:_SAMPLE]
