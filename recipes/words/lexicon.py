"""Words of many languages from permissively licensed packages, and fonts to draw them."""

import ast
import gettext
import re
import sys
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from now_builder.errors import ConfigError
from now_builder.formats.word_vectors import is_unspaced, runs

SOURCES = ("babel", "django", "faker", "jieba", "sphinx")
"""CLDR by Babel (BSD, Unicode licence), translations of Django and Sphinx (BSD), Faker's names and
words (MIT), Jieba's dictionary (MIT)."""
FOLDERS = ("/usr/share/fonts", "/usr/local/share/fonts", "~/.local/share/fonts", "~/.fonts")

_MIN_WORDS = 300
"""Minimum number of words of a language."""
_MAX_WORDS = 60_000
_DOCUMENTATION = 60
"""Minimum length of strings in Faker's source that count as documentation."""
_COMMON = 3000
"""Maximum count of a word of Jieba's dictionary."""
_MARKUP = re.compile(r"%\([a-z_]+\)[sd]|%[sd]|\{[^}]*\}|<[^>]*>|&\w+;")
_FONT_FILES = {".ttf", ".otf", ".ttc"}
_NO_TEXT = re.compile(r"symbol|emoji|music|math|lastresort|dingbat|icon|awesome", re.IGNORECASE)
_FONTS_PER_FILE = 4
_COVERAGE = 0.995
"""Minimum share of a language's letters, weighted by frequency, that a font must have."""

Lexicon = Mapping[str, tuple[list[str], list[float]]]
"""Words of each language and their weights."""
Font = tuple[str, int]
"""Path of a font file, and index of the font in it."""


def read_lexicon() -> Lexicon:
    """Collect the words of the installed packages by language.

    Raises:
        ConfigError: If a package is missing.
    """
    missing = [name for name in SOURCES if find_spec(name) is None]
    if missing:
        advice = "pip install -r recipes/words/requirements.txt"
        raise ConfigError(f"missing {', '.join(missing)}; {advice}")
    counted: dict[str, Counter[str]] = defaultdict(Counter)
    for read in (_babel, _translations, _faker):
        for locale, text in read():
            language = locale.replace("-", "_").partition("_")[0]
            counted[language].update(_words(text, language))
    for line in (_folder("jieba") / "dict.txt").read_text(encoding="utf-8").splitlines():
        word, count, _ = line.split()
        if int(count) >= 20:
            counted["zh"][word] += min(int(count), _COMMON) // 20
    return {
        language: _weighted(counts)
        for language, counts in sorted(counted.items())
        if len(counts) >= _MIN_WORDS
    }


def fonts_by_language(lexicon: Lexicon, folders: Iterable[Path]) -> Mapping[str, list[Font]]:
    """Find the fonts that can draw each language, in the system's folders and ``folders``.

    Raises:
        ConfigError: If no font can draw English.
    """
    from fontTools.ttLib import TTFont, TTLibError

    letters = {language: _letters(words) for language, (words, _) in lexicon.items()}
    fonts: dict[str, list[Font]] = {language: [] for language in lexicon}
    for path in _font_files(folders):
        for number in range(_FONTS_PER_FILE if path.suffix.lower() == ".ttc" else 1):
            try:
                with TTFont(path, fontNumber=number, lazy=True) as font:
                    drawn = set(font.getBestCmap() or ())
            except (TTLibError, OSError, KeyError, AssertionError):
                break  # no further readable font
            for language, counted in letters.items():
                covered = sum(count for letter, count in counted.items() if ord(letter) in drawn)
                if covered >= _COVERAGE * counted.total():
                    fonts[language].append((str(path), number))
    if not fonts.get("en"):
        raise ConfigError(f"no fonts in {', '.join(FOLDERS)}: install some, or pass --fonts FOLDER")
    if without := sorted(language for language in fonts if not fonts[language]):
        sys.stderr.write(f"train-words: no font for {' '.join(without)}\n")
    return {language: listed for language, listed in fonts.items() if listed}


def _weighted(counts: Counter[str]) -> tuple[list[str], list[float]]:
    """Return the most frequent words, weighted by the roots of their counts."""
    words, numbers = zip(*sorted(counts.most_common(_MAX_WORDS)), strict=True)
    return list(words), [number**0.5 for number in numbers]


def _words(text: str, language: str) -> Iterator[str]:
    """Yield words as shown, with vowel signs and the punctuation within them."""
    shown = unicodedata.normalize("NFC", _MARKUP.sub("", text))
    if language in {"ja", "zh"}:
        yield from (run for run in runs(shown) if is_unspaced(run[0]))
        return
    for part in shown.split():
        # a letter, a sign on one, or a digit
        inner = [at for at, sign in enumerate(part) if unicodedata.category(sign)[0] in "LMN"]
        word = part[inner[0] : inner[-1] + 1] if inner else ""
        if any(map(str.isalnum, word)) and not any(map(is_unspaced, word)):
            yield word


def _folder(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ConfigError(f"{package} is not installed as files")
    return Path(spec.origin).parent


def _babel() -> Iterator[tuple[str, str]]:
    """Yield the names of countries, languages, currencies, scripts, months and days."""
    from babel import Locale, localedata

    for name in localedata.locale_identifiers():
        if "_" in name and not name.startswith("zh_Han"):
            continue
        locale = Locale.parse(name)
        for names in (
            locale.territories, locale.languages, locale.currencies, locale.scripts,
            locale.months["format"]["wide"], locale.days["format"]["wide"],
        ):  # fmt: skip
            yield from ((name, str(text)) for text in names.values())


def _translations() -> Iterator[tuple[str, str]]:
    """Yield the messages of Django and Sphinx in every language."""
    for package in ("django", "sphinx"):
        for path in sorted(_folder(package).rglob("locale/*/LC_MESSAGES/*.mo")):
            with path.open("rb") as file:
                entries = vars(gettext.GNUTranslations(file))["_catalog"]
            for message, translated in entries.items():
                text = message if isinstance(message, str) else message[0]
                if text:  # the empty message is the file's header
                    yield path.parts[-3], translated
                    yield "en", text.rpartition("\x04")[2]


def _faker() -> Iterator[tuple[str, str]]:
    """Yield the strings of Faker's providers by locale, read without running them."""
    for path in sorted((_folder("faker") / "providers").rglob("*.py")):
        locale = path.parts[-2]
        if "_" not in locale and locale != "la":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and len(text) < _DOCUMENTATION:
                yield locale, text


def _letters(words: Iterable[str]) -> Counter[str]:
    """Count the letters of a language; Latin ones only if they are most of its letters."""
    counted = Counter(letter for word in words for letter in word)
    latin = [letter for letter in counted if letter.isascii()]
    if 2 * sum(counted[letter] for letter in latin) < counted.total():
        for letter in latin:
            del counted[letter]
    return counted


def _font_files(folders: Iterable[Path]) -> list[Path]:
    """Return the font files, one of each name."""
    files: dict[str, Path] = {}
    for folder in [*(Path(name).expanduser() for name in FOLDERS), *folders]:
        for path in sorted(folder.rglob("*")):
            if path.suffix.lower() in _FONT_FILES and not _NO_TEXT.search(path.name):
                files.setdefault(path.name, path)
    return list(files.values())
