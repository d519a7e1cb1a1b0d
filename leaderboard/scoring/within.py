"""Figures of queries ranked within groups: folds, sites, languages, owners."""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

import numpy as np
import pandas as pd
from jaxtyping import Float

from leaderboard.core.uncertainty import SEED, bootstrap_rsum
from leaderboard.metrics import Labels, Matrix, count_within, macro_mean, recalls_within
from leaderboard.scoring.references import chance_rsum
from leaderboard.scoring.result import AtCutoffs, RankRecord, Within, query_ranks
from leaderboard.submission.gallery import Gallery
from now_builder.formats.benchmarks import FOLD

MIN_GROUP = 10
"""Minimum number of pairs of a site or a language, and of owners."""

DRAWS = 20
"""Number of random draws of one page per owner."""

Groups = Sequence[Labels]


def _folds_of(gallery: Gallery) -> Groups:
    """Return MS-COCO's 1K folds; none if the split is small or has one caption per image."""
    images, captions = gallery.shape
    if captions == images or images < 2 * FOLD:
        return []
    return np.split(np.arange(images - images % FOLD), images // FOLD)


def sites_of(pages: pd.DataFrame | None) -> Groups:
    """Return the pages of each site; pages with the same caption as another are left out."""
    if pages is None:
        return []
    return _large_groups(pages[~pages.duplicated(["site", "caption"], keep=False)], "site")


def _languages_of(gallery: Gallery) -> Groups:
    """Return the pages of each language; none unless the release is split by domain."""
    pages = gallery.pages
    return [] if pages is None or "owner" not in pages else _large_groups(pages, "lang")


def _draws_of(gallery: Gallery) -> Groups:
    """Draw one page of each owner, by owner; none unless the release is split by domain."""
    pages, generator = gallery.pages, np.random.default_rng(SEED)
    if pages is None or "owner" not in pages or pages["owner"].nunique() < MIN_GROUP:
        return []
    draws = (pages.assign(draw=generator.random(len(pages))) for _ in range(DRAWS))
    orders = (draw.sort_values(["owner", "draw"]).drop_duplicates("owner") for draw in draws)
    return [order.index.to_numpy() for order in orders]


def _large_groups(pages: pd.DataFrame, column: str) -> Groups:
    groups = (rows.to_numpy() for rows in pages.groupby(column).groups.values())
    return [rows for rows in groups if len(rows) >= MIN_GROUP]


GROUPINGS: Mapping[str, Callable[[Gallery], Groups]] = {
    "folds": _folds_of,
    "within_site": lambda gallery: sites_of(gallery.pages),
    "across_owners": _draws_of,
    "within_language": _languages_of,
}
"""Functions that return groups of images to rank queries within, by field of the result."""


def owners_of(gallery: Gallery) -> tuple[int, ...] | None:
    """Number the owners of pages; return None unless the release is split by domain."""
    if gallery.pages is None or "owner" not in gallery.pages:
        return None
    return tuple(gallery.pages["owner"].factorize()[0].tolist())


def figures_of_groups(similarity: Matrix, gallery: Gallery) -> dict[str, Within | None]:
    """Return the figures within the groups of a gallery, by field of the result."""
    figures: dict[str, Within | None] = dict.fromkeys(GROUPINGS)
    for name, groups_of in GROUPINGS.items():
        if groups := groups_of(gallery):
            record = record_within(similarity, gallery.owner, groups)
            figures[name] = figures_within(name, record, [*map(len, groups)])
    return figures


def record_within(similarity: Matrix, owner: Labels, groups: Groups) -> RankRecord:
    """Record the ranks among the candidates of each image's group, group by group."""
    i2t, t2i = count_within(similarity, owner, groups)
    return RankRecord(i2t=query_ranks(i2t), t2i=query_ranks(t2i))


def figures_within(name: str, record: RankRecord, sizes: Sequence[int]) -> Within:
    """Compute the figures of groups from the ranks within them.

    ``name`` is the field of the result, ``sizes`` the number of images by group. Recalls, rSum and
    chance are means over groups.
    """
    i2t, t2i = macro_mean(recalls_within(record.read(), sizes))
    each = record.size[1] // record.size[0]
    equal = len({*sizes}) == 1
    low, high, _ = bootstrap_rsum(units_within(name, record, sizes))
    chance = float(np.mean([chance_rsum(size, size * each) for size in sizes]))
    return Within(
        size=sizes[0] if equal else None,
        count=len(sizes),
        sizes=None if equal else tuple(sizes),
        i2t=_percent(i2t),
        t2i=_percent(t2i),
        rsum=float(100 * sum(i2t + t2i)),
        rsum_interval=(round(low, 4), round(high, 4)),
        chance=None if name == "folds" else chance,
        ranks=record,
    )


def _percent(shares: Sequence[Fraction]) -> AtCutoffs:
    r1, r5, r10 = (float(100 * share) for share in shares)
    return AtCutoffs(r1=r1, r5=r5, r10=r10)


def units_within(
    name: str, record: RankRecord, sizes: Sequence[int]
) -> Float[np.ndarray, " units"]:
    """Return the mean hits, 0 to 6, of each unit to resample: image (folds), owner or group."""
    hits = [group.per_image for group in recalls_within(record.read(), sizes)]
    if name == "folds":
        return np.concatenate(hits)
    return np.mean(hits, axis=0) if name == "across_owners" else np.array([*map(np.mean, hits)])


def plausible(name: str, within: Within, split: RankRecord) -> bool:
    """Return whether the ranks within groups are possible, given the ranks in the whole split.

    A group has fewer candidates than the split, so no rank can be worse there.
    """
    ranks, images = within.ranks, split.size[0]
    if ranks is None or not ranks.possible() or within.count > len(ranks.i2t.greater):
        return False
    sizes, each = within.spans, split.size[1] // images
    fits = {
        "folds": sizes == (FOLD,) * (images // FOLD),
        "across_owners": sizes == (len({*(split.site_owners or ())}),) * DRAWS,
    }.get(name, min(sizes) >= MIN_GROUP and sum(sizes) <= images)
    if not fits or ranks.size != (sum(sizes), sum(sizes) * each):
        return False
    draws = DRAWS if name == "across_owners" else 1
    for group, full, n in zip(ranks.read(), split.read(), (1, each), strict=True):
        candidates = np.repeat(sizes, np.multiply(sizes, n)) * (each if n == 1 else 1)
        fits &= bool((group.greater + group.equal + group.right <= candidates).all())
        limits, greater = full.greater, group.greater
        if name != "folds":  # other groups are not in the order of the split
            limits, greater = np.repeat(np.sort(limits)[::-1], draws), np.sort(greater)[::-1]
        fits &= bool((greater <= limits[: len(greater)]).all())
    return fits
