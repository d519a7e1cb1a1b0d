"""Figures of languages and sites are those of the whole table on their queries alone."""

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from leaderboard.board.groups import group_rows, groups_of, missed_of, seeds_of
from leaderboard.board.tables import Row
from leaderboard.metrics import CUTOFFS, count_duplicate_aware, count_ranks
from leaderboard.scoring.evaluate import figures_of
from leaderboard.scoring.result import RankRecord, query_ranks
from leaderboard.store.entries import Filing
from leaderboard.submission.archive import Training
from tests.leaderboard.random_entries import make_entries

PAIRS = 90
LABELS = ["en"] * 40 + ["de"] * 25 + ["fr"] * 19 + ["it"] * 6
RNG = np.random.default_rng(3)


def _record(matrix, texts=None):
    rows = np.arange(len(matrix))
    i2t, t2i = count_ranks(matrix)
    aware = None
    if texts is not None:
        found = count_duplicate_aware(matrix, rows, texts, rows)
        aware = tuple(query_ranks(way, rows) for way in found)
    return RankRecord(i2t=query_ranks(i2t, rows), t2i=query_ranks(t2i, rows), duplicate_aware=aware)


def _matrix():
    return RNG.normal(size=(PAIRS, PAIRS)).round(1) + 2 * np.eye(PAIRS)  # rounded: it has ties


def _slow_recalls(matrix, rows, right):
    """Recalls of rows and columns, in percent, by sorting each query's candidates; no ties."""
    found = []
    for scores, own in ((matrix, right), (matrix.T, right.T)):
        places = [
            min(np.flatnonzero(own[row][np.argsort(-scores[row])])) for row in rows
        ]  # of the first right candidate
        found += [100 * np.mean([place < k for place in places]) for k in CUTOFFS]
    return found


def test_small_groups_are_put_together_and_every_query_is_in_one():
    rows = group_rows(LABELS)
    assert {name: len(own) for name, own in rows.items()} == {"en": 40, "de": 25, "2 others": 25}
    assert sorted(np.concatenate([*rows.values()])) == list(range(PAIRS))
    assert list(group_rows(["en"] * 20 + ["de"] * 19)) == ["en"], "too few others"
    assert group_rows(["en", "de"] * 19) == {}, "others alone are the whole"
    many = [f"{n:02}" for n in range(30) for _ in range(20)]
    assert list(group_rows(many))[-1] == "18 others"


def test_recalls_of_a_group_are_those_of_its_queries_among_all_candidates():
    matrix = RNG.normal(size=(PAIRS, PAIRS)) + 2 * np.eye(PAIRS)
    texts = np.arange(PAIRS) // 2  # captions come in pairs
    for group in groups_of(_record(matrix, texts), LABELS):
        rows = group_rows(LABELS)[group.name]
        assert group.recalls == pytest.approx(_slow_recalls(matrix, rows, np.eye(PAIRS) > 0))
        assert group.rsum == pytest.approx(sum(group.recalls))
        right = texts[:, None] == texts
        assert group.aware == pytest.approx(sum(_slow_recalls(matrix, rows, right)))
        assert group.aware >= group.rsum
        assert group.low <= group.rsum <= group.high
        assert group.pairs == len(rows)


def test_groups_weighted_by_their_pairs_make_the_figures_of_the_whole():
    record = _record(_matrix())
    figures, _ = figures_of(record)
    groups = groups_of(record, LABELS)
    weights = [group.pairs for group in groups]
    assert np.average([g.rsum for g in groups], weights=weights) == pytest.approx(figures["rsum"])
    for n, way in enumerate(("i2t", "t2i")):
        mean = np.average([group.ndcg[n] for group in groups], weights=weights)
        assert mean == pytest.approx(figures[way].ndcg)


def test_labels_of_other_queries_and_ranks_that_no_matrix_has_give_no_groups():
    record = _record(_matrix())
    assert groups_of(record, LABELS[1:]) == ()
    far = record.i2t.model_copy(update={"greater": (PAIRS,) * PAIRS})
    assert groups_of(record.model_copy(update={"i2t": far}), LABELS) == ()


def test_missed_pairs_are_those_without_a_hit_in_the_first_ten():
    matrix = np.eye(PAIRS)
    matrix[3] = -matrix[3]  # 3 finds its caption last; its caption finds it last too
    matrix[7, 20:40] = 2.0  # 7 finds its caption 21st; captions 20 to 39 find theirs second
    missed = missed_of(_record(matrix))
    assert [row for row, _ in missed] == [3, 7]
    assert missed[0][1] == [0.0] * 6
    assert missed[1][1] == [0.0] * 3 + [1.0] * 3


def _run(entry, name, rsum, seeds, person="ann", **training):
    result = entry.result.model_copy(update={"training": Training(seeds=seeds, **training)})
    filing = Filing(name=name, submitter=person, submitted_at=datetime(2026, 1, 1, tzinfo=UTC))
    entry = replace(entry, name=name, result=result, filing=filing)
    return Row("scored", "m", rsum, rsum, rsum, entry=entry)


def test_runs_that_differ_in_their_seeds_alone_have_a_mean():
    entry = make_entries(1)[0]
    runs = [_run(entry, f"{n:012x}", 200.0 + n, (n,)) for n in range(3)]
    other = _run(entry, "a" * 12, 300.0, (9,), "bob"), _run(entry, "b" * 12, 300.0, ())
    larger = _run(entry, "c" * 12, 300.0, (9,), ensemble_size=2)
    found = seeds_of([*runs, *other, larger])
    assert found.keys() == {f"{n:012x}" for n in range(3)}
    assert {(one.count, one.mean, one.deviation) for one in found.values()} == {(3, 201.0, 1.0)}
    assert seeds_of([*runs, _run(entry, "d" * 12, 500.0, (1, 4))]) == {}, "a seed used twice"
    proof = replace(_run(entry, "e" * 12, 600.0, (7,)), evidence="reproduced")
    assert seeds_of([*runs, proof]) == found, "a mean of claims does not stand at proof"
