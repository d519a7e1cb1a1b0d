"""Figures of queries that are ranked among the candidates of a group: folds, sites, owners."""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

import numpy as np
import pandas as pd
from jaxtyping import Float

from leaderboard.core.uncertainty import SEED, bootstrap_rsum
from leaderboard.metrics import CUTOFFS, Labels, Matrix, count_within, macro_mean, recalls_within
from leaderboard.scoring.references import chance_rsum
from leaderboard.scoring.result import AtCutoffs, RankRecord, Within, query_ranks
from leaderboard.submission.gallery import Gallery
from now_builder.formats.benchmarks import FOLD

MIN_GROUP = 10
"""Pairs that a site or a language has at least, and owners that a draw has."""

DRAWS = 20
"""Draws of one page an owner."""

Groups = Sequence[Labels]


def _folds_of(gallery: Gallery) -> Groups:
    """Return MS-COCO's 1K folds; none if the split is small or has one caption per image."""
    images, captions = gallery.shape
    if captions == images or images < 2 * FOLD:
        return []
    return np.split(np.arange(images - images % FOLD), images // FOLD)


def sites_of(pages: pd.DataFrame | None) -> Groups:
    """Return the pages of each site whose captions stand once on it."""
    if pages is None:
        return []
    return _large(pages[~pages.duplicated(["site", "caption"], keep=False)], "site")


def _languages_of(gallery: Gallery) -> Groups:
    """Return the pages of each language, where the release is split by domain."""
    pages = gallery.pages
    return [] if pages is None or "owner" not in pages else _large(pages, "lang")


def _draws_of(gallery: Gallery) -> Groups:
    """Draw one page of each owner, in the order of owners, where the release is split by domain."""
    pages, generator = gallery.pages, np.random.default_rng(SEED)
    if pages is None or "owner" not in pages or pages["owner"].nunique() < MIN_GROUP:
        return []
    drawn = (pages.assign(draw=generator.random(len(pages))) for _ in range(DRAWS))
    orders = (draw.sort_values(["owner", "draw"]).drop_duplicates("owner") for draw in drawn)
    return [order.index.to_numpy() for order in orders]


def _large(pages: pd.DataFrame, by: str) -> Groups:
    groups = (rows.to_numpy() for rows in pages.groupby(by).groups.values())
    return [rows for rows in groups if len(rows) >= MIN_GROUP]


GROUPINGS: Mapping[str, Callable[[Gallery], Groups]] = {
    "folds": _folds_of,
    "within_site": lambda gallery: sites_of(gallery.pages),
    "across_owners": _draws_of,
    "within_language": _languages_of,
}
"""Groups of images whose queries are also ranked within their own group, by the result's field."""


def owners_of(gallery: Gallery) -> tuple[int, ...] | None:
    """Number the owners of pages; None unless the release is split by domain."""
    pages = gallery.pages
    return (
        None
        if pages is None or "owner" not in pages
        else tuple(pages["owner"].factorize()[0].tolist())
    )


def figures_of_groups(similarity: Matrix, gallery: Gallery) -> dict[str, Within | None]:
    """Return the figures within the groups of a gallery, by the result's field."""
    found: dict[str, Within | None] = {}
    for name, groups_of in GROUPINGS.items():
        groups = groups_of(gallery)
        record = record_within(similarity, gallery.owner, groups) if groups else None
        found[name] = figures_within(name, record, [*map(len, groups)]) if record else None
    return found


def record_within(similarity: Matrix, owner: Labels, groups: Groups) -> RankRecord:
    """Record the ranks among the candidates of each image's group, group by group."""
    i2t, t2i = count_within(similarity, owner, groups)
    images, captions = np.arange(len(i2t.greater)), np.arange(len(t2i.greater))
    return RankRecord(i2t=query_ranks(i2t, images), t2i=query_ranks(t2i, captions))


def figures_within(name: str, record: RankRecord, sizes: Sequence[int]) -> Within:
    """Compute the figures of groups of these sizes from the ranks within them.

    Recalls, rSum and chance are means over groups; ``name`` is the result's field.
    """
    i2t, t2i = macro_mean(recalls_within(record.read(), sizes))
    each = record.size[1] // record.size[0]
    equal = len({*sizes}) == 1
    low, high, _ = bootstrap_rsum(units_within(name, record, sizes))
    return Within(
        size=sizes[0] if equal else None,
        count=len(sizes),
        sizes=None if equal else tuple(sizes),
        i2t=_percent(i2t),
        t2i=_percent(t2i),
        rsum=float(100 * sum(i2t + t2i)),
        rsum_interval=(round(low, 4), round(high, 4)),
        chance=None
        if name == "folds"
        else float(np.mean([chance_rsum(size, size * each) for size in sizes])),
        ranks=record,
    )


def _percent(shares: Sequence[Fraction]) -> AtCutoffs:
    names = (f"r{cutoff}" for cutoff in CUTOFFS)
    return AtCutoffs(**dict(zip(names, (float(100 * share) for share in shares), strict=True)))


def units_within(
    name: str, record: RankRecord, sizes: Sequence[int]
) -> Float[np.ndarray, " units"]:
    """Return the mean hits, 0 to 6, of each resampled unit: images of folds, owners or groups."""
    hits = [group.per_image for group in recalls_within(record.read(), sizes)]
    if name == "folds":
        return np.concatenate(hits)
    return np.mean(hits, axis=0) if name == "across_owners" else np.array([*map(np.mean, hits)])


def plausible(name: str, within: Within, whole: RankRecord) -> bool:
    """Return whether the ranks can be those within groups of a split with other ranks.

    A group has fewer candidates, so that no rank is worse there.
    """
    ranks, images = within.ranks, whole.size[0]
    if ranks is None or not ranks.possible() or within.count > len(ranks.i2t.greater):
        return False
    sizes, each = within.spans, whole.size[1] // images
    fits = {
        "folds": sizes == (FOLD,) * (images // FOLD),
        "across_owners": sizes == (len({*(whole.site_owners or ())}),) * DRAWS,
    }.get(name, min(sizes) >= MIN_GROUP and sum(sizes) <= images)
    if not fits or ranks.size != (sum(sizes), sum(sizes) * each):
        return False
    draws = DRAWS if name == "across_owners" else 1
    for own, all_, n in zip(ranks.read(), whole.read(), (1, each), strict=True):
        candidates = np.repeat(sizes, np.multiply(sizes, n)) * (each if n == 1 else 1)
        fits &= bool((own.greater + own.equal + own.right <= candidates).all())
        worst = np.repeat(np.sort(all_.greater)[::-1], draws)
        best = np.sort(own.greater)[::-1]
        if name == "folds":
            worst, best = all_.greater, own.greater
        fits &= bool((best <= worst[: len(best)]).all())
    return fits
