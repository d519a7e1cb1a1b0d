"""Guess the kind of a site from the words of its pages and their file names."""

import re
from collections import Counter

from recipes.pinned_web.look import WORDS, Page, pattern

_KINDS = {kind: pattern(words) for kind, words in WORDS["kinds"].items()}
_GENERATORS = {name: kind for kind, names in WORDS["generators"].items() for name in names.split()}
_ALSO_OTHERS = frozenset({"hugo", "jekyll"})
"""Blog generators that companies and clubs use too."""
_WEAKER = {"tool": 0.8, "club": 0.8}
_LEAST = 2.5


def kind_of(pages: list[Page], name: str) -> str:
    """Return the likeliest kind, or ``other``."""
    head = " ".join(dict.fromkeys(page.words for page in pages))[:20_000]
    bodies = " ".join(dict.fromkeys(page.text[:600] for page in pages[:30]))[:12_000]
    text = f"{head} {bodies}".lower()
    score = {}
    for kind, words in _KINDS.items():
        hits = [hit[0] for hit in words.finditer(text)]
        score[kind] = len(hits) ** 0.8 + len({*hits})
    generator = _generator(pages)
    if kind := _GENERATORS.get(generator):
        score[kind] += 2 if generator in _ALSO_OTHERS else 12 + 0.3 * sum(score.values())
    for kind, points in _by_names(name.lower(), " ".join(page.name for page in pages).lower()):
        dated = kind == "blog" and points > 10
        score[kind] += points + (0.25 * sum(score.values()) if dated else 0)
    best = max(score, key=lambda kind: score[kind] * _WEAKER.get(kind, 1))
    return best if score[best] >= _LEAST else "other"


def _generator(pages: list[Page]) -> str:
    """Return the generator that most pages state."""
    stated = (dict(page.about.metas[::-1]) for page in pages)
    first = Counter(re.split(r"[ ,\d]", metas.get("generator", ""))[0].lower() for metas in stated)
    return max(first, key=first.__getitem__, default="")


def _by_names(name: str, paths: str) -> list[tuple[str, float]]:
    """Return points by the names of the repository and of its files."""
    dated = r"(^| )(archives|tags?|categories|category)/|(^| )\d{4}/\d\d/"
    points = [
        ("blog", 12, re.search(dated, paths)
         or (re.search(r"(^| )(posts?|blog)/", paths) and "blog" in name + paths[:20])),
        ("blog", 8, "blog" in name),
        ("documentation", 8, re.search(r"(^|[^a-z])docs?([^a-z]|$)", name)),
        ("portfolio", 10, "portfolio" in name),
        ("shop" if "cart" in paths else "company", 4,
         re.search(r"(products?|shop|store|cart|warenkorb)[^ ]*\.html", paths)),
        ("company", 3, re.search(r"(about|contact|services?|kontakt|impressum|contacto|nosotros"
                                 r"|uslugi)[\w-]*(\.html|/index\.html)", paths)),
    ]  # fmt: skip
    return [(kind, number) for kind, number, there in points if there]
