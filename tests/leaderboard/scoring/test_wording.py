"""Similarities made of the order of rows take no note of words; a method's do."""

import numpy as np
import pytest

from leaderboard.metrics import count_ranks, expected_hits, recalls
from leaderboard.scoring.checks import WORDS_READ, Known, check_matrix
from leaderboard.scoring.content import own_square
from leaderboard.scoring.list_checks import check_lists
from leaderboard.scoring.wording import shared_words, texts_of, words_read
from tests.leaderboard.scoring.similarities import OF_ROWS, worded

SIZE = 300


def _slow_shared_words(texts):
    words = sorted(set().union(*texts))
    weight = {word: np.log(len(texts) / sum(word in text for text in texts)) for word in words}
    vectors = np.array([[weight[word] * (word in text) for word in words] for text in texts])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors @ vectors.T


def test_shared_words_are_cosines_of_tf_idf():
    texts = [{1, 2}, {2, 3, 9}, {3}, {4, 5, 1}, {1, 2}]
    apart = ~np.eye(len(texts), dtype=bool)
    assert np.allclose(shared_words(texts)[apart], _slow_shared_words(texts)[apart], atol=1e-6)
    assert not shared_words([{row} for row in range(5)]).any()


def _codes(similarity, texts, owner=None):
    similarity = similarity.astype(np.float32)
    owner = np.arange(similarity.shape[1]) if owner is None else owner
    hits = [float(expected_hits(way, 1).sum()) for way in count_ranks(similarity, owner)]
    known = Known(owner, texts=texts)
    return [flag.code for flag in check_matrix(similarity, known, (hits[0], hits[1]))]


@pytest.mark.parametrize("seed", range(4))
def test_a_method_that_reads_words_is_not_flagged(seed):
    similarity, texts = worded(np.random.default_rng(seed), SIZE)
    assert words_read(own_square(similarity, np.arange(SIZE)), texts) > 4 * WORDS_READ
    assert _codes(similarity, texts) == []


@pytest.mark.parametrize("trick", OF_ROWS)
def test_similarities_made_of_the_order_of_rows_are_flagged(trick):
    draw = np.random.default_rng(0)
    _, texts = worded(draw, SIZE)
    forged = OF_ROWS[trick](draw, SIZE)
    assert recalls(forged).rsum > 400
    assert "words-unread" in _codes(forged, texts)
    lists = tuple(np.argsort(-way, axis=1)[:, :50] for way in (forged, forged.T))
    found = check_lists(lists, Known(np.arange(SIZE), texts=texts), (1.0, 1.0))
    assert "words-unread" in [flag.code for flag in found]


def test_lists_of_a_method_that_reads_words_are_not_flagged():
    similarity, texts = worded(np.random.default_rng(1), SIZE)
    for depth in (10, 50, SIZE):
        lists = tuple(np.argsort(-way, axis=1)[:, :depth] for way in (similarity, similarity.T))
        hits = tuple(float((way[:, 0] == np.arange(SIZE)).sum()) for way in lists)
        assert check_lists(lists, Known(np.arange(SIZE), texts=texts), hits) == ()


def test_captions_of_an_image_are_read_together():
    owner = np.array([2, 0, 2, 1])
    texts = [[1], [2, 2], [3], [4]]
    assert texts_of(texts, owner, 0, 3) == [{2}, {4}, {1, 3}]
    assert texts_of(texts, owner, 1, 2) == [{4}, {1, 3}]


def test_what_stands_out_by_chance_alone_is_not_asked_for_words():
    """Untrained scores have no pairs that stand out, and too few texts say nothing."""
    draw = np.random.default_rng(0)
    _, texts = worded(draw, SIZE)
    assert _codes(draw.normal(size=(SIZE, SIZE)), texts) == []
    forged = OF_ROWS["a random vector for each pair"](draw, SIZE)
    same = [{row % 30} for row in range(SIZE)]
    assert "words-unread" not in _codes(forged, same)
    assert words_read(np.zeros((SIZE, SIZE)), texts) is None
