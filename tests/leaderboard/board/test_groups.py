"""Figures of languages and sites are those of the whole table on their queries alone."""

from dataclasses import replace

import numpy as np
import pytest

from leaderboard.board.exports import rows_of
from leaderboard.board.tables import make_board, seeds_of
from leaderboard.metrics import CUTOFFS, RECALLS, count_ranks
from leaderboard.scoring.evaluate import figures_of
from leaderboard.scoring.groups import groups_of
from leaderboard.scoring.result import RankRecord, query_ranks
from leaderboard.store.entries import entry_of
from leaderboard.submission.archive import Training
from tests.leaderboard.conftest import NO_DUPLICATES, proven

PAIRS = 90
LABELS = ["en"] * 40 + ["de"] * 25 + ["fr"] * 19 + ["it"] * 6
RNG = np.random.default_rng(3)


def _record(matrix):
    i2t, t2i = (query_ranks(way) for way in count_ranks(matrix))
    return RankRecord(i2t=i2t, t2i=t2i)


def _slow_recalls(matrix, rows):
    """Recalls of rows and columns, in percent, by sorting each query's candidates; no ties."""
    found = []
    for scores in (matrix, matrix.T):
        places = [np.flatnonzero(np.argsort(-scores[row]) == row)[0] for row in rows]
        found += [100 * np.mean([place < k for place in places]) for k in CUTOFFS]
    return found


def test_recalls_of_a_group_are_those_of_its_queries_among_all_candidates():
    matrix = RNG.normal(size=(PAIRS, PAIRS)) + 2 * np.eye(PAIRS)
    record = _record(matrix)
    groups = groups_of(record, LABELS)
    assert {one["name"]: one["pairs"] for one in groups} == {"en": 40, "de": 25, "2 others": 25}
    for group in groups:
        own = [n for n, label in enumerate(LABELS) if label == group["name"]] or range(65, 90)
        expected = _slow_recalls(matrix, list(own))
        assert [group[name] for name in RECALLS] == pytest.approx(expected)
        assert group["low"] <= group["rsum"] <= group["high"]
    weights = [group["pairs"] for group in groups]
    mean = np.average([group["rsum"] for group in groups], weights=weights)
    assert mean == pytest.approx(figures_of(record, NO_DUPLICATES)["rsum"])


def test_small_groups_are_put_together_and_too_few_left_out():
    record = _record(RNG.normal(size=(PAIRS, PAIRS)))

    def names(labels):
        return [group["name"] for group in groups_of(record, labels)]

    assert names(["en"] * 80 + ["de"] * 10) == ["en"], "too few others"
    assert names([f"{n}" for n in range(PAIRS)]) == [], "others alone are the whole"
    assert names(LABELS[1:]) == [], "labels of other queries"
    large = _record(RNG.normal(size=(600, 600)))
    many = [f"{n:02}" for n in range(30) for _ in range(20)]
    assert [group["name"] for group in groups_of(large, many)][-1] == "18 others"


def _run(entry, n, seeds, rsum=None, authors=("Ann",), **training):
    changes = {"training": Training(seeds=seeds, **training), "authors": authors}
    changed = entry.result.model_copy(update={**changes, "rsum": rsum or 200.0 + n})
    return replace(entry_of(changed), name=f"{n:012x}")


def test_runs_that_differ_in_their_seeds_alone_have_a_mean(entry_on):
    entry = entry_on()
    runs = [_run(entry, n, (n,)) for n in range(3)]
    others = [
        _run(entry, 10, (9,), authors=("Bob",)),
        _run(entry, 11, (9,), authors=()),
        _run(entry, 12, ()),
        _run(entry, 13, (9,), ensemble_size=2),
        proven(_run(entry, 14, (7,), 600.0)),
    ]

    def found(entries):
        return seeds_of(rows_of(make_board("jieba", entries)))

    expected = dict.fromkeys([f"{n:012x}" for n in range(3)], "3 seeds: 201.0 ± 1.0")
    assert found([*runs, *others]) == expected, "a mean of claims does not stand at proof"
    assert found([*runs, _run(entry, 15, (1, 4))]) == {}, "a seed used twice"
