"""Content that images and captions share: statistics of matrices whose answer is known."""

from statistics import NormalDist

import numpy as np
import pytest

from leaderboard.scoring.content import normal_scores, own_square, read_content
from tests.leaderboard.scoring.similarities import embedded, near, raised

SIZE = 400


@pytest.mark.parametrize("dimensions", [20, 100])
def test_dimensions_are_those_of_isotropic_embeddings(dimensions):
    content = read_content(embedded(np.random.default_rng(0), SIZE, 0.01, dimensions))
    assert 1 / content.inverse_dimensions == pytest.approx(dimensions, rel=0.1)
    assert content.own == pytest.approx(dimensions**0.5, rel=0.1)
    assert content.shared == pytest.approx(1, abs=0.02)
    assert content.dimensions_needed() == pytest.approx(dimensions, rel=0.1)


def test_noise_with_a_diagonal_needs_more_dimensions_than_there_are():
    content = read_content(raised(np.random.default_rng(0), SIZE, 6))
    assert content.own == pytest.approx(6, abs=0.2)
    assert content.dimensions_needed() > 2000
    assert content.dimensions() > 2000


def test_neighbours_are_explained_by_what_they_share_with_far_rows_and_a_band_is_not():
    draw = np.random.default_rng(0)
    sites = read_content(embedded(draw, SIZE, 0.5, groups=40, side_by_side=True))
    forged = read_content(np.exp(-near(SIZE) / 2) + 0.3 * draw.normal(size=(SIZE, SIZE)))
    assert sites.near[0] > 1
    assert sites.near_unexplained() < 10
    assert forged.near_unexplained() > 100


def _slowly(values):
    """Normal quantiles of the places of each row's values, the equal ones' mean place."""
    normal, n = NormalDist(), values.shape[1]
    return np.array(
        [
            [normal.inv_cdf(((row < one).sum() + (row <= one).sum()) / 2 / n) for one in row]
            for row in values
        ]
    )


def test_normal_scores_know_only_the_order_within_each_query():
    draw = np.random.default_rng(0)
    values = draw.normal(size=(40, 60)).round(1)
    scores = normal_scores(values)
    assert np.allclose(scores, _slowly(_slowly(values).T).T)
    scale = np.exp(3 * draw.normal(size=(40, 1)))
    assert np.array_equal(normal_scores(np.exp(values) * scale - scale), scores)
    assert np.corrcoef(scores.ravel(), values.ravel())[0, 1] > 0.9
    assert not normal_scores(np.zeros((9, 9))).any()


def test_the_square_has_the_mean_of_each_images_captions():
    """No caption is left out, whichever of them a forger leaves alone."""
    owner, values = np.array([2, 0, 1, 0, 2, 1]), np.random.default_rng(0).normal(size=(3, 6))
    scores = normal_scores(values)
    pairs = scores[:, [1, 3]], scores[:, [2, 5]], scores[:, [0, 4]]
    assert np.allclose(own_square(values, owner), np.stack([p.mean(axis=1) for p in pairs], 1))


def test_what_does_not_vary_has_no_content():
    assert read_content(np.eye(60)) is None
