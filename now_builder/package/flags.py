"""Flag pages by their rows, such as ``email`` or ``blank``; a release keeps or drops them."""

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from importlib.resources import files
from itertools import chain
from typing import Any

from phonenumbers import SUPPORTED_REGIONS, Leniency, PhoneNumberMatcher
from pydantic import TypeAdapter

from now_builder.formats.ink import is_blank
from now_builder.formats.shard import CaptureRow
from now_builder.formats.text import caption_oddities, decode_entities

COPIES, COPIED = 3, 0.1
"""Minimum number and share of a site's pages with a caption that is a copy. Among 1,153 judged
pairs of real sites, 20 % were copies, and 90 % of these did not match; 2.7 % of all matching pairs
were copies."""

_CANDIDATES = TypeAdapter(dict[str, list[str]])
_EMAIL = re.compile(
    r"(?<![A-Za-z0-9])(?!git@)[A-Za-z0-9._%+-]{1,64}(?:[@＠]|\s?[(\[]\s?(?:at|AT|@)\s?[)\]]\s?)"
    r"[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.(?!(?:png|jpe?g|gif|svg|webp|js|css)\b)[A-Za-z]{2,24}(?![A-Za-z0-9])"
)
_NO_PHONE = re.compile(r"[备備案号/=]$|\d\.$")
"""End of the text before a Chinese site registration number, or before digits of other kinds."""
_NO_CHINESE_PHONE = re.compile(r"(?!400|800)[1-9]\d{9}")
"""Ten digits without a break, such as 2147483647; a Chinese phone number would begin with 0."""
_DIGITS = 7
"""Minimum number of digits in a phone or ID number."""
_LONGEST = 10_000
"""Number of characters of a text that are searched for personal data."""
_PARTS = re.compile(r"\s*[|｜–—·•_»«:：]\s*|\s+-\s+|-\s|\s-|(?<=\S)[!,.，。]\s+")


def flags_of(row: CaptureRow) -> frozenset[str]:
    """Return the flags of a page that depend on its row alone.

    They depend on caption (as crawled), title, status and ink, and are a part of
    :data:`now_builder.package.settings.FLAGS`.
    """
    caption = row.caption or ""
    personal = {kind for kind, _ in personal_data(decode_entities(caption), row.site, row.lang)}
    flags = {
        "garbled_screenshot": row.charset_browser not in {None, row.charset},
        "email": "email" in personal,
        "phone": "phone" in personal,
        "personal_data": bool(personal),
        "adult": is_adult(caption),
        "error_page": (row.http_status or 0) >= 400 or is_error(row.title or "", caption),
        "blank": row.ink_middle is not None and is_blank(row.ink_middle),
    }
    flagged = {name for name, is_set in flags.items() if is_set}
    return caption_oddities(caption) | _candidate_flags(row) | flagged


def same_screenshots(rows: Iterable[CaptureRow]) -> frozenset[str]:
    """Return the pages whose screenshot equals that of a page of their site with another caption.

    Such pages may show a splash screen, consent wall or error; any of them may be wrong.
    """
    groups: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        if row.status == "ok" and row.sha256 and row.caption:
            groups.setdefault((row.site, row.sha256), {})[row.key] = row.caption.casefold()
    shared = (captions for captions in groups.values() if len(set(captions.values())) > 1)
    return frozenset(key for captions in shared for key in captions)


def copied_captions(rows: Iterable[CaptureRow]) -> frozenset[str]:
    """Return the pages whose caption, usually a slogan, is on many pages of their site.

    Many are at least :data:`COPIES` pages, and :data:`COPIED` of the site's pages with a caption.
    """
    sites: Counter[str] = Counter()
    groups: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.status == "ok" and row.caption:
            sites[row.site] += 1
            groups.setdefault((row.site, row.caption.casefold()), []).append(row.key)
    return frozenset(
        key
        for (site, _), keys in groups.items()
        if len(keys) >= COPIES and len(keys) >= COPIED * sites[site]
        for key in keys
    )


def _candidate_flags(row: CaptureRow) -> set[str]:
    """Return the flags of candidates that were not used as they are for the caption."""
    candidates: dict[str, list[str]] = {}
    with suppress(ValueError):
        candidates = _CANDIDATES.validate_json(row.candidates or "{}")
    flags = set()
    names = candidates.get("name", [])[:1]
    if names and row.caption_source != "script" and row.caption not in names:
        flags.add("placeholder")  # the crawl skips no other; scripts replace it
    texts = candidates.get("json-ld", [row.caption])
    if row.caption_source == "json-ld" and row.caption not in texts:
        flags.add("double_escaped")  # the crawl has decoded it once
    return flags


def personal_data(text: str, site: str, lang: str | None) -> Iterator[tuple[str, str]]:
    """Yield kind (``email``, ``phone`` or ``id_number``) and text of personal data.

    A phone number must be valid in the country of the site's top level, else of the language. An
    ID number is recognized by its form, date of birth and check digit, or by the words before it.
    """
    text = text[:_LONGEST]
    yield from (("email", match[0]) for match in _EMAIL.finditer(text))
    if sum(map(str.isdigit, text)) < _DIGITS:
        return
    patterns = word_patterns()
    numbers = chain(
        filter(_is_chinese, patterns["china"].finditer(text)),
        filter(_is_taiwanese, patterns["taiwan"].finditer(text)),
        patterns["others"].finditer(text),
        patterns["number"].finditer(text),
    )
    yield from (("id_number", match[0]) for match in numbers)
    top = site.rpartition(".")[2].upper().replace("UK", "GB")
    region = top if top in SUPPORTED_REGIONS else _words()["regions"].get(lang or "")
    text = _EMAIL.sub(" ", text)
    for country, leniency in ((region, Leniency.STRICT_GROUPING), (None, Leniency.VALID)):
        for match in PhoneNumberMatcher(text, country, leniency):  # without country: with a +
            before = text[max(0, match.start - 2) : match.start]
            is_integer = country == "CN" and _NO_CHINESE_PHONE.fullmatch(match.raw_string)
            if not is_integer and not _NO_PHONE.search(before):
                yield "phone", match.raw_string


def _is_chinese(match: re.Match[str]) -> bool:
    """Check the last of 18 digits: ISO 7064, MOD 11-2."""
    digits = [10 if sign in "Xx" else int(sign) for sign in match[0]]
    return sum(digit << place for place, digit in enumerate(reversed(digits))) % 11 == 1


def _is_taiwanese(match: re.Match[str]) -> bool:
    """Check the last digit of a letter, which represents two digits, and nine digits."""
    letter = "ABCDEFGHJKLMNPQRSTUVXYWZIO".index(match[0][0]) + 10
    digits = letter % 10, *map(int, match[0][1:])
    weighted = zip((9, 8, 7, 6, 5, 4, 3, 2, 1, 1), digits, strict=True)
    return (letter // 10 + sum(weight * digit for weight, digit in weighted)) % 10 == 0


def is_adult(caption: str) -> bool:
    """Return whether a caption has a word of the list ``adult`` in ``words.toml``."""
    return word_patterns()["adult"].search(caption.casefold()) is not None


def is_error(title: str, caption: str) -> bool:
    """Return whether a page is an error page: not found, blocked, under construction, for sale.

    The complete caption, or a part of the title between ``|``, ``-``, ``:`` and so on, must be a
    phrase of the list ``error_page`` in ``words.toml``.
    """
    phrases = _error_phrases()
    parts = [*_PARTS.split(title), title, caption]
    return any(part.casefold().strip(" .!。！") in phrases for part in parts if part)


@cache
def _words() -> dict[str, dict[str, Any]]:
    text = (files("now_builder.package") / "words.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def _error_phrases() -> frozenset[str]:
    phrases = chain(*_words()["error_page"].values())
    return frozenset(phrase.casefold().strip(" .!。！") for phrase in phrases)


@cache
def word_patterns() -> dict[str, re.Pattern[str]]:
    """Return patterns of ``words.toml``; ``adult`` and ``consent`` are for case-folded text."""
    tree = _words()
    adult, numbers = tree["adult"], tree["id_number"]
    return {
        "adult": re.compile(rf"\b(?:{_any(adult['words'])})\b|{_any(adult['within'])}"),
        "consent": re.compile(_any(chain(*tree["consent"].values()))),
        "number": re.compile(rf"(?i:{_any(numbers['before'])})[^\w\n]{{0,5}}[A-Za-z]?\d{{5,}}"),
        **{
            country: re.compile(rf"(?<![\w.-])(?:{form})(?![\w-])", re.ASCII)
            for country, form in numbers["forms"].items()
        },
    }


def _any(words: Iterable[str]) -> str:
    return "|".join(re.escape(word.casefold()) for word in words)
