"""The text of a caption: how it is cleaned, what is odd about it, and how that can be mended."""

import html
import re
import unicodedata
from html.entities import html5

_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]")
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|([A-Za-z][A-Za-z0-9]{1,31}));")
_TAG = re.compile(
    r"</?(a|b|big|blockquote|br|center|div|em|font|h[1-6]|hr|i|img|li|ol|p|small|span|strong|sub|"
    r"sup|table|tbody|td|th|tr|u|ul)(?:\s+[\w:-]+(?:\s*=\s*(?:\"[^\"]*\"|'[^']*'|[^\s\"'<>]+))?)*"
    r"\s*/?>",
    re.IGNORECASE,
)
_INLINE = frozenset(
    ["a", "b", "big", "em", "font", "i", "img", "small", "span", "strong", "sub", "sup", "u"]
)
"""Tags that part no words."""

_ZERO_WIDTH = re.compile("[\u00ad\u200b\u2060\ufeff]")
"""Without the joiners U+200C and U+200D, by which Persian, Hindi and emoji are written."""
_BIDI = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069]")

ODDITIES = ("double_escaped", "tags", "zero_width", "bidi", "replacement")
"""What :func:`oddities` may find; all but the last can be mended."""


def clean(text: str) -> str:
    """Return the caption of an attribute value whose entities are decoded.

    C0 and C1 controls dropped, NFC, white space collapsed; nothing else.
    """
    return " ".join(unicodedata.normalize("NFC", _CONTROLS.sub("", text)).split())


def oddities(text: str) -> frozenset[str]:
    """Find what is odd about a caption.

    Returns:
        Names from :data:`ODDITIES`: entities that were escaped twice, HTML tags, zero-width
        characters, bidi controls, and U+FFFD, where something could not be decoded.
    """
    found = {
        "double_escaped": any(_is_entity(match) for match in _ENTITY.finditer(text)),
        "tags": _TAG.search(text) is not None,
        "zero_width": _ZERO_WIDTH.search(text) is not None,
        "bidi": _BIDI.search(text) is not None,
        "replacement": "\ufffd" in text,
    }
    return frozenset(name for name, there in found.items() if there)


def mend(text: str) -> str:
    """Decode entities that are left once more, drop tags, zero-width characters and bidi controls.

    Args:
        text: A caption as :func:`clean` returns it; one without oddities stays as it is.
    """
    text = _ENTITY.sub(
        lambda match: html.unescape(match[0]) if _is_entity(match) else match[0], text
    )
    text = _TAG.sub(lambda match: "" if match[1].lower() in _INLINE else " ", text)
    return clean(_BIDI.sub("", _ZERO_WIDTH.sub("", text)))


def _is_entity(match: re.Match[str]) -> bool:
    return match[1] is None or f"{match[1]};" in html5
