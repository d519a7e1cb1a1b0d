"""Detect the language of a page from its caption and title; a declaration breaks ties."""

import re
import tomllib
from collections import defaultdict
from functools import cache
from importlib.resources import files
from operator import itemgetter

import regex
from py3langid.langid import MODEL_FILE, LanguageIdentifier

_TABLE = files("now_builder.crawl.caption").joinpath("languages.toml").read_text(encoding="utf-8")
_LANGUAGES = {script: str(text).split() for script, text in tomllib.loads(_TABLE).items()}
"""Languages by script, the most common first; kana precedes Han, which Japanese has too."""

_SHARED = (r"\p{Arabic}", r"\p{Cyrillic}", r"\p{Devanagari}")
"""Scripts of many languages, where the detector decides; other scripts have mostly one language."""

_LETTERS = {script: regex.compile(f"[{script}]") for script in _LANGUAGES}
_ALSO_LATIN = frozenset(
    "az ber bs cr crh ha iu kab ku lad ms nan rif ro sh shi sr tk tt tzm uz".split()  # noqa: SIM905
)
_NOT_LATIN = frozenset().union(*_LANGUAGES.values(), {"zxx"}) - _ALSO_LATIN

_SURE = 0.9
_LIKELY, _FEWEST = 0.5, 5
"""Minimum probability and number of letters to decide without a declaration: a name such as "Azul
Zulu" always resembles one of 97 languages."""

UNDECIDED = "und"
_SHARE = 0.25
_SHORT = 24
_RARE = frozenset({"gom", "sa"})
"""Languages that are never detected, only declared: the detector confuses short texts in Hindi and
Nepali with them."""
_VARIETIES = {"ary": "ar", "arz": "ar", "sdh": "ckb", "wuu": "zh", "yue": "zh"}
"""Languages that the detector confuses with another one on short texts, or names otherwise."""

_PRIMARY = re.compile(r"^([a-z]{2,3})(?:[-_]|$)")


@cache
def _identifier() -> LanguageIdentifier:
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def detect_language(text: str, declared: str | None) -> str | None:
    """Return the primary tag (BCP 47) of a short text.

    Considers only languages of the text's script. A script of one language decides. Otherwise the
    detector decides if it is sure and the text is long; else the page's declaration, if it is a
    language tag; else the detector, if its probability is at least 50 %.

    Returns:
        The tag; ``und`` if undecided; ``None`` if there is neither a letter nor a declaration.
    """
    tag = primary_tag(declared)
    letters = sum(map(str.isalpha, text))
    if not letters:
        return tag
    counts = {script: len(pattern.findall(text)) for script, pattern in _LETTERS.items()}
    script = next((name for name, count in counts.items() if count >= _SHARE * letters), None)
    if script is None:  # Latin
        present = [_LANGUAGES[name] for name, count in counts.items() if count]
        tag = None if tag in _NOT_LATIN else tag
        language, probability = _best(text, _NOT_LATIN.difference(*present))
    else:
        languages = _LANGUAGES[script]
        tag = tag if tag in languages else None
        if script not in _SHARED:
            return tag or languages[0]
        others = frozenset(_identifier().nb_classes).difference(languages)
        language, probability = _best(text, others | _RARE)
    if tag and (letters < _SHORT or probability < _SURE):
        return tag
    return language if letters >= _FEWEST and probability >= _LIKELY else UNDECIDED


def _best(text: str, excluded: frozenset[str]) -> tuple[str, float]:
    """Return the most likely language that is not excluded, and its probability among all."""
    shares: dict[str, float] = defaultdict(float)
    for language, probability in _identifier().rank(text):
        if language not in excluded:
            shares[_VARIETIES.get(language, language)] += float(probability)
    return max(shares.items(), key=itemgetter(1))


def primary_tag(declared: str | None) -> str | None:
    """Return the primary tag of a declared language: ``zh`` for ``zh-Hant-TW``."""
    match = _PRIMARY.match((declared or "").strip().lower())
    correct = {"cn": "zh", "jp": "ja", "kr": "ko", "iw": "he"}
    return correct.get(match[1], match[1]) if match else None
