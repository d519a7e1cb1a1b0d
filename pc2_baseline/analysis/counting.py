"""How well counting finds mismatched pairs, with no picture and no training."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int

from now_builder.formats.release import Pair, is_ours, read_split_pairs

REFERENCES = ("copies", "url_kind", "language")
"""Scores that need a release's table of pairs alone."""

_LISTS = re.compile(
    r"/(?:tags?|categor(?:y|ies|ia|ias)|archives?|authors?|topics?|series|search|page/?\d+)(?:[/.?]|$)",
    re.IGNORECASE,
)
"""Paths of pages that list others: by tag, category, year, author."""


def count_signs(
    pairs: Sequence[Pair], image_of: Int[np.ndarray, " pairs"] | None = None
) -> tuple[dict[str, Float[np.ndarray, " pairs"]], Bool[np.ndarray, " pairs"]]:
    """Score each caption with its page by what can be counted; high means matched.

    ``copies`` is the share of the page's site that has this caption, ``url_kind`` whether the
    page's path is that of a list of pages, ``language`` whether the caption is in another language
    than most captions of the site.

    Args:
        pairs: The pairs of a split, in order.
        image_of: The pair whose page each caption was assigned, as a noise file says; by default
            its own.

    Returns:
        The scores by name, and which captions stand once on their page's site.
    """
    rows = range(len(pairs))
    pages = [pairs[row] for row in (rows if image_of is None else image_of)]
    sites = Counter(page.site for page in pages)
    copies = Counter((page.site, pairs[row].caption) for row, page in zip(rows, pages, strict=True))
    languages: dict[str, Counter[str | None]] = {}
    for row, page in zip(rows, pages, strict=True):
        languages.setdefault(page.site, Counter())[pairs[row].lang] += 1
    usual = {site: counts.most_common(1)[0][0] for site, counts in languages.items()}
    both = [(pairs[row], page) for row, page in zip(rows, pages, strict=True)]
    signs = {
        "copies": [-copies[page.site, own.caption] / sites[page.site] for own, page in both],
        "url_kind": [-float(bool(_LISTS.search(page.url))) for _, page in both],
        "language": [float(own.lang == usual[page.site]) for own, page in both],
    }
    once = np.array([copies[page.site, own.caption] == 1 for own, page in both], dtype=bool)
    return {name: np.asarray(values) for name, values in signs.items()}, once


def count_signs_of(
    release: Path, pairs: int, image_of: Int[np.ndarray, " pairs"] | None
) -> tuple[dict[str, Float[np.ndarray, " pairs"]], Bool[np.ndarray, " pairs"]] | None:
    """Return :func:`count_signs` of a release's training pairs; ``None`` if it names no sites."""
    if not is_ours(release):
        return None
    table = read_split_pairs(release, "train")
    return count_signs(table, image_of) if len(table) == pairs else None
