"""The text of a caption: cleaning, oddities."""

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
"""Without the joiners U+200C and U+200D, by which Persian, Hindi and emoji are written."""
_BIDI = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069]")

_NOTHING_SEEN = regex.compile(r"[\p{Default_Ignorable_Code_Point}\s\u2800\ufff9-\ufffc]*")
_WORDS = regex.compile(r"[\p{L}\p{N}\p{So}--\ufffd]", regex.V1)
_START = 2000
"""Characters of a caption in which placeholders are looked for."""

_LEFT_OVER = r"""
    \{\{ (?=[^{}]{0,80}\w) (?: [^{}]*+\}\} | -?\s*[\w.$-]++(?:\s*\|\s*[\w.$-]++)* )
    | \{% -?\s*\w (?: [^%]*+%\} | [\w.-]*+(?:\s+[\w.-]++)? )
    | <% [=:\#@!-]?\s*+ (?: \w[^%]{0,200}%> | \w[\w.]*+ )
    | <\?(?:php\b|=) (?: [^?<>]{0,200}\?> | \s*(?:echo|print)?\s*[$\w>()'"-]*;? )
    | (?:\$|(?<!\w)\#)\{ \s*[A-Za-z_] (?: [^{}]*+\} | [\w.]*+ ) | %\(\w+\)[sd]\b
    | %%[\w-]+%% | (?<![\d%]) (?-i:%[a-z_]{3,}%) (?!\w) | \#(?:post|site|separator|taxonomy)_\w+
    | (?<![\w)]) \[/?[a-z]+_[\w-]*+ (?:\s[^\]]*+)? (?:\]|\Z)      # the shortcode [vc_row]
    | (?<![\w)]) \[[a-z][\w-]*+ \s+[\w-]+= [^\]]*+ (?:\]|\Z) | \[/[a-z][\w-]*\]
    | (?-i:\[[a-z]+(?:-[a-z]+)*(?::[a-z_-]+)+\])                    # [node:summary]
    | (?-i:\[\[ (?: [+*$!%~\#][^\[\]]+ | \s*[a-z_][\w.]*\s* ) \]\])
    | __MSG_\w+ | \[object\ \w+\] | <!--\s*/?wp:[^>]*+>
    | [\\%]u[0-9a-fA-F]{4} | \\[xX][0-9a-fA-F]{2} | \\u\{[0-9a-fA-F]+\} | (?:u0[0-9a-f]{3}){2,}
    | (?<![\w/&;=?.-]) (?:%[89a-f][0-9a-f]){2,} | <[a-z][\w-]*\s[^<>]*=\Z
    | lorem\ ipsum\ dolor\ sit (?: [\s,.;:!?]++ (?!(?:and|das|der|des|ein|el|for|für|is|ist|la|los
        |of|para|per|pour|text|that|the|this|to|und|with)\b) [a-z]++\b )*+
"""
"""Templates that were not filled in, escapes that were not undone, and filler text."""

_FEW = 3
"""Number of words of its own from which a text is a description in spite of what is left over."""

_WORD = regex.compile(
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]{2}"
    r"|[\p{L}\p{N}][\p{L}\p{M}\p{N}'’._-]*"
)

_ALL_OF_IT = re.compile(
    r"""
    (?:[\s"'.,:;|/()–—-]*+ (?: \b(?:undefined|null|none|nil|true|false|n/a|nan)\b
        | [{<\[] \$?[\w.:-]+ [}>\]] | %(?:\d\$)?[sd]\b | [%@]\w+[%@] | \$[a-z_]\w*\$? ))+ \W*
    | (?-i:Array) | <!--.* | [\w.:-]*(?:description|excerpt)[\w.:-]*
    | (?-i:TODO|FIXME|TBD|TBA) \s*[:：—-].{0,60}
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
"""Values that are none, a placeholder and nothing else, the name of a text."""

_SCRIPT = re.compile(
    r"""
    adsbygoogle\s*(?:=|\|\||\.push|") | googletag\.\w | \b(?:gtag|fbq)\( | \b_(?:gaq|hmt)\.push
    | dataLayer\s*(?:=|\.push) | </(?:script|style)> | <script\s+[\w-]+ | /\*!
    """,
    re.VERBOSE | re.IGNORECASE,
)
_CODE = re.compile(
    r"""
    (?:/\*.*?\*/\s*)? (?:[.\#][\w-]|:root|(?:body|html|h[1-6]|p|div|img|table)\b) [^{}]*+
        \{ \s*[\w-]+\s*: [^{}]+ (?:[;}]|\Z)
    | @(?:media|font-face)\b [^{}]*+ \{
    | (?:\$|jQuery)[.(] .* [)}];
    | [(!+;]*+ (?:function\s*\w*\( .* | (?:(?:var|let|const)\ )? [a-z0-9_$.]+
        (?:\([^()]*\)\s* | \ ?=\ ?(?:["'\[{(\d]|[\w$.]+\s*\|\|) .*) ) ;
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
"""Signs of a script anywhere, and beginnings of style sheets and scripts."""

_QUOTED = regex.compile(
    r"""/\*.*?(?:\*/|\Z)|<!--.*?(?:-->|\Z)|</?[a-z][^<>]*+(?:>|\Z)"""
    r"""|(?<=[=(,:\[{+?|&!]\s*)(?:"[^"]*+"?|'[^']*+'?)""",
    regex.DOTALL | regex.IGNORECASE,
)
_HEAD = r"(?:[^{};.!?\u0080-\uffff]|[.!?](?!\s))*+"
_BLOCK = re.compile(rf"{_HEAD}\{{[^{{}}]*\}}|[\w$.]*\([^()]*\)|[\w$.]*\[[^\[\]]*\]")
_CUT_OFF = re.compile(rf"(?:{_HEAD}\{{|[\w$.]*[(\[]).*", re.DOTALL)
_NESTED = 9
"""Comments, tags and strings; blocks with what they are called; how deep those are read."""

_SENTENCE = regex.compile(
    r"(?:[\p{L}\p{N}][\p{L}\p{M}\p{N}'’-]*+[,.:;!?…]?\s+(?:[–—-]\s+)?){3}[\p{L}\p{N}]"
    r"|[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]{4}"
)

ODDITIES = ("double_escaped", "tags", "zero_width", "bidi", "replacement", "placeholder")
"""Results of :func:`caption_oddities`."""


def clean(text: str) -> str:
    """Return the caption of an attribute value whose entities are decoded.

    C0 and C1 controls dropped, NFC, white space collapsed; nothing else. A text that cannot be
    seen (zero-width characters, blanks of Braille, fillers of Hangul) is empty.
    """
    text = " ".join(unicodedata.normalize("NFC", _CONTROLS.sub("", text)).split())
    return "" if _NOTHING_SEEN.fullmatch(text) else text


def is_placeholder(text: str) -> bool:
    """Whether a caption is nothing but a placeholder for a description, or has no word at all.

    One that mentions a template or follows a script is a description if it has words of its own.
    """
    text = text[:_START]
    if not text or _WORDS.search(text) is None:
        return bool(text)
    left_over, alone = _expressions()
    if _ALL_OF_IT.fullmatch(text) or alone.fullmatch(text):
        return True
    if _SCRIPT.search(text) or _CODE.match(text):
        return _SENTENCE.search(_without_code(text)) is None
    rest = left_over.sub(" ", text)
    return rest != text and len(_WORD.findall(rest)) < _FEW


@cache
def _expressions() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return what is left over beside words, and texts that only name a description or a task."""
    text = (files("now_builder.formats") / "placeholders.toml").read_text(encoding="utf-8")
    tree = tomllib.loads(text)
    defaults = "|".join(chain(*tree["defaults"].values())).replace(" ", r"\s")
    names, around, east_names, east_around = map("|".join, tree["description"].values())
    alone = [
        *tree["alone"]["any"],
        rf"(?:(?:{around})\b\W*)*+(?:{names})(?:\W+(?:{around})\b)*+",
        rf"(?:{east_around}|\W)*+(?:{east_names})(?:{east_around}|\W)*+",
    ]
    return (
        re.compile(rf"{_LEFT_OVER}|\b(?:{defaults})", re.VERBOSE | re.IGNORECASE),
        re.compile(rf"\W*(?:{'|'.join(alone)})\W*", re.IGNORECASE),
    )


def _without_code(text: str) -> str:
    text = _QUOTED.sub(" ", text)
    for _ in range(_NESTED):
        text, count = _BLOCK.subn(" ", text)
        if not count:
            break
    return _CUT_OFF.sub(" ", text)


def caption_oddities(text: str) -> frozenset[str]:
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


def decode_entities(text: str) -> str:
    """Decode entities once, but not what only resembles one, as in ``?a=1&copy=2``."""
    return _ENTITY.sub(
        lambda match: html.unescape(match[0]) if _is_entity(match) else match[0], text
    )


def _is_entity(match: re.Match[str]) -> bool:
    return match[1] is None or f"{match[1]};" in html5
