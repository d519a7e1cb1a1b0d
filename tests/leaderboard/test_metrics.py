"""Recalls: hand-worked values, the slow obvious way, and what must not change a score."""

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
    expected_hits,
    explained_ties,
    fold_recalls,
    ndcg,
    recalls,
    summarise,
    tie_width,
)

RANKS = ("greater", "equal", "later", "right")


def _matrix(draw_values, size):
    return np.array(draw_values, dtype=np.float64).reshape(size, size)


@st.composite
def tied_matrices(draw, most=6):
    """Square matrices of few distinct values, so that ties abound."""
    size = draw(st.integers(1, most))
    return _matrix(draw(st.lists(st.integers(0, 3), min_size=size**2, max_size=size**2)), size)


def _slow_hits(line, right, cutoff):
    """The share of all orders of the candidates that, sorted, have a right one in the first K."""
    found = []
    for order in permutations(range(len(line))):
        ranked = sorted(order, key=lambda place: -line[place])
        found.append(any(place in right for place in ranked[:cutoff]))
    return Fraction(sum(found), len(found))


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


@settings(max_examples=40)
@given(tied_matrices(12))
def test_the_counts_are_those_of_the_obvious_loop(similarity):
    for ranks, matrix in zip(count_ranks(similarity), (similarity, similarity.T), strict=True):
        for row, line in enumerate(matrix):
            assert ranks.greater[row] == sum(line > line[row])
            assert ranks.equal[row] == sum(line == line[row]) - 1
            order = np.argsort(line, kind="stable")[::-1]
            assert ranks.greater[row] + ranks.later[row] == np.flatnonzero(order == row)[0]


def test_the_bounds_enclose_the_expectation_and_the_argsort():
    similarity = np.random.default_rng(3).integers(0, 6, (40, 40)).astype(np.float32)
    found = recalls(similarity)
    assert found.rsum_pessimistic < found.rsum < found.rsum_optimistic
    assert found.rsum_pessimistic <= found.rsum_argsort <= found.rsum_optimistic
    width = found.rsum_optimistic - found.rsum_pessimistic
    assert tie_width(found.ranks) == pytest.approx(width)


@pytest.mark.parametrize("n_pairs", [3, 7, 96, 1000])
def test_a_constant_matrix_scores_exactly_chance(n_pairs):
    found = recalls(np.zeros((n_pairs, n_pairs), np.float32))
    for way in (found.i2t, found.t2i):
        for cutoff in CUTOFFS:
            assert way.recall(cutoff) == min(100.0, float(Fraction(100 * cutoff, n_pairs)))
    assert found.rsum_optimistic == 600
    assert found.rsum_pessimistic == sum(200.0 for cutoff in CUTOFFS if cutoff >= n_pairs)


def test_the_identity_scores_600():
    found = recalls(np.eye(50, dtype=np.float32))
    assert found.rsum == found.rsum_pessimistic == 600
    assert found.i2t.mrr == found.i2t.median_rank == found.i2t.mean_rank == 1


def _random(seed=0, size=90):
    generator = np.random.default_rng(seed)
    return np.round(generator.standard_normal((size, size)) + 1.5 * np.eye(size), 2)


def test_reordering_the_pairs_together_leaves_the_score():
    similarity = _random()
    order = np.random.default_rng(1).permutation(len(similarity))
    shuffled = recalls(similarity[np.ix_(order, order)])
    found = recalls(similarity)
    assert (shuffled.i2t, shuffled.t2i) == (found.i2t, found.t2i)
    assert (shuffled.per_image == found.per_image[order]).all()


def test_the_height_of_a_block_leaves_duplicates_and_their_ties(monkeypatch):
    """Five blocks of eight rows: what is summed over rows is summed over all of them."""
    draw = np.random.default_rng(0)
    similarity = draw.integers(0, 4, (40, 40)) / 4
    labels = draw.integers(0, 12, 40), draw.integers(0, 12, 40), np.arange(40)
    ranks = summarise(*count_duplicate_aware(similarity, *labels))
    ties = explained_ties(similarity, *labels)
    monkeypatch.setattr(metrics, "_BLOCK_BYTES", 0)
    in_blocks = summarise(*count_duplicate_aware(similarity, *labels))
    assert (in_blocks.i2t, in_blocks.t2i) == (ranks.i2t, ranks.t2i)
    for whole, parts in zip(ties, explained_ties(similarity, *labels), strict=True):
        assert whole.any()
        np.testing.assert_array_equal(parts, whole)


def test_ties_over_several_blocks_are_counted_in_all_of_them(monkeypatch):
    similarity = np.random.default_rng(1).integers(0, 3, (40, 40)).astype(np.float32)
    whole = count_ranks(similarity)
    monkeypatch.setattr(metrics, "_BLOCK_BYTES", 0)
    for ways, name in product(zip(count_ranks(similarity), whole, strict=True), RANKS):
        parts, expected = (getattr(way, name) for way in ways)
        assert expected.any()
        np.testing.assert_array_equal(parts, expected, err_msg=name)


def test_values_that_only_float64_tells_apart_are_no_ties():
    similarity = np.array([[1.0, 1.0 - 1e-12], [1.0 + 1e-12, 1.0]])
    assert [way.equal.any() for way in count_ranks(similarity)] == [False, False]
    assert (recalls(similarity).i2t.recall(1), recalls(similarity).t2i.recall(1)) == (50, 50)


@pytest.mark.parametrize(
    ("line", "owner", "mean"),
    [
        # Two right of four that tie: 1/2 to be first, 1/3 second, 1/6 third.
        ([1, 1, 1, 1], [0, 0, 1, 1], 1 / 2 + 1 / 3 / 2 + 1 / 6 / 3),
        # Two right of three, behind a wrong one: 2/3 second, 1/3 third.
        ([1, 1, 2, 1], [0, 0, 1, 1], 2 / 3 / 2 + 1 / 3 / 3),
        # Three right of five: 3/5, 3/10, 1/10.
        ([1, 1, 1, 1, 1], [0, 0, 0, 1, 1], 3 / 5 + 3 / 10 / 2 + 1 / 10 / 3),
    ],
)
def test_the_reciprocal_rank_of_several_right_ones_by_hand(line, owner, mean):
    second = np.where(np.array(owner) == 1, 3, 0)  # its own come first: reciprocal rank 1
    similarity = np.array([line, second], np.float64)
    assert recalls(similarity, np.array(owner)).i2t.mrr == pytest.approx((mean + 1) / 2)


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


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_the_float_type_and_memory_order_leave_the_score(kind):
    similarity = np.random.default_rng(2).integers(0, 50, (64, 64)).astype(kind)
    expected = recalls(similarity.astype(np.float64)).rsum
    assert recalls(similarity).rsum == expected
    assert recalls(np.asfortranarray(similarity)).rsum == expected


@pytest.mark.parametrize(
    ("value", "place"), [(np.nan, (0, 0)), (np.inf, (3, 5)), (-np.inf, (199, 199))]
)
def test_a_value_that_is_not_finite_is_refused(value, place):
    similarity = np.zeros((200, 200))
    similarity[place] = value
    with pytest.raises(ValueError, match="not finite"):
        recalls(similarity)


@pytest.mark.parametrize("shape", [(0, 0), (3, 4), (4, 3)])
def test_a_matrix_that_is_not_square_is_refused(shape):
    with pytest.raises(ValueError, match="as many images as captions"):
        recalls(np.zeros(shape))


def test_the_pairs_mean_hits_are_rsum():
    found = recalls(_random())
    assert 100 * found.per_image.mean() == pytest.approx(found.rsum, abs=1e-9)


def test_several_right_candidates_follow_the_hypergeometric():
    """Two right among four tied, one place: 1/2; two places: 1 - C(2,2)/C(4,2) = 5/6."""
    ranks = Ranks(*(np.array([value]) for value in (0, 2, 0, 2)))
    assert expected_hits(ranks, 1)[0] == pytest.approx(1 / 2)
    three = Ranks(*(np.array([value]) for value in (3, 2, 0, 2)))
    assert expected_hits(three, 5)[0] == pytest.approx(5 / 6)


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
def test_several_captions_an_image_equal_the_mean_over_all_orders_of_the_tied(drawn):
    similarity, owner = drawn
    images, captions = similarity.shape
    found = recalls(similarity, owner)
    total = Fraction(0)
    for cutoff in CUTOFFS:
        i2t = sum(
            _slow_hits(similarity[i], set(np.flatnonzero(owner == i)), cutoff)
            for i in range(images)
        )
        t2i = sum(_slow_hits(similarity[:, j], {owner[j]}, cutoff) for j in range(captions))
        assert found.i2t.recall(cutoff) == float(100 * i2t / images)
        assert found.t2i.recall(cutoff) == float(100 * t2i / captions)
        total += i2t / images + t2i / captions
    assert found.rsum == float(100 * total)


def _slow_ndcg(line, right):
    """The mean nDCG@10 over all orders of the candidates, sorted."""
    ideal = sum(1 / np.log2(place + 2) for place in range(min(10, len(right))))
    found = []
    for order in permutations(range(len(line))):
        ranked = sorted(order, key=lambda place: -line[place])[:10]
        found.append(sum(1 / np.log2(n + 2) for n, place in enumerate(ranked) if place in right))
    return np.mean(found) / ideal


@given(owned_matrices())
@settings(max_examples=40)
def test_ndcg_is_the_mean_over_all_orders_of_the_tied(drawn):
    """Also where images have several captions, and not equally many."""
    similarity, owner = drawn
    found = recalls(similarity, owner)
    i2t = [_slow_ndcg(row, {*np.flatnonzero(owner == i)}) for i, row in enumerate(similarity)]
    t2i = [_slow_ndcg(column, {owner[j]}) for j, column in enumerate(similarity.T)]
    assert found.i2t.ndcg == pytest.approx(np.mean(i2t))
    assert found.t2i.ndcg == pytest.approx(np.mean(t2i))


@pytest.mark.parametrize(
    ("greater", "equal", "right"), [(0, 3, 1), (8, 4, 1), (9, 2, 2), (10, 1, 1)]
)
def test_ndcg_stops_at_the_tenth_place(greater, equal, right):
    """A right candidate is at each place of its tie equally often; places beyond give nothing."""
    places = range(greater + 1, greater + equal + right + 1)
    gains = [1 / np.log2(place + 1) if place <= 10 else 0 for place in places]
    ranks = Ranks(*(np.array([value] * right) for value in (greater, equal, 0, right)))
    ideal = sum(1 / np.log2(place + 2) for place in range(right))
    found = ndcg(ranks, np.zeros(right, np.int64))
    assert found == pytest.approx(right * np.mean(gains) / ideal)


@pytest.mark.parametrize("owner", [[0, 0, 0], [0, 2, 1], [0, -1, 1]])
def test_owners_that_do_not_fit_the_matrix_are_refused(owner):
    with pytest.raises(ValueError, match=r"owners, .* expected one for each of 3 captions"):
        count_ranks(np.zeros((2, 3)), np.array(owner))


@given(st.data())
@settings(max_examples=40)
def test_duplicates_of_several_captions_count_as_the_slow_way_says(data):
    similarity, owner = data.draw(owned_matrices())
    images, captions = (
        np.array(data.draw(st.lists(st.integers(0, 2), min_size=size, max_size=size)))
        for size in similarity.shape
    )
    told = [set(captions[owner == image]) for image in range(len(images))]
    right = np.array(
        [
            [images[i] == images[owner[j]] or captions[j] in told[i] for j in range(len(owner))]
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
            owner[j] != i and captions[j] in told[i] and line[j] == best for j in range(len(owner))
        )
    for j, own in enumerate(owner):
        column = similarity[:, j]
        tied = (column == column[own]) & (images == images[own])
        assert t2i[j] == sum(tied) - 1


@given(owned_matrices())
@settings(max_examples=40)
def test_the_mean_reciprocal_rank_is_the_mean_over_all_orders(drawn):
    similarity, owner = drawn
    found = recalls(similarity, owner)
    slow = []
    for image, line in enumerate(similarity):
        right = set(np.flatnonzero(owner == image))
        firsts = []
        for order in permutations(range(len(line))):
            ranked = sorted(order, key=lambda place, line=line: -line[place])
            firsts.append(1 + min(ranked.index(place) for place in right))
        slow.append((np.mean([1 / first for first in firsts]), np.mean(firsts)))
    reciprocal, rank = np.array(slow).mean(axis=0)
    assert found.i2t.mrr == pytest.approx(reciprocal)
    untied = not any(way.equal.any() for way in found.ranks[:1])
    assert not untied or found.i2t.mean_rank == pytest.approx(rank)


@given(owned_matrices())
@settings(max_examples=40)
def test_the_argsort_value_is_the_fields_with_several_captions(drawn):
    """The field takes the best place of an image's captions after a stable argsort, reversed."""
    similarity, owner = drawn
    i2t, t2i = count_ranks(similarity, owner)
    for image, line in enumerate(similarity):
        order = np.argsort(line, kind="stable")[::-1]
        first = np.flatnonzero(owner[order] == image)[0]
        assert i2t.greater[image] + i2t.later[image] == first
    for caption, own in enumerate(owner):
        order = np.argsort(similarity[:, caption], kind="stable")[::-1]
        assert t2i.greater[caption] + t2i.later[caption] == np.flatnonzero(order == own)[0]
