"""Flags of a page by its row, such as ``email`` or ``blank``; a release keeps or drops it."""

import re
import tomllib
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib.resources import files

from phonenumbers import SUPPORTED_REGIONS, PhoneNumberMatcher
from pydantic import TypeAdapter

from now_builder.formats.ink import is_blank
from now_builder.formats.shard import CaptureRow
from now_builder.formats.text import oddities

_CANDIDATES = TypeAdapter(dict[str, list[str]])
_EMAIL = re.compile(
    r"[A-Za-z0-9._%+-]{1,64}[@＠][A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,24}\b"
)
_DIGITS = 7
_LONGEST = 10_000
"""Characters of a caption in which telephone numbers are looked for."""
_PARTS = re.compile(r"\s*[|｜–—·•_»«:：]\s*|\s+-\s+|-\s|\s-|(?<=\S)[!,.，。]\s+")
_REGIONS = {
    "zh": "CN", "ja": "JP", "ko": "KR", "en": "US", "ru": "RU", "de": "DE", "fr": "FR", "es": "ES",
    "it": "IT", "pt": "BR", "nl": "NL", "pl": "PL", "tr": "TR", "vi": "VN", "th": "TH", "id": "ID",
    "uk": "UA", "cs": "CZ", "sv": "SE", "hu": "HU", "el": "GR", "he": "IL", "fa": "IR", "ar": "SA",
}  # fmt: skip
"""Country of a telephone number without a country code, by language of the page."""


def flags_of(row: CaptureRow) -> frozenset[str]:
    """Return the flags of a page by its caption (as crawled, not mended), title, status and ink.

    Of :data:`now_builder.package.settings.FLAGS`, without those that take more than its row.
    """
    caption = row.caption or ""
    found = set(oddities(caption)) | _passed_over(row)
    if row.charset_browser not in {None, row.charset}:
        found.add("garbled_screenshot")
    if _EMAIL.search(caption):
        found.add("email")
    if has_phone(caption, row.site, row.lang):
        found.add("phone")
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


def has_phone(text: str, site: str, lang: str | None) -> bool:
    """Whether a text contains a valid telephone number."""
    text = text[:_LONGEST]
    if sum(map(str.isdigit, text)) < _DIGITS:
        return False
    top = site.rpartition(".")[2].upper().replace("UK", "GB")
    region = top if top in SUPPORTED_REGIONS else _REGIONS.get(lang or "")
    return any(True for _ in PhoneNumberMatcher(text, region))


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
def _words() -> dict[str, dict[str, list[str]]]:
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
