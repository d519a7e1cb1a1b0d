"""Figures within sites, across owners, within languages; intervals by owner."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from leaderboard.core.uncertainty import bootstrap_rsum
from leaderboard.metrics import CUTOFFS
from leaderboard.scoring.evaluate import compare_results, figures_of, record_of
from leaderboard.scoring.references import chance_rsum
from leaderboard.scoring.within import GROUPINGS, figures_of_groups
from leaderboard.store.entries import read_result, write_result
from leaderboard.store.recompute import against_release, recomputed
from leaderboard.submission.gallery import Gallery, read_gallery
from now_builder.program.intervals import clustered_wilson, wilson
from tests.leaderboard.conftest import NO_DUPLICATES, make_similarity, score_matrix

N = 90
RANDOM = np.random.default_rng(3).integers(0, 30, (N, N)).astype(np.float32)
"""With ties."""


def _gallery(**columns):
    keys, rows = [str(row) for row in range(N)], np.arange(N)
    pages = pd.DataFrame({"caption": keys} | columns)
    return Gallery(keys, keys, rows, rows, rows, "0" * 64, "rebuilt", pages)


@pytest.fixture(scope="module")
def web():
    """Three sites of 20 pages, of two owners, and one page each of 30 others; two languages."""
    rows = np.arange(N)
    site = np.where(rows < 60, rows // 20, rows)
    lang = np.array(["en", "de"], object)[rows % 2]
    lang[85:] = [None, None, None, None, "zh"]
    caption = np.where(rows % 7, rows, -1)
    return _gallery(site=site, owner=np.where(rows < 40, 0, site), lang=lang, caption=caption)


def _slowly(similarity, rows):
    """Return the six recalls of some pairs, ranked among each other only."""
    found = []
    for matrix in (similarity, similarity.T):
        for cutoff in CUTOFFS:
            hits = 0.0
            for row in rows:
                above = sum(matrix[row, other] > matrix[row, row] for other in rows)
                level = sum(matrix[row, other] == matrix[row, row] for other in rows) - 1
                hits += min(1.0, max(0.0, (cutoff - above) / (level + 1)))
            found.append(100 * hits / len(rows))
    return found


def test_figures_are_means_over_groups_counted_slowly(web):
    found = figures_of_groups(RANDOM, web)
    sites = [[row for row in range(20 * n, 20 * n + 20) if row % 7] for n in range(3)]
    languages = [list(range(first, 85, 2)) for first in (1, 0)]
    draws = GROUPINGS["across_owners"](web)
    owners = [sorted(web.pages.owner[rows]) for rows in draws]
    assert len(draws) == 20
    assert owners == [sorted({*web.pages.owner})] * 20
    assert len({tuple(rows) for rows in draws}) == 20
    for name, groups in (
        ("within_site", sites),
        ("within_language", languages),
        ("across_owners", draws),
    ):
        each = np.array([_slowly(RANDOM, rows) for rows in groups])
        own = found[name]
        assert own.spans == tuple(map(len, groups))
        assert [*own.i2t.values(), *own.t2i.values()] == pytest.approx(each.mean(0), abs=1e-9)
        assert own.rsum == pytest.approx(each.sum(1).mean(), abs=1e-9)
        chance = np.mean([chance_rsum(len(rows), len(rows)) for rows in groups])
        assert own.chance == pytest.approx(chance)
        if name != "across_owners":
            spread = bootstrap_rsum(each.sum(1) / 100)
            assert own.rsum_interval == pytest.approx(spread[:2], abs=1e-4)
    assert found["folds"] is None


def test_a_scorer_by_site_is_at_chance_within_sites(web):
    site = web.pages.site.to_numpy()
    same = (site[:, None] == site).astype(np.float32)
    within = figures_of_groups(same, web)["within_site"]
    assert within.rsum == pytest.approx(within.chance)
    whole = figures_of(record_of(same, web), NO_DUPLICATES)
    assert whole["rsum"] > 2 * chance_rsum(N, N)


def test_releases_not_split_by_domain_only_have_figures_within_sites(web):
    pages = web.pages.drop(columns="owner")
    found = figures_of_groups(RANDOM, replace(web, pages=pages))
    assert [name for name, own in found.items() if own] == ["within_site"]
    assert record_of(RANDOM, replace(web, pages=pages)).site_owners is None
    assert not any(figures_of_groups(RANDOM, replace(web, pages=None)).values())


def test_intervals_by_owner_are_wider_where_hits_cluster():
    owner = np.arange(N) // 10
    scores = RANDOM + 100 * np.eye(N, dtype=np.float32) * (owner % 2)[:, None]
    record = record_of(scores, _gallery(site=owner, owner=owner, lang=owner))
    by_owner = figures_of(record, NO_DUPLICATES)
    by_pair = figures_of(record.model_copy(update={"site_owners": None}), NO_DUPLICATES)
    assert by_owner["rsum"] == by_pair["rsum"]
    assert by_owner["rsum_deviation"] > 2 * by_pair["rsum_deviation"]
    for wide, narrow in (
        (by_owner["rsum_interval"], by_pair["rsum_interval"]),
        (by_owner["i2t"].interval.r1, by_pair["i2t"].interval.r1),
        (by_owner["t2i"].interval.r10, by_pair["t2i"].interval.r10),
    ):
        assert np.ptp(wide) > 1.5 * np.ptp(narrow)


def test_clustered_intervals_of_independent_trials_are_wilsons():
    hits = (np.arange(50) % 5 == 0).astype(float)
    low, high = clustered_wilson(hits, np.arange(50))
    assert (low, high) == pytest.approx(wilson(10, 50), abs=0.005)
    assert clustered_wilson(np.zeros(50), np.arange(50) // 10) == wilson(0, 5)


def test_figures_of_a_release_are_recomputed_and_changed_ones_refused(tmp_path, by_domain):
    first = score_matrix(tmp_path / "x.zip", by_domain, make_similarity())
    assert first.within_site.spans == (6,) * 4
    assert first.across_owners.spans == (3,) * 20
    assert first.within_language.spans == (8,) * 3
    gallery = read_gallery(by_domain, "test", "jieba")
    owners = pd.DataFrame({"number": first.ranks.site_owners, "owner": gallery.pages.owner})
    assert len(owners.drop_duplicates()) == 3
    write_result(tmp_path / "x.json", first)
    assert read_result(tmp_path / "x.json") == first
    assert recomputed(first) == []
    assert against_release(first, [by_domain]) == []
    for name in ("within_site", "across_owners", "within_language"):
        own = getattr(first, name)
        ranks, count = own.ranks, len(own.ranks.i2t.greater)
        for change in (
            {"rsum": own.rsum - 1},
            {"chance": own.chance + 1},
            {"count": own.count + 1},
            {"count": 10**9},
            {"ranks": None},
            {"ranks": ranks.model_copy(update={"i2t": ranks.i2t.model_copy(update={
                "greater": (own.spans[0],) * count})})},
        ):  # fmt: skip
            changed = first.model_copy(update={name: own.model_copy(update=change)})
            assert recomputed(changed), (name, change)
        assert against_release(first.model_copy(update={name: None}), [by_domain])
    bare = first.model_copy(update={"ranks": first.ranks.model_copy(update={"site_owners": None})})
    assert against_release(bare, [by_domain])


def test_a_comparison_is_by_owner_and_within_sites_too(tmp_path, by_domain):
    one = score_matrix(tmp_path / "x.zip", by_domain, make_similarity())
    other = score_matrix(tmp_path / "y.zip", by_domain, make_similarity(strength=0.5))
    found = compare_results(one, other)
    assert found.difference == pytest.approx(one.rsum - other.rsum)
    assert found.p >= 2 / 2**3 - 0.02  # of three owners
    within = found.within_site
    assert within.difference == pytest.approx(one.within_site.rsum - other.within_site.rsum)
    assert within.low <= within.difference <= within.high
    assert compare_results(one, other.model_copy(update={"within_site": None})).within_site is None
