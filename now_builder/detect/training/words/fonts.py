"""The machine's fonts by the scripts that they can draw."""

import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from now_builder.detect.training.words.lexicon import Lexicon
from now_builder.errors import ConfigError

Font = tuple[str, int]
"""Path of a font file, and which of its fonts."""

FOLDERS = ("/usr/share/fonts", "/usr/local/share/fonts", "~/.local/share/fonts", "~/.fonts")
_KINDS = {".ttf", ".otf", ".ttc"}
_NO_TEXT = re.compile(r"symbol|emoji|music|math|lastresort|dingbat|icon|awesome", re.IGNORECASE)
_MOST_IN_FILE = 4
_SHARE = 0.995
"""Share of a language's letters, by how often they occur, that a font must have."""


def fonts_by_language(lexicon: Lexicon, folders: Iterable[Path]) -> Mapping[str, list[Font]]:
    """Find the fonts that can draw each language of a lexicon.

    Args:
        lexicon: Words by language.
        folders: Folders that are searched besides those of the system.

    Raises:
        ConfigError: If fontTools is missing, or no font can draw English.
    """
    try:
        from fontTools.ttLib import TTFont, TTLibError
    except ModuleNotFoundError:
        raise ConfigError(
            "fontTools is missing: pip install 'noise-of-web[words]' brings it"
        ) from None
    letters = {language: _letters(words) for language, (words, _) in lexicon.items()}
    found: dict[str, list[Font]] = {language: [] for language in lexicon}
    for path in _files(folders):
        for number in range(_MOST_IN_FILE if path.suffix.lower() == ".ttc" else 1):
            try:
                with TTFont(path, fontNumber=number, lazy=True) as font:
                    drawn = set(font.getBestCmap() or ())
            except (TTLibError, OSError, KeyError, AssertionError):
                break  # no such font in the file, or none that can be read
            for language, counted in letters.items():
                known = sum(count for letter, count in counted.items() if ord(letter) in drawn)
                if known >= _SHARE * counted.total():
                    found[language].append((str(path), number))
    if not found.get("en"):
        raise ConfigError(f"no fonts in {', '.join(FOLDERS)}: install some, or name a folder")
    without = sorted(language for language, fonts in found.items() if not fonts)
    if without:
        sys.stderr.write(f"train-words: no font for {' '.join(without)}\n")
    return {language: fonts for language, fonts in found.items() if fonts}


def _letters(words: Iterable[str]) -> Counter[str]:
    """Count the letters of a language; Latin ones only where they are most of its letters."""
    counted = Counter(letter for word in words for letter in word)
    foreign = [letter for letter in counted if letter.isascii()]
    if 2 * sum(counted[letter] for letter in foreign) < counted.total():
        for letter in foreign:
            del counted[letter]
    return counted


def _files(folders: Iterable[Path]) -> list[Path]:
    """Return font files, one of each name."""
    found: dict[str, Path] = {}
    for folder in [*(Path(name).expanduser() for name in FOLDERS), *folders]:
        for path in sorted(folder.rglob("*")):
            if path.suffix.lower() in _KINDS and not _NO_TEXT.search(path.name):
                found.setdefault(path.name, path)
    return list(found.values())
