"""Compose texts in a language: on a topic, or mismatched ones."""

import re
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from random import Random
from typing import Any

_PART = " | "
_LENGTHS = {"characters": (15, 45), "words": (6, 24)}
CHARACTER_SCRIPTS = frozenset({"zh", "ja"})
"""Languages written without spaces; the length of a text is counted in characters."""


@dataclass(frozen=True, slots=True)
class TopicWords:
    """Words about a topic: noun phrases, phrases after "how to", and sentences."""

    name: str
    things: tuple[str, ...]
    acts: tuple[str, ...]
    facts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Words:
    """A language: templates by use (``titles`` …), texts of all sites, words by topic."""

    lang: str
    text: dict[str, tuple[str, ...]]
    site: dict[str, str]
    topics: dict[str, TopicWords]

    def several(self, key: str) -> list[str]:
        """Return the alternatives of a site's text."""
        return self.site[key].split(_PART)


@lru_cache
def read_words(lang: str) -> Words:
    """Read a language of the package; ``zh-Hant`` is derived from ``zh``."""
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


def compose(template: str, words: Words, topic: str, rng: Random) -> str:
    """Fill a template with words of a topic; a capitalised slot gives a capitalised word."""
    about = words.topics[topic]
    a, b, c, d = rng.sample(about.things, 4)
    act, act2 = rng.sample(about.acts, 2)
    fact, fact2 = rng.sample(about.facts, 2)
    slots = {
        "a": a, "b": b, "c": c, "d": d, "act": act, "act2": act2, "fact": fact, "fact2": fact2,
        "name": about.name,
    }  # fmt: skip
    capitals = {key.capitalize(): value[:1].upper() + value[1:] for key, value in slots.items()}
    return template.format_map(slots | capitals)


def text(kind: str, words: Words, topic: str, rng: Random) -> str:
    """Compose a text by a random template of a kind (``titles``, ``headings`` …)."""
    return compose(rng.choice(words.text[kind]), words, topic, rng)


def description(words: Words, topic: str, rng: Random) -> str:
    """Compose a description on a topic: 15-45 characters, or 6-24 words."""
    by_character = words.lang[:2] in CHARACTER_SCRIPTS
    least, most = _LENGTHS["characters" if by_character else "words"]
    for _ in range(50):
        composed = text("descriptions", words, topic, rng)
        if least <= (len(composed) if by_character else len(composed.split())) <= most:
            break
    return composed


def boilerplate(words: Words, site_name: str, number: int) -> str:
    """Return the boilerplate text of all pages of a site."""
    slogans = words.several("slogans")
    slogan = slogans[number // 2 % len(slogans)]
    return slogan if number % 2 else f"{site_name} - {slogan}"


def soup(words: Words, topics: list[str], rng: Random) -> str:
    """Return keywords of many topics, as in search spam."""
    chosen = rng.sample(topics, min(len(topics), 5))
    keywords = [rng.choice(words.topics[topic].things) for topic in chosen]
    joint = {"zh": ",", "ja": ","}.get(words.lang[:2], ", ")
    return rng.choice(words.text["soup"]).format(list=joint.join(keywords))


def garble(description: str, topic_free: str, rng: Random) -> str:
    """Damage a text like a wrong encoding, so that it never reveals its topic.

    UTF-8 read as another encoding can be undone, so it is made from ``topic_free``. The other ways
    destroy the text.
    """
    way = rng.randrange(2, 4) if topic_free.isascii() else rng.randrange(4)
    if way == 0:
        return topic_free.encode().decode("cp1252", "replace")
    if way == 1:
        return topic_free.encode().decode("gb18030", "replace")
    letters = re.sub(r"\w", "?" if way == 2 else "\ufffd", description)
    return letters if way == 2 else letters.encode().decode("gb18030", "replace")
