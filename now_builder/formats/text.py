"""The text of a caption: cleaning, oddities, mending."""

import html
import re
import unicodedata
from html.entities import html5

import regex

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

_NOTHING_SEEN = regex.compile(r"[\p{Default_Ignorable_Code_Point}\s\u2800\ufff9-\ufffc]*")
_WORDS = regex.compile(r"[\p{L}\p{N}\p{So}--\ufffd]", regex.V1)
_START = 2000
"""Characters of a caption in which placeholders are looked for."""

_LEFT_OVER = re.compile(
    r"""
    \{\{ (?=[^{}]{0,80}\w) [^{}]*+ (?:\}\}|\Z)            # {{ page.description }}, or cut off
    | \{% -?\s*\w [^%]*+ (?:%\}|\Z) | <% [=:\#@!-]?\s*\w | <\?(?:php\b|=)
    | (?:\$|(?<!\w)\#)\{ \s*[A-Za-z_] [^{}]*+ (?:\}|\Z) | %\(\w+\)[sd]\b
    | %%[\w-]+%% | (?<![\d%]) (?-i:%[a-z_]{3,}%) (?!\w) | \#(?:post|site|separator|taxonomy)_\w
    | (?<![\w\])]) \[/?[a-z]+_[\w-]*+ (?:\s[^\]]*+)? (?:\]|\Z)      # the shortcode [vc_row]
    | (?<![\w\])]) \[[a-z][\w-]*+ \s+[\w-]+= [^\]]*+ (?:\]|\Z) | \[/[a-z][\w-]*\]
    | (?-i:\[[a-z]+(?:-[a-z]+)*(?::[a-z_-]+)+\]) | \[\[[^\[\]]+\]\]   # [node:summary], [[+x]]
    | __MSG_\w | \[object\ \w+\] | lorem\ ipsum\ dolor\ sit
    | [\\%]u[0-9a-fA-F]{4} | \\[xX][0-9a-fA-F]{2} | \\u\{[0-9a-fA-F]+\} | (?:u0[0-9a-f]{3}){2}
    | (?<![\w/&;=?.-]) (?:%[89a-f][0-9a-f]){2}
    | adsbygoogle\s*(?:=|\|\||\.push|") | googletag\.\w | \b(?:gtag|fbq)\( | \b_(?:gaq|hmt)\.push
    | dataLayer\s*(?:=|\.push) | </(?:script|style)> | <script\s+[\w-]+ | <!--\s*/?wp: | /\*!
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""Templates that were not filled in, escapes that were not undone, and scripts."""

_ALL_OF_IT = re.compile(
    r"""
    (?:[\s"'.,:;|/()–—-]*+ (?: \b(?:undefined|null|none|nil|true|false|n/a|nan)\b
        | [{<\[] \$?[\w.:-]+ [}>\]] | %(?:\d\$)?[sd]\b | [%@]\w+[%@] | \$[a-z_]\w*\$? ))+ \W*
    | (?-i:Array) | <!--.* | [\w.:-]*(?:description|excerpt)[\w.:-]*
    | (?:(?:this|is|your|my|the|a|site|website|page|meta|seo|default|enter|insert)\ )* description
        (?:\ (?:goes\ )?here)? \W*
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
"""Values that are none, a placeholder and nothing else, the name of a text."""

_CODE = re.compile(
    r"""
    (?:[.\#][\w-]|:root) [^{}]*+ \{ \s*[\w-]+\s*: [^{}]+ (?:[;}]|\Z)
    | @(?:media|font-face)\b [^{}]*+ \{
    | (?:\$|jQuery)[.(] .* [)}];
    | [(!+;]*+ (?:function\s*\w*\( .* | (?:(?:var|let|const)\ )? [a-z0-9_$.]+
        (?:\([^()]*\)\s* | \ ?=\ ?(?:["'\[{(\d]|[\w$.]+\s*\|\|) .*) ) ;
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
"""Beginnings of style sheets and scripts."""

ODDITIES = ("double_escaped", "tags", "zero_width", "bidi", "replacement", "placeholder")
"""Results of :func:`oddities`; all but the last two can be mended."""


def clean(text: str) -> str:
    """Return the caption of an attribute value whose entities are decoded.

    C0 and C1 controls dropped, NFC, white space collapsed; nothing else. A text that cannot be
    seen (zero-width characters, blanks of Braille, fillers of Hangul) is empty.
    """
    text = " ".join(unicodedata.normalize("NFC", _CONTROLS.sub("", text)).split())
    return "" if _NOTHING_SEEN.fullmatch(text) else text


def is_placeholder(text: str) -> bool:
    """Whether a caption is a placeholder for a description, or has no word at all."""
    text = text[:_START]
    if not text or _WORDS.search(text) is None:
        return bool(text)
    return bool(_LEFT_OVER.search(text) or _ALL_OF_IT.fullmatch(text) or _CODE.match(text))


def oddities(text: str) -> frozenset[str]:
    """Return the oddities of a caption.

    Returns:
        Names from :data:`ODDITIES`: entities that were escaped twice, HTML tags, zero-width
        characters, bidi controls, U+FFFD, where something could not be decoded, and placeholders.
    """
    found = {
        "double_escaped": any(_is_entity(match) for match in _ENTITY.finditer(text)),
        "tags": _TAG.search(text) is not None,
        "zero_width": _ZERO_WIDTH.search(text) is not None,
        "bidi": _BIDI.search(text) is not None,
        "replacement": "\ufffd" in text,
        "placeholder": is_placeholder(text),
    }
    return frozenset(name for name, there in found.items() if there)


def mend(text: str) -> str:
    """Decode remaining entities once more; drop tags, zero-width characters and bidi controls."""
    text = decode_entities(text)
    text = _TAG.sub(lambda match: "" if match[1].lower() in _INLINE else " ", text)
    return clean(_BIDI.sub("", _ZERO_WIDTH.sub("", text)))


def decode_entities(text: str) -> str:
    """Decode entities once, but not what only resembles one, as in ``?a=1&copy=2``."""
    return _ENTITY.sub(
        lambda match: html.unescape(match[0]) if _is_entity(match) else match[0], text
    )


def _is_entity(match: re.Match[str]) -> bool:
    return match[1] is None or f"{match[1]};" in html5
