"""Vectors of text by its letters, for the detector's word reader and for captions.

Both sides of a retrieval use them: the detector learns to say, of the pixels of a letter, the
vector of that letter among its neighbours; a method computes the same of a caption's tokens. Sums
of them stand for words and texts. No vocabulary and no language is built in, so a word that nobody
has seen before has its vector too.
"""

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
from jaxtyping import Float

FORMAT = "now-words/1"
"""Name of these vectors in feature files; other vectors get another."""
WIDTH = 256
"""Numbers of a vector: the bits of a digest."""

_LETTER, _PAIR, _TRIPLE = 0.3, 0.5, 1.0
"""Weights of a letter, of each pair and of the triple that it is in, where words are set apart."""
_UNSPACED_PAIR = 0.6
"""Weight of each pair that a character of Chinese or Japanese is in; its own weight is 1."""

_UNSPACED = r"\u3005\u3040-\u30fa\u30fc-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff"
"""Characters of Chinese and Japanese, which set no space between words."""
_RUNS = re.compile(rf"[{_UNSPACED}]+|[^\W_{_UNSPACED}]+")
_IS_UNSPACED = re.compile(f"[{_UNSPACED}]")

Unit = tuple[str, str, str]
"""A letter between its neighbours: ``<`` and ``>`` stand for the ends of a word, and nothing for
those of a run of Chinese or Japanese."""


def is_unspaced(character: str) -> bool:
    """Return whether a character is one of Chinese or Japanese."""
    return _IS_UNSPACED.match(character) is not None


def runs(text: str) -> list[str]:
    """Cut a text into runs of letters and digits, Chinese and Japanese apart from all others."""
    return _RUNS.findall(unicodedata.normalize("NFC", text))


def spans(text: str) -> Iterator[tuple[int, Unit]]:
    """Yield the place of each letter and digit of a text in normal form C, and its unit.

    Letters count without their case.
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

    It sums a pseudo-random unit vector for the letter, for the two pairs that it is in and, where
    words are set apart, for the triple.

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
    """Return the unit vector of a letter by itself, which the vectors of its units contain."""
    return _gram(letter)


@lru_cache(maxsize=1 << 17)
def _gram(gram: str) -> Float[np.ndarray, " 256"]:
    digest = hashlib.blake2b(gram.encode(), digest_size=WIDTH // 8).digest()
    signs = np.unpackbits(np.frombuffer(digest, dtype=np.uint8)).astype(np.float32)
    return (2 * signs - 1) / np.float32(WIDTH) ** 0.5


def count_units(text: str) -> Counter[Unit]:
    """Count the units of a text."""
    return Counter(unit for _, unit in spans(unicodedata.normalize("NFC", text)))


_ALONE = 0.6
"""Weight of each letter by itself: a reader that errs in its neighbours still reads it."""


def text_vector(text: str) -> Float[np.ndarray, " 256"]:
    """Return the unit vector of a text: the sum of its letters', each also by itself.

    A text without letters has a vector of zeros.
    """
    total = np.zeros(WIDTH, dtype=np.float32)
    for unit, count in count_units(text).items():
        total += count * (unit_vector(unit) + _ALONE * letter_vector(unit[1]))
    scaled: np.ndarray = total / max(np.linalg.norm(total), np.float32(1e-12))
    return scaled


def text_of_tokens(tokens: Sequence[str], tokenizer: str) -> str:
    """Join the tokens of a caption into a text whose words are set apart as they were.

    Tokens of Chinese and Japanese follow each other without a space. ``bert`` continues a word by
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
    """Return which columns of a feature file's regions hold words in these vectors, if any do."""
    found = _COLUMNS.fullmatch(str(attributes.get("words", "")))
    if found is None:
        return None
    columns = slice(int(found[1]), int(found[2]))
    return columns if columns.stop - columns.start == WIDTH else None


def columns_attribute(columns: slice) -> str:
    """Return the value of the attribute ``words`` that :func:`read_columns` reads."""
    return f"{FORMAT} {columns.start}:{columns.stop}"
