"""What text of a stranger may hold: one line, visible, without characters that mislead."""

import unicodedata

import regex

BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")

_REFUSED = frozenset({"Cc", "Cs", "Co", "Cn"})
_JOINERS = "\u200c\u200d"
# U+2800 is a symbol by its category, and blank.
_VISIBLE = regex.compile(
    r"[[\p{L}\p{N}\p{P}\p{S}]--[\p{Default_Ignorable_Code_Point}\u2800]]", regex.V1
)
_HIDDEN = regex.compile(
    rf"[[\p{{Cf}}\p{{Default_Ignorable_Code_Point}}]--[\p{{M}}{_JOINERS}]]", regex.V1
)
_STACK = regex.compile(r"\p{M}{4,}")
_GRAPHEME = regex.compile(r"\X")


def plain_text(text: str) -> str:
    """Return text as one line in Unicode NFC with single spaces.

    Raises:
        ValueError: If it holds control, bidi, invisible or unassigned characters, a lone surrogate,
            or four combining marks in a row.
    """
    text = " ".join(unicodedata.normalize("NFC", text).split())
    for character in text:
        if character in BIDI or unicodedata.category(character) in _REFUSED:
            raise ValueError(f"text without control characters such as U+{ord(character):04X}")
    if hidden := _HIDDEN.search(text):
        raise ValueError(f"text without invisible characters such as U+{ord(hidden[0]):04X}")
    if _STACK.search(text):
        raise ValueError("three combining marks in a row at most")
    return text


def visible_text(text: str) -> str:
    """Return the text if it has a character that can be seen once normalised (NFKC).

    Raises:
        ValueError: If it has none: it is empty, or of spaces, joiners and combining marks.
    """
    if not _VISIBLE.search(unicodedata.normalize("NFKC", text)):
        raise ValueError("at least one visible character")
    return text


def graphemes(text: str) -> int:
    """Return the number of characters as readers see them: extended grapheme clusters."""
    return len(_GRAPHEME.findall(text))
