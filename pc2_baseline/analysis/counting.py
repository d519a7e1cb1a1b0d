"""Find mismatched pairs by counting, without pictures and without training."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from now_builder.formats.release import Pair, is_ours, read_split_pairs

REFERENCES = ("copies", "url_kind", "language")
"""Names of scores that need only a release's table of pairs."""

_LISTS = re.compile(
    r"/(?:tags?|categor(?:y|ies|ia|ias)|archives?|authors?|topics?|series|search|page/?\d+)(?:[/.?]|$)",
    re.IGNORECASE,
)
"""Paths of pages that list other pages: by tag, category, year, author."""


def count_signs(
    pairs: Sequence[Pair], image_of: Int[np.ndarray, " pairs"] | None = None
) -> tuple[dict[str, Float[np.ndarray, " pairs"]], Bool[np.ndarray, " pairs"]]:
    """Score each caption with its page by counting; high means matched.

    ``copies`` is minus the share of the site's pages with this caption, ``url_kind`` is -1 if the
    page's path is that of a list of pages, and ``language`` is 1 if the caption is in the language
    of most captions of the site.

    Args:
        pairs: The pairs of a split, in order.
        image_of: Pair whose page each caption is assigned to, from a noise file; default: its own.

    Returns:
        The scores by name, and whether each caption stands once on its page's site.
    """
    pages = [pairs[row] for row in (range(len(pairs)) if image_of is None else image_of)]
    table = pd.DataFrame([(page.site, one.caption, one.lang or "")
                          for page, one in zip(pages, pairs, strict=True)],
                         columns=["site", "caption", "lang"])  # fmt: skip
    by_site = table.groupby("site")["lang"]
    usual = by_site.agg(lambda langs: Counter(langs).most_common(1)[0][0])
    copies = table.groupby(["site", "caption"])["lang"].transform("size").to_numpy()
    signs = {
        "copies": -copies / by_site.transform("size").to_numpy(),
        "url_kind": np.array([-float(bool(_LISTS.search(page.url))) for page in pages]),
        "language": (table["lang"] == table["site"].map(usual)).to_numpy(np.float64),
    }
    return signs, copies == 1


def count_signs_of(
    release: Path, pairs: int, image_of: Int[np.ndarray, " pairs"] | None
) -> tuple[dict[str, Float[np.ndarray, " pairs"]], Bool[np.ndarray, " pairs"]] | None:
    """Return :func:`count_signs` of a release's training pairs; ``None`` if it names no sites."""
    if not is_ours(release):
        return None
    table = read_split_pairs(release, "train")
    return count_signs(table, image_of) if len(table) == pairs else None
