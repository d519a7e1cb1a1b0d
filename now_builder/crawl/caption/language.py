"""Detect the language of a page from its caption and title; a declaration breaks ties."""

import re
from functools import cache

from py3langid.langid import MODEL_FILE, LanguageIdentifier

_SCRIPTS = (
    ("ja", re.compile(r"[\u3041-\u3096\u30a1-\u30fa]")),
    ("ko", re.compile(r"[\uac00-\ud7a3]")),
    ("th", re.compile(r"[\u0e01-\u0e5b]")),
    ("el", re.compile(r"[\u0370-\u03ff]")),
    ("he", re.compile(r"[\u05d0-\u05ea]")),
    ("ka", re.compile(r"[\u10d0-\u10ff]")),
    ("hy", re.compile(r"[\u0531-\u0587]")),
    ("ta", re.compile(r"[\u0b80-\u0bff]")),
    ("te", re.compile(r"[\u0c00-\u0c7f]")),
    ("km", re.compile(r"[\u1780-\u17ff]")),
    ("lo", re.compile(r"[\u0e81-\u0edf]")),
    ("zh", re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff]")),
)
"""Scripts that one language (nearly) owns; kana, which Chinese lacks, comes first."""

_OTHER_SCRIPTS = frozenset(
    """am ar as be bg bn dv el fa gu he hi hy ja ka kk km kn ko ky lo mk ml mn mr my ne or pa ps ru
    sd si sr ta te tg th ug uk ur yi yue wuu zh""".split()  # noqa: SIM905 - a list of 44 lines
)
"""Languages that are not (mainly) written in Latin letters."""

_LATIN = re.compile(r"[A-Za-z\u00c0-\u024f\u1e00-\u1eff]")
_SURE = 0.9
_LIKELY, _FEWEST = 0.5, 5
"""Probability and letters below which a text that nothing else speaks for is undecided: of 97
languages a name such as "Azul Zulu" always resembles one."""

UNDECIDED = "und"
_SHARE = 0.25
_SHORT = 24
_VARIETIES = {"wuu": "zh", "yue": "zh"}
"""Written in the same characters: a detector cannot separate them on so little text."""

_PRIMARY = re.compile(r"^([a-z]{2,3})(?:[-_]|$)")


@cache
def _identifier() -> LanguageIdentifier:
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def detect_language(text: str, declared: str | None) -> str | None:
    """Return the primary tag (BCP 47) of a short text.

    A script that one language owns decides. Otherwise the detector decides where it is sure and the
    text is long; else what the page declares, where that is a language tag; else the detector, if
    it is more likely right than not.

    Returns:
        The tag, ``und`` if the language is undecided, or ``None`` if there is neither a letter nor
        a declaration.
    """
    tag = primary_tag(declared)
    letters = [letter for letter in text if letter.isalpha()]
    if not letters:
        return tag
    for language, script in _SCRIPTS:
        if len(script.findall(text)) >= _SHARE * len(letters):
            return tag if language == "zh" and tag in ("ja", "yue", "wuu") else language
    if tag in _OTHER_SCRIPTS and len(_LATIN.findall(text)) > len(letters) / 2:
        tag = None  # a page in English on a site that says it is in Chinese
    found, probability = _identifier().classify(text)
    if tag and (len(letters) < _SHORT or probability < _SURE):
        return tag
    if len(letters) < _FEWEST or probability < _LIKELY:
        return UNDECIDED
    return _VARIETIES.get(found, str(found))


def primary_tag(declared: str | None) -> str | None:
    """Return the primary tag of a declared language: ``zh-Hant-TW`` is ``zh``."""
    found = _PRIMARY.match((declared or "").strip().lower())
    return {"cn": "zh", "jp": "ja", "kr": "ko"}.get(found[1], found[1]) if found else None
