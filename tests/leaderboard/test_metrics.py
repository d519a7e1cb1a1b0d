"""Recalls: values worked by hand, slow oracles, and invariances."""

from fractions import Fraction
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leaderboard import metrics
from leaderboard.metrics import (
    CUTOFFS,
    Ranks,
    count_duplicate_aware,
    count_ranks,
    explained_ties,
    fold_recalls,
    ndcg,
    recalls,
    summarise,
    tie_width,
)

RANKS = ("greater", "equal", "later", "right")


def _places(line, right):
    """Places of the right candidates, from 0, after sorting each order of all candidates."""
    orders = np.array(list(permutations(range(len(line)))))
    ranked = np.take_along_axis(orders, np.argsort(-line[orders], axis=1, kind="stable"), axis=1)
    return np.nonzero(np.isin(ranked, list(right)))[1].reshape(len(orders), -1)


def _slow_hits(line, right, cutoff):
    """Share of the orders of tied candidates with a right one among the first K."""
    first = _places(line, right)[:, 0]
    return Fraction(int((first < cutoff).sum()), len(first))


def test_a_matrix_worked_by_hand():
    """Row 0: .9 first. Row 1: its .5 is beaten by .6, so rank 2. Row 2: .1 ties with .1: half.

    i2t R@1 = (1 + 0 + 1/2) / 3 = 50 %. Columns: .9 first; .5 first; .1 behind .3 and .2: rank 3.
    t2i R@1 = 2/3. All R@5 and R@10 are 100 %, as there are only three candidates.
    """
    similarity = np.array([[0.9, 0.0, 0.3], [0.6, 0.5, 0.2], [0.0, 0.1, 0.1]])
    found = recalls(similarity)
    assert found.i2t.hits[1] == Fraction(3, 2)
    assert found.i2t.recall(1) == 50
    assert found.i2t.optimistic(1) == pytest.approx(200 / 3)
    assert found.i2t.pessimistic(1) == pytest.approx(100 / 3)
    assert found.t2i.hits == {1: 2, 5: 3, 10: 3}
    assert found.rsum == float(50 + Fraction(200, 3) + 400)
    # 0-based middle ranks 0, 1, 0.5 and 0, 0, 2
    assert (found.i2t.median_rank, found.i2t.mean_rank) == (1.0, 1.5)
    assert (found.t2i.median_rank, found.t2i.mean_rank) == (1.0, 1 + 2 / 3)
    assert found.i2t.mrr == pytest.approx((1 + 1 / 2 + (1 + 1 / 2) / 2) / 3)


def test_the_bounds_enclose_the_expectation_and_the_argsort():
    similarity = np.random.default_rng(3).integers(0, 6, (40, 40)).astype(np.float32)
    found = recalls(similarity)
    assert found.rsum_pessimistic < found.rsum < found.rsum_optimistic
    assert found.rsum_pessimistic <= found.rsum_argsort <= found.rsum_optimistic
    width = found.rsum_optimistic - found.rsum_pessimistic
    assert tie_width(found.ranks) == pytest.approx(width)


def test_a_constant_matrix_scores_exactly_chance():
    for n_pairs in (3, 7, 96):
        found = recalls(np.zeros((n_pairs, n_pairs), np.float32))
        for way, cutoff in product((found.i2t, found.t2i), CUTOFFS):
            assert way.recall(cutoff) == min(100.0, float(Fraction(100 * cutoff, n_pairs)))
        assert found.rsum_optimistic == 600
        assert found.rsum_pessimistic == sum(200.0 for cutoff in CUTOFFS if cutoff >= n_pairs)


def test_the_height_of_a_block_leaves_ties_and_duplicates(monkeypatch):
    """Sums over rows are over all five blocks of eight rows."""
    draw = np.random.default_rng(0)
    similarity = draw.integers(0, 3, (40, 40)).astype(np.float32)
    labels = draw.integers(0, 12, 40), draw.integers(0, 12, 40), np.arange(40)

    def counted():
        plain, aware = count_ranks(similarity), count_duplicate_aware(similarity, *labels)
        yield from (getattr(way, name) for way in plain for name in RANKS)
        yield from (getattr(way, name) for way in aware for name in RANKS if name != "later")
        yield from explained_ties(similarity, *labels)

    whole = list(counted())
    monkeypatch.setattr(metrics, "_BLOCK_BYTES", 0)
    for parts, expected in zip(counted(), whole, strict=True):
        assert expected.any()
        np.testing.assert_array_equal(parts, expected)


def test_values_that_only_float64_tells_apart_are_no_ties():
    similarity = np.array([[1.0, 1.0 - 1e-12], [1.0 + 1e-12, 1.0]])
    assert [way.equal.any() for way in count_ranks(similarity)] == [False, False]
    assert (recalls(similarity).i2t.recall(1), recalls(similarity).t2i.recall(1)) == (50, 50)


def test_folds_are_the_scores_of_their_own_pairs():
    """Five images of two captions each, by two: two folds, and a fifth image that is left out."""
    similarity = np.random.default_rng(3).random((5, 10))
    owner = np.array([4, 3, 2, 1, 0, 0, 1, 2, 3, 4])
    found = fold_recalls(similarity, owner, 2)
    first = recalls(similarity[:2][:, [3, 4, 5, 6]], np.array([1, 0, 0, 1]))
    second = recalls(similarity[2:4][:, [1, 2, 7, 8]], np.array([1, 0, 0, 1]))
    assert [fold.i2t for fold in found] == [first.i2t, second.i2t]
    assert [fold.t2i for fold in found] == [first.t2i, second.t2i]


def test_a_column_of_many_greater_values_does_not_overflow():
    """Every row but the last beats it in column 999: 999 is more than a byte holds."""
    similarity = np.zeros((1000, 1000), np.float32)
    similarity[:, 999] = 1
    similarity[999, 999] = 0.5
    assert count_ranks(similarity)[1].greater[999] == 999


def test_the_float_type_and_memory_order_leave_the_score():
    draw = np.random.default_rng(2).integers(0, 50, (64, 64))
    expected = recalls(draw.astype(np.float64)).rsum
    for kind in (np.float16, np.float32, np.float64):
        assert recalls(draw.astype(kind)).rsum == expected
        assert recalls(np.asfortranarray(draw.astype(kind))).rsum == expected


def test_a_perfect_scorer_gets_half_on_two_identical_captions():
    """Pairs 0 and 1 share a caption, so their columns are equal: each row ties once."""
    similarity = np.array([[1.0, 1, 0], [0.9, 0.9, 0], [0, 0, 1]])
    labels = np.array([0, 0, 1])
    ranks = count_ranks(similarity)
    assert summarise(*ranks).i2t.hits[1] == 2
    explained = explained_ties(similarity, np.arange(3), labels, np.arange(3))
    assert tie_width(ranks) > 0
    assert tie_width(ranks, explained) == 0
    aware = summarise(*count_duplicate_aware(similarity, np.arange(3), labels, np.arange(3)))
    assert aware.i2t.hits[1] == 3


@st.composite
def owned_matrices(draw):
    """Few values, 1 to 3 images, up to 6 captions of any owners in any order."""
    images = draw(st.integers(1, 3))
    more = draw(st.lists(st.integers(0, images - 1), max_size=6 - images))
    owner = np.array(draw(st.permutations([*range(images), *more])))
    values = st.lists(st.integers(0, 3), min_size=images * len(owner), max_size=images * len(owner))
    return np.array(draw(values), dtype=np.float32).reshape(images, -1), owner


@given(owned_matrices())
@settings(max_examples=40)
def test_every_figure_is_the_mean_over_all_orders_of_the_tied(drawn):
    """Images have one or more captions; rsum_argsort equals the usual argsort."""
    similarity, owner = drawn
    found = recalls(similarity, owner)
    captions = [{*np.flatnonzero(owner == image)} for image in range(len(similarity))]
    total = Fraction(0)
    for way, ranks, lines, rights in (
        (found.i2t, found.ranks[0], similarity, captions),
        (found.t2i, found.ranks[1], similarity.T, [{image} for image in owner]),
    ):
        queries = list(zip(lines, rights, strict=True))
        for cutoff in CUTOFFS:
            hits = sum(_slow_hits(line, right, cutoff) for line, right in queries)
            assert way.hits[cutoff] == hits
            total += hits / len(lines)
        places = [_places(line, right) for line, right in queries]
        assert way.mean_rank == pytest.approx(np.mean([own[:, 0].mean() + 1 for own in places]))
        assert way.mrr == pytest.approx(np.mean([(1 / (own[:, 0] + 1)).mean() for own in places]))
        gains = [(1 / np.log2(own + 2)).sum(axis=1) for own in places]
        ideal = [(1 / np.log2(np.arange(len(right)) + 2)).sum() for right in rights]
        shares = [own.mean() / most for own, most in zip(gains, ideal, strict=True)]
        assert way.ndcg == pytest.approx(np.mean(shares))
        for row, (line, right) in enumerate(queries):
            order = np.argsort(line, kind="stable")[::-1]
            first = np.flatnonzero(np.isin(order, list(right)))[0]
            assert ranks.greater[row] + ranks.later[row] == first
    assert found.rsum == float(100 * total)
    assert 100 * found.per_image.mean() == pytest.approx(found.rsum, abs=1e-9)


def test_ndcg_stops_at_the_tenth_place():
    """A right candidate is at each place of its tie equally often; later places gain nothing."""
    for greater, equal, right in ((0, 3, 1), (8, 4, 1), (9, 2, 2), (10, 1, 1)):
        places = range(greater + 1, greater + equal + right + 1)
        gains = [1 / np.log2(place + 1) if place <= 10 else 0 for place in places]
        ranks = Ranks(*(np.array([value] * right) for value in (greater, equal, 0, right)))
        ideal = sum(1 / np.log2(place + 2) for place in range(right))
        found = ndcg(ranks, np.zeros(right, np.int64))
        assert found == pytest.approx(right * np.mean(gains) / ideal)


def test_invalid_matrices_and_owners_are_refused():
    for value, place in ((np.nan, (0, 0)), (np.inf, (3, 5)), (-np.inf, (199, 199))):
        similarity = np.zeros((200, 200))
        similarity[place] = value
        with pytest.raises(ValueError, match="not finite"):
            recalls(similarity)
    for shape in ((0, 0), (3, 4), (4, 3)):
        with pytest.raises(ValueError, match="as many images as captions"):
            recalls(np.zeros(shape))
    for owner in ([0, 0, 0], [0, 2, 1], [0, -1, 1]):
        with pytest.raises(ValueError, match="owners, expected one for each of 3 captions"):
            count_ranks(np.zeros((2, 3)), np.array(owner))


@given(st.data())
@settings(max_examples=40)
def test_duplicate_aware_counts_equal_those_of_a_slow_loop(data):
    similarity, owner = data.draw(owned_matrices())
    images, captions = (
        np.array(data.draw(st.lists(st.integers(0, 2), min_size=size, max_size=size)))
        for size in similarity.shape
    )
    texts = [set(captions[owner == image]) for image in range(len(images))]
    right = np.array(
        [
            [images[i] == images[owner[j]] or captions[j] in texts[i] for j in range(len(owner))]
            for i in range(len(images))
        ]
    )
    found = summarise(*count_duplicate_aware(similarity, images, captions, owner), owner)
    for way, matrix, mask in (
        (found.i2t, similarity, right),
        (found.t2i, similarity.T, right.T),
    ):
        for cutoff in (1, 5):
            assert way.hits[cutoff] == sum(
                _slow_hits(line, set(np.flatnonzero(mask[row])), cutoff)
                for row, line in enumerate(matrix)
            )
    i2t, t2i = explained_ties(similarity, images, captions, owner)
    for i, line in enumerate(similarity):
        best = line[owner == i].max()
        assert i2t[i] == sum(
            owner[j] != i and captions[j] in texts[i] and line[j] == best for j in range(len(owner))
        )
    for j, own in enumerate(owner):
        column = similarity[:, j]
        tied = (column == column[own]) & (images == images[own])
        assert t2i[j] == sum(tied) - 1


def test_all_figures_equal_those_of_the_usual_argsort_loop():
    """All values differ, so that every way of ranking agrees."""
    draw, size = np.random.default_rng(0), 151
    similarity = draw.permutation(size**2).reshape(size, size) / size**2
    similarity += 0.3 * draw.random(size) * np.eye(size)
    found = recalls(similarity)
    total = 0.0
    for way, values in ((found.i2t, similarity), (found.t2i, similarity.T)):
        ranks = np.array(
            [np.where(np.argsort(row)[::-1] == i)[0][0] for i, row in enumerate(values)]
        )
        expected = [100 * np.mean(ranks < cutoff) for cutoff in CUTOFFS]
        assert [way.recall(cutoff) for cutoff in CUTOFFS] == pytest.approx(expected)
        assert way.median_rank == np.floor(np.median(ranks)) + 1
        assert way.mean_rank == pytest.approx(ranks.mean() + 1)
        assert way.mrr == pytest.approx(np.mean(1 / (ranks + 1)))
        total += sum(expected)
    assert found.rsum == pytest.approx(total)
    assert found.rsum == found.rsum_argsort == found.rsum_optimistic == found.rsum_pessimistic
