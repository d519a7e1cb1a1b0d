"""Intervals and tests: known values, slow oracles, and coverage of the true value."""

from fractions import Fraction
from itertools import product
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leaderboard.core import uncertainty
from leaderboard.core.uncertainty import (
    REPLICATES,
    SIGNIFICANT,
    bootstrap_rsum,
    compare,
    holm,
    intervals_of,
    mcnemar,
    p_against_first,
    recall_interval,
    resampled,
    sign_flip,
    sum_deviation,
    tied_with_first,
)
from leaderboard.metrics import Ranks, count_ranks, recalls
from tests.leaderboard.conftest import closed_form_deviation


def test_the_interval_of_a_recall_is_that_of_the_tables():
    for hits, ends in ((0.0, (0, 0.4)), (129.0, (11.0, 15.1)), (1000.0, (99.6, 100))):
        assert recall_interval(hits, 1000) == pytest.approx(ends, abs=0.05)


def _now_like(seed, size=1000):
    generator = np.random.default_rng(seed)
    return recalls(generator.standard_normal((size, size)) + 2 * np.eye(size))


def test_drawing_counts_of_values_equals_drawing_pairs():
    """The slow way: draw pairs with replacement, add up their hits."""
    per_image = _now_like(1, 60).per_image
    generator = np.random.default_rng(5)
    slow = [100 * generator.choice(per_image, 60).mean() for _ in range(4000)]
    fast = bootstrap_rsum(per_image, replicates=4000)
    assert fast.deviation == pytest.approx(np.std(slow), rel=0.06)
    assert fast.deviation == pytest.approx(closed_form_deviation(per_image), rel=0.03)
    assert (fast.low, fast.high) == pytest.approx(np.percentile(slow, [2.5, 97.5]), abs=6)


def test_the_least_deviation_is_that_of_two_independent_directions():
    """The two directions' own variances added, from the nested hits of each."""
    found = _now_like(3)
    variance = 0.0
    for ranks in found.ranks:
        hits = sum((ranks.greater < cutoff).astype(float) for cutoff in (1, 5, 10))
        variance += hits.var() / 1000
    ways = [[way.recall(k) for k in (1, 5, 10)] for way in (found.i2t, found.t2i)]
    deviation = np.hypot(*(sum_deviation(way, 1000) for way in ways))
    assert deviation == pytest.approx(100 * variance**0.5)
    assert deviation < closed_form_deviation(found.per_image)


def test_drawing_in_parts_gives_the_same_interval(monkeypatch):
    per_image = _now_like(4, 200).per_image
    whole = bootstrap_rsum(per_image, replicates=500)
    monkeypatch.setattr(uncertainty, "_MAX_DRAWS", 300)
    assert bootstrap_rsum(per_image, replicates=500) == whole


def _enumerated(differences):
    """Return the exact p over all 2^n exchanges."""
    observed = abs(sum(differences))
    sums = [
        abs(sum(sign * size for sign, size in zip(signs, differences, strict=True)))
        for signs in product((1, -1), repeat=len(differences))
    ]
    return np.mean([found >= observed - 1e-9 for found in sums])


@settings(max_examples=40)
@given(st.lists(st.sampled_from([-6, -3, -1.5, -1, -1 / 3, 0, 1 / 3, 1, 1.5, 2, 5]), max_size=9))
def test_the_sign_flip_p_is_that_of_all_exchanges(differences):
    """Four standard errors of 10,000 flips, and the observed order counted in."""
    exact = _enumerated(differences)
    found = sign_flip(np.array(differences, np.float64))
    assert found == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 1e4) + 1.5e-4)


def test_a_far_difference_gets_hoeffdings_bound_which_is_never_below_the_exact_p():
    """20 of 20 the same way: the exact p is 2 / 2^20, the bound 2 e^-10."""
    found = sign_flip(np.ones(20))
    assert found == pytest.approx(2 * np.exp(-10))
    assert 2 / 2**20 < found < 1 / (REPLICATES + 1)
    assert sign_flip(np.r_[np.ones(13), -1.0]) >= 1 / (REPLICATES + 1)


def test_mcnemars_p_is_twice_the_binomial_tail():
    for first_only, second_only in product(range(7), (0, 1, 5, 40)):
        total, fewer = first_only + second_only, min(first_only, second_only)
        tail = sum(Fraction(comb(total, k), 2**total) for k in range(fewer + 1))
        assert mcnemar(first_only, second_only) == float(min(Fraction(1), 2 * tail))


def test_holm_worked_by_hand():
    """Sorted .01 .02 .03 .04 times 4 3 2 1 = .04 .06 .06 .04, then never falling."""
    found = holm(np.array([0.03, 0.01, 0.04, 0.02]))
    assert found == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm(np.array([0.6, 0.7])) == pytest.approx([1, 1])
    assert holm(np.array([])).shape == (0,)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_rejects_what_the_stepwise_rule_rejects(p_values):
    """Step down: reject while the smallest left is at most 5 % over how many are left."""
    left = sorted(range(len(p_values)), key=p_values.__getitem__)
    rejected = set()
    while left and p_values[left[0]] * len(left) <= 0.05:
        rejected.add(left.pop(0))
    assert set(np.flatnonzero(holm(np.array(p_values)) <= 0.05)) == rejected


def _ranks(greater, equal=(0, 0, 0)):
    """Ranks of three images with ``equal`` tied wrong captions, and of ten at rank 0."""
    greater, equal = np.array([*greater, *[0] * 10]), np.array([*equal, *[0] * 10])
    return Ranks(greater, equal, np.zeros_like(greater), np.ones_like(greater))


def test_a_comparison_worked_by_hand():
    """i2t, first: ranks 0 0 9 (hits 3, 3, 1); second: 0 4 12 (3, 2, 0); t2i has one tie.

    The third caption of the first ties with one other at rank 0: 1/2 + 1 + 1 = 2.5 against 3. So
    the difference is 0 + 1 + 1 - 1/2 of 13 images.
    """
    first = _ranks([0, 0, 9]), _ranks([0, 0, 0], [0, 0, 1])
    second = _ranks([0, 4, 12]), _ranks([0, 0, 0])
    found = compare(first, second)
    assert found.difference == pytest.approx(100 * (1 + 1 - 0.5) / 13)
    assert found.low <= found.difference <= found.high
    assert [(c.first_only, c.second_only) for c in found.i2t.values()] == [(1, 0), (0, 0), (1, 0)]
    assert found.t2i[1].undecided == 1
    assert found.t2i[1].p == 1
    assert found.t2i[5].undecided == 0


def test_comparing_the_other_way_round_turns_the_signs():
    first, second = (_now_like(seed, 150).ranks for seed in (0, 1))
    there, back = compare(first, second), compare(second, first)
    assert there.difference == pytest.approx(-back.difference)
    assert there.p == back.p
    assert there.i2t[5].p == back.i2t[5].p
    assert there.i2t[5].first_only == back.i2t[5].second_only
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low), abs=3)


def test_the_interval_of_a_difference_is_that_of_drawing_images_for_both():
    first, second = (_now_like(seed, 200) for seed in (0, 1))
    generator = np.random.default_rng(3)
    difference = first.per_image - second.per_image
    slow = [100 * difference[generator.integers(0, 200, 200)].mean() for _ in range(4000)]
    found = compare(first.ranks, second.ranks)
    assert found.difference == pytest.approx(first.rsum - second.rsum)
    assert (found.low, found.high) == pytest.approx(np.percentile(slow, [2.5, 97.5]), abs=3)


def test_five_captions_an_image_differ_by_the_difference_of_rsum():
    generator = np.random.default_rng(0)
    owner = generator.permutation(np.arange(300) // 5)
    entries = []
    for strength in (1.0, 2.0):
        similarity = generator.normal(size=(60, 300))
        similarity[owner, np.arange(300)] += strength
        entries.append(count_ranks(similarity, owner))
    found = compare(entries[1], entries[0], owner)
    hits = [
        [100 * np.mean(way.greater < cutoff) for way in ranks for cutoff in (1, 5, 10)]
        for ranks in entries
    ]
    assert found.difference == pytest.approx(sum(hits[1]) - sum(hits[0]))
    assert found.p < 0.01


def test_rank_intervals_equal_those_of_drawing_the_same_pairs_for_all_entries():
    generator = np.random.default_rng(0)
    matrix = generator.integers(0, 7, (6, 50)).astype(np.float64)
    matrix[3] = matrix[2]
    best, worst = [], []
    for _ in range(4000):
        totals = matrix[:, generator.integers(0, 50, 50)].sum(axis=1)
        best.append([1 + np.sum(totals > own) for own in totals])
        worst.append([np.sum(totals >= own) for own in totals])
    low, high = np.percentile(best, 2.5, axis=0), np.percentile(worst, 97.5, axis=0)
    assert np.abs(intervals_of(resampled(matrix, 4000)) - np.stack([low, high], axis=1)).max() <= 1


def test_equal_entries_get_equal_places_whatever_their_rows():
    """Thirds add up differently in another order; places must not."""
    generator = np.random.default_rng(1)
    matrix = np.tile(generator.integers(0, 19, 37) / 3, (33, 1))
    found = intervals_of(resampled(matrix, 200))
    assert (found == [1, 33]).all()


def test_entries_tied_with_the_first():
    """The second differs on few images, the third on all, the fourth equals the first."""
    generator = np.random.default_rng(0)
    first = generator.integers(2, 7, 400).astype(np.float64)
    near = first.copy()
    near[:3] -= 1
    matrix = np.stack([near, first, first - generator.integers(0, 2, 400), first])
    assert tied_with_first(matrix).tolist() == [True, True, False, True]
    # seven images the same way: p = 2 / 2^7 = .016, which survives one test, not twenty
    first, below = np.full((2, 100), 3.0)
    below[:7] -= 1
    assert tied_with_first(np.stack([first, below])).tolist() == [True, False]
    assert tied_with_first(np.stack([first, *[below] * 20])).all()


def _drawn_hits(generator, hardness, skill):
    """The six hits of each pair in a gallery of 1,000, both directions from one hardness."""
    own = skill + hardness + 0.6 * generator.normal(size=(2, len(hardness)))
    wrong = np.sort(generator.normal(size=200_000))
    above = 1 - np.searchsorted(wrong, own) / len(wrong)
    ranks = generator.binomial(999, above)
    return np.concatenate([ranks < cutoff for cutoff in (1, 5, 10)])


def test_intervals_cover_the_population_and_equal_entries_differ_in_5_percent():
    """200 test sets of 500: of a nominal 95 and 5 %, luck alone leaves 4 points either way.

    Every pair of the population is there twice, with the entries exchanged: they are equal.
    """
    generator = np.random.default_rng(11)
    hardness = generator.normal(size=20_000)
    first, second = (_drawn_hits(generator, hardness, 1.75) for _ in range(2))
    first, second = np.hstack([first, second]), np.hstack([second, first])
    truth = 100 * first.mean(axis=1)
    held = np.zeros(8)
    found = np.zeros(7)
    for _ in range(200):
        chosen = generator.integers(0, first.shape[1], 500)
        one, other = first[:, chosen], second[:, chosen]
        ends = [recall_interval(float(count), 500) for count in one.sum(axis=1)]
        held[:6] += [low <= share <= high for (low, high), share in zip(ends, truth, strict=True)]
        whole = bootstrap_rsum(one.sum(axis=0).astype(np.float64), replicates=1000)
        held[6] += whole.low <= truth.sum() <= whole.high
        difference = (one.sum(axis=0) - other.sum(axis=0)).astype(np.float64)
        apart = bootstrap_rsum(difference, replicates=1000)
        held[7] += apart.low <= 0 <= apart.high
        only = (one & ~other).sum(axis=1), (other & ~one).sum(axis=1)
        found[:6] += [mcnemar(int(a), int(b)) <= 0.05 for a, b in zip(*only, strict=True)]
        found[6] += sign_flip(difference, flips=2000) <= 0.05
    assert (np.abs(held / 200 - 0.95) < 0.045).all()
    assert (found[:6] / 200 < 0.08).all()
    assert found[6] / 200 == pytest.approx(0.05, abs=0.045)


def test_entries_that_flips_cannot_find_different_are_not_flipped():
    generator = np.random.default_rng(1)
    matrix = generator.integers(0, 7, (320, 60)).astype(float)
    matrix[0] = 6.0
    matrix[1:40] = 0.0
    expected = p_against_first(matrix) > SIGNIFICANT
    assert tied_with_first(matrix).tolist() == expected.tolist()
