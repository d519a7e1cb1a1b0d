"""The words of a language: texts of sites, templates of texts, and words of topics."""

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
    """What is said about a topic.

    Attributes:
        name: What the topic is called inside a sentence.
        things: Noun phrases in the nominative.
        acts: What one does; stands after "how to".
        facts: Whole sentences.
    """

    name: str
    things: tuple[str, ...]
    acts: tuple[str, ...]
    facts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Words:
    """A language.

    Attributes:
        lang: Its code.
        text: Templates, by where they stand (``descriptions``, ``titles`` …).
        separator: Stands between sentences.
        site: What every site has, topic or not: navigation, buttons, slogans.
        topics: words of each topic, by name of the drawing.
    """

    lang: str
    text: dict[str, tuple[str, ...]]
    separator: str
    site: dict[str, str]
    topics: dict[str, TopicWords]

    def several(self, key: str) -> list[str]:
        """Return the alternatives of a site's text."""
        return self.site[key].split(_PART)


@lru_cache
def read_words(lang: str) -> Words:
    """Read a language that comes with the package; ``zh-Hant`` is derived from ``zh``."""
    if lang == "zh-Hant":
        return _in_traditional_characters(read_words("zh"))
    folder = files("now_builder.simweb") / "words"
    tree = tomllib.loads((folder / f"{lang}.toml").read_text(encoding="utf-8"))
    text = {key: tuple(value) for key, value in tree["text"].items() if isinstance(value, list)}
    return Words(
        lang=lang,
        text=text,
        separator=tree["text"]["separator"],
        site=tree["site"],
        topics={key: _topic(value) for key, value in tree["topics"].items()},
    )


def _topic(tree: dict[str, Any]) -> TopicWords:
    return TopicWords(
        name=tree["name"],
        things=tuple(tree["things"].split(_PART)),
        acts=tuple(tree["acts"].split(_PART)),
        facts=tuple(tree["facts"].split(_PART)),
    )


def _in_traditional_characters(words: Words) -> Words:
    def turn(text: str) -> str:
        for simplified, traditional in phrases.items():
            text = text.replace(simplified, traditional)
        return text.translate(characters)

    folder = files("now_builder.simweb") / "words"
    tree = tomllib.loads((folder / "traditional.toml").read_text(encoding="utf-8"))
    phrases: dict[str, str] = tree["phrases"]
    characters = str.maketrans(tree["simplified"], tree["traditional"])
    return Words(
        lang="zh-Hant",
        text={key: tuple(turn(item) for item in items) for key, items in words.text.items()},
        separator=words.separator,
        site={key: turn(value) for key, value in words.site.items()},
        topics={
            key: TopicWords(
                turn(topic.name),
                tuple(turn(item) for item in topic.things),
                tuple(turn(item) for item in topic.acts),
                tuple(turn(item) for item in topic.facts),
            )
            for key, topic in words.topics.items()
        },
    )
