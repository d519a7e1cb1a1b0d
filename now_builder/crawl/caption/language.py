"""Detect the language of a page from its caption and title; a declaration breaks ties."""

import re
from collections import defaultdict
from functools import cache
from operator import itemgetter

import regex
from py3langid.langid import MODEL_FILE, LanguageIdentifier

_LANGUAGES = {
    script: languages.split()
    for script, languages in {
        r"\p{Hiragana}\p{Katakana}": "ja",
        r"\p{Hangul}": "ko",
        r"\p{Thai}": "th",
        r"\p{Greek}": "el grc",
        r"\p{Hebrew}": "he yi lad",
        r"\p{Georgian}": "ka xmf lzz",
        r"\p{Armenian}": "hy hyw",
        r"\p{Bengali}": "bn as bpy mni",
        r"\p{Gurmukhi}": "pa",
        r"\p{Gujarati}": "gu",
        r"\p{Oriya}": "or",
        r"\p{Tamil}": "ta",
        r"\p{Telugu}": "te",
        r"\p{Kannada}": "kn tcy",
        r"\p{Malayalam}": "ml",
        r"\p{Sinhala}": "si",
        r"\p{Khmer}": "km",
        r"\p{Lao}": "lo",
        r"\p{Myanmar}": "my shn mnw kar ksw",
        r"\p{Tibetan}": "bo dz",
        r"\p{Ethiopic}": "am ti tig gez",
        r"\p{Thaana}": "dv",
        r"\p{Syriac}": "syr aii arc",
        r"\p{Mongolian}": "mn mvf",
        r"\p{Cherokee}": "chr",
        r"\p{Tifinagh}": "zgh ber kab rif shi tzm",
        r"\p{Canadian_Aboriginal}": "iu cr oj",
        r"\p{Nko}": "nqo",
        r"\p{Ol_Chiki}": "sat",
        r"\p{Han}": "zh ja yue wuu lzh nan hak gan",
        r"\p{Arabic}": "ar fa ur ps sd ug ckb ku ks arz ary apc azb bal bqi glk ha kk ky lrc ms "
        "mzn pa pnb prs sdh skr tg tt uz",
        r"\p{Cyrillic}": "ru uk be bg mk sr mn kk ky tg tt ba cv ce os ab abq ady alt av az bs bua "
        "crh cu dar inh kbd kjh koi krc ku kum kv lbe lez mdf mhr mrj myv nog ro rue sah sh tk tyv "
        "udm uz xal",
        r"\p{Devanagari}": "hi mr ne sa awa bh bho brx doi dty gom hne kok ks mag mai new raj sat "
        "sd",
    }.items()
}
"""Scripts, and the languages written in them, the commonest first; kana, which Chinese lacks, comes
before Han."""

_SHARED = (r"\p{Arabic}", r"\p{Cyrillic}", r"\p{Devanagari}")
"""Scripts of so many languages that a detector decides; each other one is (nearly) of one alone."""

_LETTERS = {script: regex.compile(f"[{script}]") for script in _LANGUAGES}
_ALSO_LATIN = frozenset(
    "az ber bs cr crh ha iu kab ku lad ms nan rif ro sh shi sr tk tt tzm uz".split()  # noqa: SIM905
)
_NOT_LATIN = frozenset().union(*_LANGUAGES.values(), {"zxx"}) - _ALSO_LATIN

_SURE = 0.9
_LIKELY, _FEWEST = 0.5, 5
"""Probability and letters below which a text without a declaration is undecided: a name such as
"Azul Zulu" always resembles one of 97 languages."""

UNDECIDED = "und"
_SHARE = 0.25
_SHORT = 24
_RARE = frozenset({"gom", "sa"})
"""Never detected, only declared: the detector takes short texts in Hindi and Nepali for them."""
_VARIETIES = {"ary": "ar", "arz": "ar", "sdh": "ckb", "wuu": "zh", "yue": "zh"}
"""Languages that a detector cannot tell from another on short texts, or knows by its name."""

_PRIMARY = re.compile(r"^([a-z]{2,3})(?:[-_]|$)")


@cache
def _identifier() -> LanguageIdentifier:
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def detect_language(text: str, declared: str | None) -> str | None:
    """Return the primary tag (BCP 47) of a short text.

    Only languages of the text's script are considered. A script of one language decides; otherwise
    the detector, where it is sure and the text is long; else the page's declaration, if it is a
    language tag; else the detector, if it is more likely right than not.

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
        found, probability = _best(text, _NOT_LATIN.difference(*present))
    else:
        languages = _LANGUAGES[script]
        tag = tag if tag in languages else None
        if script not in _SHARED:
            return tag or languages[0]
        known = frozenset(_identifier().nb_classes)
        found, probability = _best(text, known.difference(languages) | _RARE)
    if tag and (letters < _SHORT or probability < _SURE):
        return tag
    return found if letters >= _FEWEST and probability >= _LIKELY else UNDECIDED


def _best(text: str, without: frozenset[str]) -> tuple[str, float]:
    """Return the likeliest language but for some, and its probability among all."""
    shares: dict[str, float] = defaultdict(float)
    for found, probability in _identifier().rank(text):
        if found not in without:
            shares[_VARIETIES.get(found, found)] += float(probability)
    return max(shares.items(), key=itemgetter(1))


def primary_tag(declared: str | None) -> str | None:
    """Return the primary tag of a declared language: ``zh-Hant-TW`` is ``zh``."""
    found = _PRIMARY.match((declared or "").strip().lower())
    meant = {"cn": "zh", "jp": "ja", "kr": "ko", "iw": "he"}
    return meant.get(found[1], found[1]) if found else None
