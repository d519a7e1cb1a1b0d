"""Sketches of texts by their runs of letters, and vectors of single letters.

A sketch is a hashed count of the runs of one to four letters of a text. The detector stores one of
the letters that it read on a page, and a method computes one of a caption, so that both can be
compared. They need no vocabulary and no language, so unseen words have a sketch too. The detector's
word reader is trained to return vectors of letters.
"""

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
from jaxtyping import Float

FORMAT = "now-words/2"
"""Name of the sketches in feature files; change it with any number of a sketch."""
WIDTH = 256
"""Numbers of a letter's vector, and of a row of a sketch."""
ROWS = 36
"""Rows of a sketch, one for each region of a page."""
_LONGEST = 4
"""Maximum letters of a run."""

_LETTER, _PAIR, _TRIPLE = 0.3, 0.5, 1.0
"""Weights of a letter, of its two pairs and of its triple, in scripts that separate words."""
_UNSPACED_PAIR = 0.6
"""Weight of the pairs of a Chinese or Japanese character; the character has weight 1."""

_UNSPACED = r"\u3005\u3040-\u30fa\u30fc-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff"
"""Characters of Chinese and Japanese, which write no space between words."""
_RUNS = re.compile(rf"[{_UNSPACED}]+|[^\W_{_UNSPACED}]+")
_IS_UNSPACED = re.compile(f"[{_UNSPACED}]")
_REPEATED = re.compile(r"(.)\1+", re.DOTALL)

Unit = tuple[str, str, str]
"""Previous letter, letter and next letter: ``<`` and ``>`` at the ends of a word, empty at those of
a run of Chinese or Japanese."""


def is_unspaced(character: str) -> bool:
    """Return whether a character is one of Chinese or Japanese."""
    return _IS_UNSPACED.match(character) is not None


def runs(text: str) -> list[str]:
    """Split a text into runs of letters and digits; Chinese and Japanese form runs of their own."""
    return _RUNS.findall(unicodedata.normalize("NFC", text))


def spans(text: str) -> Iterator[tuple[int, Unit]]:
    """Yield the place and the unit of each letter and digit of a text in normal form C.

    Units are in lower case.
    """
    for run in _RUNS.finditer(text):
        start, stop = run.span()
        first, last = ("", "") if is_unspaced(run[0][0]) else ("<", ">")
        for place in range(start, stop):
            before = text[place - 1].casefold() if place > start else first
            after = text[place + 1].casefold() if place + 1 < stop else last
            yield place, (before, text[place].casefold(), after)


@lru_cache(maxsize=1 << 17)
def unit_vector(unit: Unit) -> Float[np.ndarray, " 256"]:
    """Return the unit vector of a letter among its neighbours.

    It is the normalised, weighted sum of pseudo-random unit vectors of the letter, of its two pairs
    and, in scripts that separate words, of its triple.

    Source:
        Character n-grams as in fastText (Bojanowski et al., TACL 2017), hashed (Weinberger et al.,
        ICML 2009).
    """
    before, letter, after = unit
    if is_unspaced(letter):
        pairs = [before + letter] * bool(before) + [letter + after] * bool(after)
        total = _gram(letter) + sum(_UNSPACED_PAIR * _gram(pair) for pair in pairs)
    else:
        total = (
            _LETTER * _gram(letter)
            + _PAIR * (_gram(before + letter) + _gram(letter + after))
            + _TRIPLE * _gram(before + letter + after)
        )
    scaled: np.ndarray = total / np.linalg.norm(total)
    return scaled


def letter_vector(letter: str) -> Float[np.ndarray, " 256"]:
    """Return the unit vector of a letter without its neighbours, a part of all its units."""
    return _gram(letter)


@lru_cache(maxsize=1 << 17)
def _gram(gram: str) -> Float[np.ndarray, " 256"]:
    digest = hashlib.blake2b(gram.encode(), digest_size=WIDTH // 8).digest()
    signs = np.unpackbits(np.frombuffer(digest, dtype=np.uint8)).astype(np.float32)
    return (2 * signs - 1) / np.float32(WIDTH) ** 0.5


def count_grams(text: str) -> Counter[str]:
    """Count the runs of one to four letters and digits of a text.

    Case, spaces and punctuation are ignored, and repeated letters count once: the reader sees a
    wide letter several times.
    """
    folded = "".join(filter(str.isalnum, unicodedata.normalize("NFKC", text).casefold()))
    plain = _REPEATED.sub(r"\1", folded)
    return Counter(
        plain[start : start + length]
        for length in range(1, _LONGEST + 1)
        for start in range(len(plain) - length + 1)
    )


def text_sketch(text: str) -> Float[np.ndarray, " 9216"]:
    """Return the sketch of a text: signed logarithms of hashed counts; zeros without letters.

    Source:
        Feature hashing with signs: Weinberger et al., ICML 2009.
    """
    total = np.zeros(ROWS * WIDTH, dtype=np.float32)
    for gram, count in count_grams(text).items():
        place, sign = _place(gram)
        total[place] += sign * count
    sketch: np.ndarray = np.copysign(np.log1p(np.abs(total)), total)
    return sketch


@lru_cache(maxsize=1 << 19)
def _place(gram: str) -> tuple[int, int]:
    """Return the place of a run in a sketch, and the sign that its count has there."""
    digest = int.from_bytes(hashlib.blake2b(gram.encode(), digest_size=8).digest(), "little")
    return digest % (ROWS * WIDTH), 1 - 2 * (digest >> 63)


def text_of_tokens(tokens: Sequence[str], tokenizer: str) -> str:
    """Join the tokens of a caption into a text with spaces between its words.

    Chinese and Japanese tokens are joined without a space. ``bert`` continues a word by
    ``##``; ``bpe`` keeps spaces in its tokens and writes rare characters as bytes, such as
    ``<0xE4>``; the tokens of any other tokenizer are words.
    """
    if tokenizer == "bpe":
        return _join_bytes(tokens)
    text = ""
    for token in tokens:
        if tokenizer == "bert" and token.startswith("##"):
            text += token[2:]
        elif text and token and is_unspaced(text[-1]) and is_unspaced(token[0]):
            text += token
        else:
            text += f" {token}"
    return text


_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def _join_bytes(tokens: Sequence[str]) -> str:
    joined = bytearray()
    for token in tokens:
        byte = _BYTE.fullmatch(token)
        joined += bytes([int(byte[1], 16)]) if byte else token.encode()
    return joined.decode(errors="replace")


_COLUMNS = re.compile(rf"{re.escape(FORMAT)} ([0-9]{{1,4}}):([0-9]{{1,4}})")


def read_columns(attributes: Mapping[str, str]) -> slice | None:
    """Return the columns of a feature file's regions that contain sketches, or None."""
    match = _COLUMNS.fullmatch(str(attributes.get("words", "")))
    if match is None:
        return None
    columns = slice(int(match[1]), int(match[2]))
    return columns if columns.stop - columns.start == WIDTH else None


def columns_attribute(columns: slice) -> str:
    """Return the value of the attribute ``words`` that :func:`read_columns` reads."""
    return f"{FORMAT} {columns.start}:{columns.stop}"
