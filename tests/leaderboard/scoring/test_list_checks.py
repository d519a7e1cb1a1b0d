"""Ranked lists: tricks with places have their flag, lists of honest matrices have none."""

import numpy as np
import pytest

from leaderboard.scoring.checks import CODES, OF_LISTS, Known
from leaderboard.scoring.evaluate import score
from leaderboard.scoring.list_checks import check_lists
from leaderboard.submission.archive import new_submission, pack_arrays
from tests.leaderboard.conftest import SIZES
from tests.leaderboard.scoring.similarities import (
    HONEST,
    assigned,
    band,
    mild,
    raised,
    repeats,
    with_repeats,
)

SIZE = 300


def _lists(similarity, depth):
    return tuple(
        np.argsort(-values, axis=1, kind="stable")[:, :depth]
        for values in (similarity, similarity.T)
    )


def _codes(lists, **known):
    hits = [float((way[:, 0] == np.arange(len(way))).sum()) for way in lists]
    found = check_lists(lists, Known(np.arange(len(lists[0])), **known), (hits[0], hits[1]))
    assert {flag.code for flag in found} <= set(OF_LISTS)
    return [flag.code for flag in found]


@pytest.mark.parametrize("kind", HONEST)
def test_lists_of_an_honest_matrix_have_no_flag(kind):
    similarity = HONEST[kind](np.random.default_rng(0), SIZE).astype(np.float64)
    for depth in (10, SIZE):
        assert _codes(_lists(similarity, depth)) == []


@pytest.mark.parametrize("depth", [10, 30])
def test_lists_of_the_next_rows_are_flagged(depth):
    after = (np.arange(SIZE)[:, None] + np.arange(depth)) % SIZE
    around = (after - depth // 2) % SIZE
    shuffled = np.random.default_rng(0).permuted(around, axis=1)
    for lists in (after, around, shuffled):
        assert "index-local" in _codes((lists, lists))


def test_lists_filled_up_at_random_behind_the_own_pair_are_flagged():
    draw = np.random.default_rng(0)

    def made():
        values = draw.random((SIZE, SIZE)) + np.eye(SIZE) * (draw.random(SIZE) < 0.6)
        return np.argsort(-values, axis=1)[:, :10]

    assert "unexplained-pairs" in _codes((made(), made()))


@pytest.mark.parametrize(
    ("code", "depth", "make"),
    [
        ("index-local", 10, lambda draw: band(draw, SIZE, 3, 0.1)),
        ("index-local", SIZE, lambda draw: band(draw, SIZE, 3, 0.6)),
        ("index-local", SIZE, lambda draw: band(draw, SIZE, 100, 0.01)),
        ("unexplained-pairs", SIZE, lambda draw: raised(draw, SIZE, 3)),
        ("one-to-one", 10, lambda draw: assigned(mild(draw, SIZE), 3)),
    ],
)
def test_lists_of_a_forged_matrix_are_flagged(code, depth, make):
    assert code in _codes(_lists(make(np.random.default_rng(0)), depth))


def test_lists_that_tell_identical_captions_apart_are_flagged():
    draw = np.random.default_rng(0)
    labels = repeats(draw, SIZE)
    honest = with_repeats(mild(draw, SIZE), labels)
    forged = _lists(honest + 1e-3 * np.eye(SIZE), 20)
    assert "duplicates-apart" in _codes(forged, captions=labels)
    jittered = honest + 1e-6 * draw.normal(size=(SIZE, SIZE))
    assert _codes(_lists(jittered, 20), captions=labels) == []


def test_a_result_names_the_flags_that_could_not_be_checked(tmp_path, release):
    """Those of ranked lists need values; a few pairs are not checked at all."""
    meta = new_submission(release, "jieba", "test", "Mine")
    lists = np.tile(np.arange(10, dtype=np.int32), (SIZES["test"], 1))
    pair = meta.model_copy(update={"payload": "ranked"})
    pack_arrays(tmp_path / "x.zip", [lists, lists], pair)
    assert score(tmp_path / "x.zip", release).unchecked == CODES
    assert not {"low-precision", "many-ties", "identity-like"} & set(OF_LISTS)
