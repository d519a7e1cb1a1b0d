"""Find the licence of a repository's texts, else of its code."""

import re
from collections import Counter
from pathlib import Path

from now_builder.pinned.git import Git
from now_builder.pinned.sites import Site
from recipes.pinned_web.look import WORDS, Page, Served

_CC = re.compile(
    r"creativecommons\.org/(?:licenses/[a-z-]+/[\d.]+|publicdomain/zero)"
    r"|\bCC[ -]?BY(?:-(?:NC|SA|ND|NC-SA|NC-ND))?[ -]?[34]\.0",
    re.IGNORECASE,
)
_TAIL = 60_000
"""Number of characters at a page's end that may state a licence."""
_FILE = re.compile(
    rb"(?:licen[sc]e|copying|unlicense)(?:[-.][\w.-]+)?(?<!\.html)(?<!\.htm)", re.IGNORECASE
)
_OPEN = frozenset({"CC0-1.0", "CC-BY-3.0", "CC-BY-4.0"})


def licence_of(git: Git, mirror: Path, served: Served, head: Site) -> str:
    """Return the name of a licence, ``other`` for an unknown one, or ``none``.

    First choice is the licence that at least half of the pages state, then a licence file in the
    root or folder of the site's branch, then one in the default branch.
    """
    if stated := _of_pages(served.pages):
        return stated
    folders = {b"", served.site.folder.encode()}
    for commit in (served.site.commit, head.commit):
        files = git.files(mirror, Site(head.repository, commit, "", "", 0, "", "", 0))
        split = ((path.rpartition(b"/"), entry.name) for path, entry in sorted(files.items()))
        hits = [name for (at, _, last), name in split if at in folders and _FILE.fullmatch(last)]
        if hits:
            return _of_text(b" ".join(git.contents(mirror, hits[:3])).decode("utf-8", "replace"))
    return "none"


def _of_pages(pages: list[Page]) -> str:
    """Return the strictest Creative Commons licence that at least half of the pages state."""
    stated = Counter(name for page in pages for name in _stated(page.source[-_TAIL:]))
    common = [name for name, number in stated.most_common() if 2 * number >= len(pages)]
    return min(common, key=_OPEN.__contains__, default="")


def _stated(text: str) -> set[str]:
    names = set()
    for word in (hit[0].lower() for hit in _CC.finditer(text)):
        terms = [term.upper() for term in ("nc", "nd", "sa") if re.search(rf"-{term}\b", word)]
        version = [] if terms else ["3.0" if "3.0" in word else "4.0"]
        names.add("CC0-1.0" if "zero" in word else "-".join(["CC-BY", *terms, *version]))
    return names


def _of_text(text: str) -> str:
    text = " ".join(text.split()).lower()
    is_open = "permission is hereby granted" in text or "redistribution" in text
    if "all rights reserved" in text[:400] and not is_open:
        return "other"
    licences = WORDS["licences"].items()
    return next((name for name, words in licences if re.search(words, text)), "other")
