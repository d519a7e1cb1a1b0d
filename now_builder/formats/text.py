"""Clean caption texts and find their oddities."""

import html
import re
import tomllib
import unicodedata
from functools import cache
from html.entities import html5
from importlib.resources import files
from itertools import chain

import regex

_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]")
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|([A-Za-z][A-Za-z0-9]{1,31}));")
_TAG = re.compile(
    r"</?(a|b|big|blockquote|br|center|div|em|font|h[1-6]|hr|i|img|li|ol|p|small|span|strong|sub|"
    r"sup|table|tbody|td|th|tr|u|ul)(?:\s+[\w:-]+(?:\s*=\s*(?:\"[^\"]*\"|'[^']*'|[^\s\"'<>]+))?)*"
    r"\s*/?>",
    re.IGNORECASE,
)
_ZERO_WIDTH = re.compile("[\u00ad\u200b\u2060\ufeff]")
"""Not the joiners U+200C and U+200D, which Persian, Hindi and emoji need."""
_BIDI = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069]")

_INVISIBLE = regex.compile(r"[\p{Default_Ignorable_Code_Point}\s\u2800\ufff9-\ufffc]*")
_WORDS = regex.compile(r"[\p{L}\p{N}\p{So}--\ufffd]", regex.V1)
_START = 2000
"""Number of characters at the start of a caption that are searched for placeholders."""

_DESCRIPTION_WORDS = 3
"""Minimum number of other words that make a text with an unfilled template a description."""

_WORD = regex.compile(
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]{2}"
    r"|[\p{L}\p{N}][\p{L}\p{M}\p{N}'’._-]*"
)

_QUOTED = regex.compile(
    r"""/\*.*?(?:\*/|\Z)|<!--.*?(?:-->|\Z)|</?[a-z][^<>]*+(?:>|\Z)"""
    r"""|(?<=[=(,:\[{+?|&!]\s*)(?:"[^"]*+"?|'[^']*+'?)""",
    regex.DOTALL | regex.IGNORECASE,
)
_HEAD = r"(?:[^{};.!?\u0080-\uffff]|[.!?](?!\s))*+"
_BLOCK = re.compile(rf"{_HEAD}\{{[^{{}}]*\}}|[\w$.]*\([^()]*\)|[\w$.]*\[[^\[\]]*\]")
_CUT_OFF = re.compile(rf"(?:{_HEAD}\{{|[\w$.]*[(\[]).*", re.DOTALL)
_NESTED = 9
"""Comments, tags and strings; blocks with their names; unclosed blocks; maximum nesting depth."""

_SENTENCE = regex.compile(
    r"(?:[\p{L}\p{N}][\p{L}\p{M}\p{N}'’-]*+[,.:;!?…]?\s+(?:[–—-]\s+)?){3}[\p{L}\p{N}]"
    r"|[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]{4}"
)

ODDITIES = ("double_escaped", "tags", "zero_width", "bidi", "replacement", "placeholder")
"""Names that :func:`caption_oddities` returns."""


def clean(text: str) -> str:
    """Return the caption of an attribute value with decoded entities.

    C0 and C1 controls are removed, white space is collapsed, the result is NFC. A text of invisible
    characters (zero-width characters, Braille blanks, Hangul fillers) becomes empty.
    """
    text = " ".join(unicodedata.normalize("NFC", _CONTROLS.sub("", text)).split())
    return "" if _INVISIBLE.fullmatch(text) else text


def is_placeholder(text: str) -> bool:
    """Return whether a caption is only a placeholder for a description, or has no word.

    A caption with a template or script is a description if it has enough other words.
    """
    text = text[:_START]
    if not text or _WORDS.search(text) is None:
        return bool(text)
    patterns = _patterns()
    if patterns["empty"].fullmatch(text) or patterns["name"].fullmatch(text):
        return True
    if patterns["script"].search(text) or patterns["code"].match(text):
        return _SENTENCE.search(_without_code(text)) is None
    rest = patterns["template"].sub(" ", text)
    return rest != text and len(_WORD.findall(rest)) < _DESCRIPTION_WORDS


@cache
def _patterns() -> dict[str, re.Pattern[str]]:
    """Return the expressions of ``placeholders.toml``, and one of names of a description."""
    text = (files("now_builder.formats") / "placeholders.toml").read_text(encoding="utf-8")
    tree = tomllib.loads(text)
    expressions = tree["expressions"]
    defaults = "|".join(chain(*tree["defaults"].values())).replace(" ", r"\s")
    names, around, east_names, east_around = map("|".join, tree["description"].values())
    alone = [
        *tree["alone"]["any"],
        rf"(?:(?:{around})\b\W*)*+(?:{names})(?:\W+(?:{around})\b)*+",
        rf"(?:{east_around}|\W)*+(?:{east_names})(?:{east_around}|\W)*+",
    ]
    flags = re.VERBOSE | re.IGNORECASE
    return {
        "template": re.compile(rf"{expressions['template']}|\b(?:{defaults})", flags),
        "name": re.compile(rf"\W*(?:{'|'.join(alone)})\W*", re.IGNORECASE),
        **{n: re.compile(expressions[n], flags | re.DOTALL) for n in ("empty", "script", "code")},
    }


def _without_code(text: str) -> str:
    text = _QUOTED.sub(" ", text)
    for _ in range(_NESTED):
        text, count = _BLOCK.subn(" ", text)
        if not count:
            break
    return _CUT_OFF.sub(" ", text)


def caption_oddities(text: str) -> frozenset[str]:
    """Return the oddities of a caption, as names from :data:`ODDITIES`.

    They are double-escaped entities, HTML tags, zero-width characters, bidi controls, U+FFFD (for
    bytes that could not be decoded), and placeholders.
    """
    oddities = {
        "double_escaped": any(_is_entity(match) for match in _ENTITY.finditer(text)),
        "tags": _TAG.search(text) is not None,
        "zero_width": _ZERO_WIDTH.search(text) is not None,
        "bidi": _BIDI.search(text) is not None,
        "replacement": "\ufffd" in text,
        "placeholder": is_placeholder(text),
    }
    return frozenset(name for name, is_present in oddities.items() if is_present)


def decode_entities(text: str) -> str:
    """Decode entities once, except lookalikes such as ``?a=1&copy=2``."""
    return _ENTITY.sub(
        lambda match: html.unescape(match[0]) if _is_entity(match) else match[0], text
    )


def _is_entity(match: re.Match[str]) -> bool:
    return match[1] is None or f"{match[1]};" in html5
