"""Intervals: known values, the closed form, and how often they hold the truth."""

import numpy as np
import pytest

from leaderboard.metrics import recalls
from leaderboard.uncertainty import (
    bootstrap_rsum,
    closed_form_deviation,
    least_deviation,
    wilson,
)


@pytest.mark.parametrize(
    ("hits", "expected"),
    [(129.0, (11.0, 15.1)), (160.0, (13.9, 18.4)), (295.0, (26.8, 32.4)), (369.0, (34.0, 39.9))],
)
def test_wilson_gives_the_intervals_of_the_tables(hits, expected):
    assert wilson(hits, 1000) == pytest.approx(expected, abs=0.05)


def test_wilson_stays_within_0_and_100():
    assert wilson(0.0, 20)[0] == 0
    assert wilson(20.0, 20)[1] == 100


def _now_like(seed, size=1000):
    generator = np.random.default_rng(seed)
    return recalls(generator.standard_normal((size, size)) + 2 * np.eye(size))


def test_the_bootstrap_agrees_with_the_closed_form():
    per_image = _now_like(0).per_image
    found = bootstrap_rsum(per_image)
    assert found.deviation == pytest.approx(closed_form_deviation(per_image), rel=0.03)
    middle = 100 * per_image.mean()
    assert found.low < middle < found.high
    assert found.high - found.low == pytest.approx(2 * 1.96 * found.deviation, rel=0.05)


def test_drawing_counts_of_values_is_drawing_pairs():
    """The slow way: draw pairs with replacement, add up their hits."""
    per_image = _now_like(1, 60).per_image
    generator = np.random.default_rng(5)
    slow = [100 * generator.choice(per_image, 60).mean() for _ in range(4000)]
    fast = bootstrap_rsum(per_image, replicates=4000)
    assert fast.deviation == pytest.approx(np.std(slow), rel=0.06)
    assert (fast.low, fast.high) == pytest.approx(np.percentile(slow, [2.5, 97.5]), abs=6)


def test_the_bootstrap_is_the_same_every_time():
    per_image = _now_like(2, 200).per_image
    assert bootstrap_rsum(per_image) == bootstrap_rsum(per_image)
    assert bootstrap_rsum(per_image) != bootstrap_rsum(per_image, seed=1)


def test_a_perfect_score_has_an_interval_of_no_width():
    found = bootstrap_rsum(recalls(np.eye(30)).per_image)
    assert (found.low, found.high, found.deviation) == (600, 600, 0)


def test_the_least_deviation_is_that_of_two_independent_directions():
    """The two directions' own variances added, from the nested hits of each."""
    found = _now_like(3)
    variance = 0.0
    for ranks in found.ranks:
        hits = sum((ranks.greater < cutoff).astype(float) for cutoff in (1, 5, 10))
        variance += hits.var() / 1000
    shares = [{k: way.recall(k) for k in (1, 5, 10)} for way in (found.i2t, found.t2i)]
    assert least_deviation([*shares], 1000) == pytest.approx(100 * variance**0.5)
    assert least_deviation([*shares], 1000) < closed_form_deviation(found.per_image)


def test_wilson_holds_the_truth_nineteen_times_in_twenty():
    generator = np.random.default_rng(7)
    for share in (0.05, 0.13, 0.37):
        draws = generator.binomial(1000, share, 4000)
        ends = np.array([wilson(float(hits), 1000) for hits in draws])
        held = ((ends[:, 0] <= 100 * share) & (100 * share <= ends[:, 1])).mean()
        assert 0.93 <= held <= 0.97
