"""Flags of a page by its row, such as ``email`` or ``blank``; a release keeps or drops it."""

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
"""Pages of a site, and their share, from which on a caption is a copy. On 1,153 judged pairs of
real sites 20 % were copies, of which 90 % did not match; of all matching pairs 2.7 % were."""

_CANDIDATES = TypeAdapter(dict[str, list[str]])
_EMAIL = re.compile(
    r"(?<![A-Za-z0-9])(?!git@)[A-Za-z0-9._%+-]{1,64}(?:[@＠]|\s?[(\[]\s?(?:at|AT|@)\s?[)\]]\s?)"
    r"[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.(?!(?:png|jpe?g|gif|svg|webp|js|css)\b)[A-Za-z]{2,24}(?![A-Za-z0-9])"
)
_MONTH_DAY = r"(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])"
_DAY_MONTH = r"(?:0[1-9]|[12]\d|3[01])(?:0[1-9]|1[0-2])"
_CHINESE, _TAIWANESE, _ID_NUMBER = (
    re.compile(rf"(?<![\w.-])(?:{form})(?![\w-])", re.ASCII)
    for form in (
        rf"[1-9]\d{{5}}(?:19|20)\d\d{_MONTH_DAY}\d{{3}}[\dXx]",
        r"[A-Z][12]\d{8}",
        # Korea; Sweden; Denmark, Finland, Latvia; Italy; Brazil; the United States
        (
            rf"\d\d{_MONTH_DAY}-[1-8]\d{{6}}|\d\d{_MONTH_DAY}[-+]\d{{4}}"
            rf"|{_DAY_MONTH}\d\d(?:-\d{{4,5}}|[-+A]\d{{3}}[\dA-Y])"
            r"|[A-Z]{6}\d\d[A-EHLMPRST]\d\d[A-Z]\d{3}[A-Z]|\d{3}\.\d{3}\.\d{3}-\d\d"
            r"|(?!000|666|9)\d{3}-(?!00)\d\d-(?!0000)\d{4}"
        ),
    )
)
_NO_PHONE = re.compile(r"[备備案号/=]$|\d\.$")
"""End of what stands before the number of a registered site, and before digits of other kinds."""
_NO_CHINESE_PHONE = re.compile(r"(?!400|800)[1-9]\d{9}")
"""Ten digits at a stretch that would begin with 0 in China, such as 2147483647."""
_DIGITS = 7
_LONGEST = 10_000
"""Characters of a text in which personal data are looked for."""
_PARTS = re.compile(r"\s*[|｜–—·•_»«:：]\s*|\s+-\s+|-\s|\s-|(?<=\S)[!,.，。]\s+")


def flags_of(row: CaptureRow) -> frozenset[str]:
    """Return the flags of a page by its caption (as crawled, not mended), title, status and ink.

    Of :data:`now_builder.package.settings.FLAGS`, without those that take more than its row.
    """
    caption = row.caption or ""
    found = set(caption_oddities(caption)) | _passed_over(row)
    if row.charset_browser not in {None, row.charset}:
        found.add("garbled_screenshot")
    personal = {kind for kind, _ in personal_data(decode_entities(caption), row.site, row.lang)}
    found |= {"personal_data", *personal - {"id_number"}} if personal else set()
    if is_adult(caption):
        found.add("adult")
    if (row.http_status or 0) >= 400 or is_error(row.title or "", caption):
        found.add("error_page")
    if row.ink_middle is not None and is_blank(row.ink_middle):
        found.add("blank")
    return frozenset(found)


def same_screenshots(rows: Iterable[CaptureRow]) -> frozenset[str]:
    """Return the pages that look the same, byte for byte, as one of another caption on their site.

    So do a site's pages behind one splash screen, consent wall or error; none is known to be right.
    """
    groups: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        if row.status == "ok" and row.sha256 and row.caption:
            groups.setdefault((row.site, row.sha256), {})[row.key] = row.caption.casefold()
    alike = (captions for captions in groups.values() if len(set(captions.values())) > 1)
    return frozenset(key for captions in alike for key in captions)


def copied_captions(rows: Iterable[CaptureRow]) -> frozenset[str]:
    """Return the pages whose caption stands on many pages of their site: slogans above all.

    Many are :data:`COPIES` pages and :data:`COPIED` of those of the site that have a caption.
    """
    sites: Counter[str] = Counter()
    groups: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.status == "ok" and row.caption:
            sites[row.site] += 1
            groups.setdefault((row.site, row.caption.casefold()), []).append(row.key)
    many = (
        keys
        for (site, _), keys in groups.items()
        if len(keys) >= COPIES and len(keys) >= COPIED * sites[site]
    )
    return frozenset(chain.from_iterable(many))


def _passed_over(row: CaptureRow) -> set[str]:
    """Return the flags of texts that only the candidates have, as the caption is another one."""
    candidates: dict[str, list[str]] = {}
    with suppress(ValueError):
        candidates = _CANDIDATES.validate_json(row.candidates or "{}")
    found = set()
    named = candidates.get("name", [])[:1]
    if named and row.caption_source != "script" and row.caption not in named:  # scripts fill it in
        found.add("placeholder")  # nothing else is passed over
    if row.caption_source == "json-ld" and row.caption not in candidates.get(
        "json-ld", [row.caption]
    ):
        found.add("double_escaped")  # and was decoded once
    return found


def personal_data(text: str, site: str, lang: str | None) -> Iterator[tuple[str, str]]:
    """Yield kind and text of each ``email`` address, ``phone`` and ``id_number``.

    A telephone number is valid where the site's top level, else the language, says. An ID number is
    one of a person by its form, date of birth and check digit, or by the words before it.
    """
    text = text[:_LONGEST]
    yield from (("email", match[0]) for match in _EMAIL.finditer(text))
    if sum(map(str.isdigit, text)) < _DIGITS:
        return
    numbers = chain(
        filter(_is_chinese, _CHINESE.finditer(text)),
        filter(_is_taiwanese, _TAIWANESE.finditer(text)),
        _ID_NUMBER.finditer(text),
        _named_number().finditer(text),
    )
    yield from (("id_number", match[0]) for match in numbers)
    top = site.rpartition(".")[2].upper().replace("UK", "GB")
    region = top if top in SUPPORTED_REGIONS else _words()["regions"].get(lang or "")
    text = _EMAIL.sub(" ", text)
    for country, leniency in ((region, Leniency.STRICT_GROUPING), (None, Leniency.VALID)):
        for match in PhoneNumberMatcher(text, country, leniency):  # of no country: those with a +
            before = text[max(0, match.start - 2) : match.start]
            is_number = country == "CN" and _NO_CHINESE_PHONE.fullmatch(match.raw_string)
            if not is_number and not _NO_PHONE.search(before):
                yield "phone", match.raw_string


def _is_chinese(match: re.Match[str]) -> bool:
    """Check the last digit of a number of 18: ISO 7064, MOD 11-2."""
    digits = [10 if sign in "Xx" else int(sign) for sign in match[0]]
    return sum(digit << place for place, digit in enumerate(reversed(digits))) % 11 == 1


def _is_taiwanese(match: re.Match[str]) -> bool:
    """Check the last digit of a letter, which stands for two digits, and nine digits."""
    letter = "ABCDEFGHJKLMNPQRSTUVXYWZIO".index(match[0][0]) + 10
    digits = letter % 10, *map(int, match[0][1:])
    weighted = zip((9, 8, 7, 6, 5, 4, 3, 2, 1, 1), digits, strict=True)
    return (letter // 10 + sum(weight * digit for weight, digit in weighted)) % 10 == 0


@cache
def _named_number() -> re.Pattern[str]:
    words = _any(_words()["id_number"]["before"])
    return re.compile(rf"(?i:{words})[^\w\n]{{0,5}}[A-Za-z]?\d{{5,}}")


def is_adult(caption: str) -> bool:
    """Whether a caption has a word of the list ``adult`` in ``words.toml``."""
    return _adult().search(caption.casefold()) is not None


def is_error(title: str, caption: str) -> bool:
    """Whether a page says that it is none: not found, blocked, under construction, for sale.

    Args:
        title: Taken apart at ``|``, ``-``, ``:`` and the like; one part must be such a phrase.
        caption: Must be such a phrase as a whole.
    """
    phrases = _phrases("error_page")
    parts = [*_PARTS.split(title), title, caption]
    return any(part.casefold().strip(" .!。！") in phrases for part in parts if part)


@cache
def _words() -> dict[str, dict[str, Any]]:
    text = (files("now_builder.package") / "words.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def _phrases(name: str) -> frozenset[str]:
    return frozenset(
        word.casefold().strip(" .!。！") for words in _words()[name].values() for word in words
    )


@cache
def _adult() -> re.Pattern[str]:
    tree = _words()["adult"]
    return re.compile(rf"\b(?:{_any(tree['words'])})\b|{_any(tree['within'])}")


@cache
def consent_words() -> re.Pattern[str]:
    """Return the pattern of the stems of ``consent`` in ``words.toml``, for case-folded text."""
    return re.compile(_any(stem for stems in _words()["consent"].values() for stem in stems))


def _any(words: Iterable[str]) -> str:
    return "|".join(re.escape(word.casefold()) for word in words)
