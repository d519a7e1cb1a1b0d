"""Words of many languages, from packages whose licences let anybody learn from them."""

import ast
import gettext
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from now_builder.errors import ConfigError
from now_builder.formats.word_vectors import is_unspaced, runs

SOURCES = {
    "babel": "Unicode CLDR by Babel (BSD, Unicode licence)",
    "django": "Django's translations (BSD)",
    "sphinx": "Sphinx's translations (BSD)",
    "faker": "Faker's names and words (MIT)",
    "jieba": "Jieba's dictionary (MIT)",
}
"""Packages that words are taken from, with their licences."""
_FEWEST = 300
"""Words below which a language is left out: it would repeat itself."""
_MOST = 60_000
_DOCUMENTED = 60
"""Length from which a string of Faker is taken for documentation."""
_COMMON = 3000
"""Occurrences above which a word of Jieba's dictionary is no more frequent."""
_MARKUP = re.compile(r"%\([a-z_]+\)[sd]|%[sd]|\{[^}]*\}|<[^>]*>|&\w+;")

Lexicon = Mapping[str, tuple[list[str], list[float]]]
"""Words of each language, and how often each is drawn, in any unit."""


def read_lexicon() -> Lexicon:
    """Collect the words of the installed packages by language.

    Raises:
        ConfigError: If a package is missing.
    """
    missing = [name for name in SOURCES if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"words are taken from {', '.join(missing)}, which the extra `words` installs: "
            "pip install 'noise-of-web[words]'"
        )
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for read in (_babel, _translations, _faker):
        for locale, text in read():
            language = locale.replace("-", "_").partition("_")[0]
            found[language].update(_words(text, language))
    for word, count in _jieba():
        found["zh"][word] += count
    return {
        language: _weighed(counts)
        for language, counts in sorted(found.items())
        if len(counts) >= _FEWEST
    }


def describe_sources() -> dict[str, str]:
    """Return the version of each package, for the JSON beside the weights."""
    found = {}
    for name in SOURCES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _weighed(counts: Counter[str]) -> tuple[list[str], list[float]]:
    """Return the most frequent words and the roots of their counts, so that rare ones are drawn."""
    words, numbers = zip(*sorted(counts.most_common(_MOST)), strict=True)
    return list(words), [number**0.5 for number in numbers]


def _words(text: str, language: str) -> Iterator[str]:
    unspaced = language in {"ja", "zh"}
    for run in runs(_MARKUP.sub("", text)):
        if is_unspaced(run[0]) == unspaced:
            yield run


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
        for names in (locale.territories, locale.languages, locale.currencies, locale.scripts):
            yield from ((name, str(text)) for text in names.values())
        for names in (locale.months["format"]["wide"], locale.days["format"]["wide"]):
            yield from ((name, str(text)) for text in names.values())


def _translations() -> Iterator[tuple[str, str]]:
    """Yield the messages that Django and Sphinx say, in every language that they speak."""
    for package in ("django", "sphinx"):
        for path in sorted(_folder(package).rglob("locale/*/LC_MESSAGES/*.mo")):
            with path.open("rb") as file:
                catalog = gettext.GNUTranslations(file)
            for message, translated in _messages(catalog):
                yield path.parts[-3], translated
                yield "en", message


def _messages(catalog: gettext.GNUTranslations) -> Iterator[tuple[str, str]]:
    entries: dict[str | tuple[str, int], str] = vars(catalog)["_catalog"]
    for message, translated in entries.items():
        text = message if isinstance(message, str) else message[0]
        if text:  # the empty one holds the file's own header
            yield text.rpartition("\x04")[2], translated


def _faker() -> Iterator[tuple[str, str]]:
    """Yield the strings of Faker's providers by locale, read without running them."""
    for path in sorted((_folder("faker") / "providers").rglob("*.py")):
        locale = path.parts[-2]
        if "_" not in locale and locale != "la":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and len(text) < _DOCUMENTED:
                yield locale, text


def _jieba() -> Iterator[tuple[str, int]]:
    """Yield the words of Jieba's dictionary that are not rare, with their counts."""
    for line in _dictionary().splitlines():
        word, count, _ = line.split()
        if int(count) >= 20:
            yield word, min(int(count), _COMMON) // 20


@lru_cache(maxsize=1)
def _dictionary() -> str:
    return (_folder("jieba") / "dict.txt").read_text(encoding="utf-8")
