"""The words of a language: texts of sites, templates of texts, and words about topics."""

import tomllib
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

_PART = " | "
CHARACTER_SCRIPTS = frozenset({"zh", "ja"})
"""Languages written without spaces; the length of a text is counted in characters."""


@dataclass(frozen=True, slots=True)
class TopicWords:
    """Words about a topic: noun phrases, phrases that follow "how to", whole sentences."""

    name: str
    things: tuple[str, ...]
    acts: tuple[str, ...]
    facts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Words:
    """A language: templates by their use (``titles`` …), texts of every site, words by topic."""

    lang: str
    text: dict[str, tuple[str, ...]]
    site: dict[str, str]
    topics: dict[str, TopicWords]

    def several(self, key: str) -> list[str]:
        """Return the alternatives of a site's text."""
        return self.site[key].split(_PART)


@lru_cache
def read_words(lang: str) -> Words:
    """Read a language that comes with the package; ``zh-Hant`` is derived from ``zh``."""
    folder = files("now_builder.simweb") / "words"
    source = (folder / f"{'zh' if lang == 'zh-Hant' else lang}.toml").read_text(encoding="utf-8")
    if lang == "zh-Hant":
        source = _in_traditional_characters(source)
    tree = tomllib.loads(source)
    return Words(
        lang=lang,
        text={key: tuple(value) for key, value in tree["text"].items() if isinstance(value, list)},
        site=tree["site"],
        topics={key: _topic(value) for key, value in tree["topics"].items()},
    )


def _topic(tree: dict[str, Any]) -> TopicWords:
    lists = (tuple(tree[key].split(_PART)) for key in ("things", "acts", "facts"))
    return TopicWords(tree["name"], *lists)


def _in_traditional_characters(text: str) -> str:
    path = files("now_builder.simweb") / "words" / "traditional.toml"
    tree = tomllib.loads(path.read_text(encoding="utf-8"))
    for simplified, traditional in tree["phrases"].items():
        text = text.replace(simplified, traditional)
    return text.translate(str.maketrans(tree["simplified"], tree["traditional"]))
