"""The boards: sections, places, how sure they are, and the orders that rows come in."""

from dataclasses import replace

import numpy as np
import pytest

from leaderboard.board import display_text, tables
from leaderboard.board.exports import badge_of, rows_of
from leaderboard.board.reported import NoiseCondition, read_reported
from leaderboard.board.tables import (
    SORT_KEYS,
    SectionKind,
    boards_of,
    make_board,
    sorted_rows,
)
from leaderboard.metrics import recalls
from leaderboard.scoring.evaluate import fold_ranks, folds_of
from leaderboard.scoring.references import chance_rsum
from leaderboard.scoring.result import Folds
from leaderboard.store.entries import Entry, entry_of
from leaderboard.submission.archive import Training
from now_builder.formats.benchmarks import BOARDS
from now_builder.formats.noise import Noise
from tests.leaderboard.conftest import proven
from tests.leaderboard.random_entries import make_entries


def _boards(entries):
    return [make_board(name, list(entries)) for name in BOARDS]


def _changed(entry, **fields):
    return entry_of(entry.result.model_copy(update=fields))


def _scored(section):
    return [row for row in section.rows if row.entry]


def test_results_on_a_rebuilt_release_stand_apart_from_the_papers(entry_on):
    own, paper = make_board("jieba", [entry_on("A", 2.0), entry_on("B", 4.0)]).sections
    assert (own.with_reported, paper.with_reported) == (False, True)
    assert [row.method for row in _scored(own)] == ["B", "A"]
    assert {row.evidence for row in own.rows} == {"scored", "reference"}
    assert {row.place for row in (*own.rows, *paper.rows)} == {None}, "claims are not numbered"
    assert paper.rows[-1].rsum == 3.2
    assert all(row.low < row.rsum < row.high for row in paper.rows[:-1])


def test_equal_scores_share_a_place_and_the_unranked_have_none(entry_on):
    entries = [entry_on("A"), entry_on("B"), entry_on("C", 1.0), entry_on("D", 0)]
    claim = entry_on("E", 5.0)
    rows = _scored(make_board("jieba", [*map(proven, entries), claim]).sections[0])
    found = [(row.method, row.place) for row in rows]
    assert found == [("A", 1), ("B", 1), ("C", 3), ("D", None), ("E", None)]


def test_a_row_says_which_places_it_may_hold_and_whether_it_is_tied(filed):
    section = make_board("jieba", filed.values()).sections[0]
    rows = {row.method: row for row in section.rows}
    assert rows["Best"].tied
    assert rows["Level"].tied
    assert not rows["Behind"].tied
    assert rows["Best"].places[0] == 1 < rows["Level"].places[1]
    assert rows["Behind"].places == (4, 4)
    for name in ("Tied throughout", "Normalised", "Overstated"):
        assert (rows[name].place, rows[name].tied, rows[name].places) == (None, None, None)
    assert all(row.places[0] <= row.place <= row.places[1] for row in _scored(section) if row.place)


def test_what_was_contradicted_stands_last_with_the_figures_of_the_run(filed):
    section = make_board("jieba", filed.values()).sections[0]
    claim, row = filed["Overstated"], section.row_of(filed["Overstated"].name)
    assert (row.evidence, row.claimed) == ("contradicted", claim.result.rsum)
    assert row.rsum == claim.run.rsum < claim.result.rsum
    ranked = [row for row in section.rows[section.n_proof :] if row.ranked]
    assert ranked[-1] is row
    assert not any(row.proof for row in section.rows[section.n_proof :])


def test_other_noise_another_split_and_a_blind_round_are_tables_of_their_own(filed):
    board = make_board("jieba", filed.values())
    assert [
        (part.kind.split, part.kind.noise.protocol, part.with_reported) for part in board.sections
    ] == [("test", "web", False), ("test", "either", False), ("test", "web", True),
          ("dev", "web", False)]  # fmt: skip
    assert board.sections[1].kind.noise.mismatch == 0.2
    assert [part.kind.origin for part in make_board("bert", filed.values()).sections] == [
        "blind",
        "archive",
    ]
    names = [part.kind.name for board in _boards(filed.values()) for part in board.sections]
    assert len(set(names)) > 20


def test_an_entry_stands_once_and_a_withdrawn_one_nowhere(filed):
    boards = _boards(filed.values())
    shown = [row.method for board in boards for part in board.sections for row in _scored(part)]
    assert sorted(shown) == sorted(set(filed) - {"Gone"})
    assert [entry.name for entry in boards[0].withdrawn] == [filed["Gone"].name]


def test_a_coco_result_stands_on_both_boards_the_folds_without_ranks(entry_on):
    result = entry_on().result
    folds = Folds(size=1000, count=5, i2t=result.i2t, t2i=result.t2i, rsum=result.rsum)
    shape = {"n_images": 5000, "n_pairs": 25000, "track": "coco"}
    release = result.release.model_copy(update={"origin": "field"})
    clean = Training(noise=Noise(protocol="captions", sha256="0" * 64, mismatch=0.0))
    entry = _changed(entry_on(), **shape, folds=folds, release=release, training=clean)
    assert boards_of(entry.result) == ("coco-5k", "coco-1k")
    small = make_board("coco-1k", [entry])
    assert small.section_of(entry.name).with_reported
    assert small.section_of(entry.name).comparable == ()
    whole = make_board("coco-5k", [entry]).section_of(entry.name)
    assert whole.with_reported
    assert [row.entry.name for row in whole.comparable] == [entry.name]


def test_every_reported_row_is_on_its_board_once():
    for board in _boards([]):
        rows = [row.reported for part in board.sections for row in part.rows if row.reported]
        assert len(rows) == len(read_reported(board.name))
        assert all({row.noise for row in rows} for part in board.sections)


@pytest.mark.parametrize("key", SORT_KEYS)
def test_another_order_has_the_same_rows_the_best_first(filed, key):
    section = make_board("jieba", filed.values()).sections[0]
    rows = sorted_rows(section, key)
    assert sorted(row.method for row in rows) == sorted(row.method for row in section.rows)
    for part in (rows[: section.n_proof], rows[section.n_proof :]):
        if "-" in key:
            column = SORT_KEYS.index(key) - 1
            values = [row.recalls[column] for row in part if row.recalls]
            assert values == sorted(values, reverse=True)
        elif key == "date":
            dates = [row.date for row in part if row.date]
            assert dates == sorted(dates, reverse=True)
    assert not rows[section.n_proof - 1].recalls or key == "method"
    if key == "evidence":
        assert [rows[0].evidence, rows[-1].evidence] == ["reproduced", "contradicted"]
    elif key == "method":
        assert (rows[0].method, rows[section.n_proof].method) == ("Behind", "Normalised")


def test_an_axis_begins_at_zero_unless_all_rows_stand_far_above_it(entry_on):
    assert {part.base for part in make_board("jieba", [entry_on()]).sections} == {0.0}
    clean = make_board("flickr30k", []).sections[0]
    lowest = min(row.low for row in clean.rows if row.reported)
    assert clean.axis * 0.75 <= clean.base <= lowest


@pytest.mark.parametrize(("images", "each"), [(24, 1), (7, 5), (3, 2), (1, 1)])
def test_chance_in_closed_form_is_the_score_of_a_constant_matrix(images, each):
    constant = np.zeros((images, images * each), np.float32)
    owner = np.arange(images * each) // each
    assert chance_rsum(images, images * each) == recalls(constant, owner).rsum


def test_places_in_folds_are_those_of_resampling_the_ranks_within_the_folds():
    """Two folds of two images. Within its fold every image of A finds its caption first.

    B has both images of the first fold second: 0 hits at 1, so i2t R@1 is 50, and so is t2i's;
    in the whole split each right candidate has one other above it, for A too. The difference a
    resample shows is 2 hits for each image of the first fold that it draws: both are first and
    second where it draws none of them, in 1 of 16 resamples, more than the 2.5 % left out.
    """
    owner = np.arange(4)
    first = np.array([[5, 1, 9, 1], [1, 5, 1, 9], [1, 9, 5, 1], [9, 1, 1, 5]], np.float32)
    second = first.copy()
    second[:2, :2] = [[1, 5], [5, 1]]
    folds = [folds_of(fold_ranks(matrix, owner, 2), 2) for matrix in (first, second)]
    assert [(one.count, one.rsum) for one in folds] == [(2, 600.0), (2, 500.0)]
    assert (folds[1].i2t.r1, folds[1].i2t.r5, folds[1].t2i.r1) == (50.0, 100.0, 50.0)
    base = make_entries(1)[0].result
    shape = {"track": "coco", "n_images": 4, "n_pairs": 4, "ranks": None}
    entries = [
        Entry(name * 12, base.model_copy(update={**shape, "folds": one, "rsum": one.rsum}))
        for name, one in zip("ab", folds, strict=True)
    ]
    kind = SectionKind(
        "test", "0" * 64, "field", NoiseCondition(protocol="unstated"), 4, 4, folds=2
    )
    rows = [tables._scored(proven(entry), "coco-1k", None) for entry in entries]
    found = tables._placed(rows, kind)
    assert [row.places for row in found] == [(1, 2), (1, 2)]
    assert all(row.resampled for row in found)
    assert found[1].low == 400.0
    assert found[1].high == 600.0


def test_ranked_lists_are_shown_and_never_ranked():
    """Neither lists that outdo every matrix nor those of a second run, whatever a file says."""
    entries = make_entries(4)
    for at in (0, 1, 2):
        result = entries[at].result.model_copy(update={"precision": None, "rsum": 590.0 - at})
        entries[at] = replace(entries[at], result=result)
    entries[2:] = map(proven, entries[2:])
    board = make_board("jieba", entries)
    rows = {row.entry.name: row for row in _scored(board.sections[0])}
    assert [rows[entry.name].place for entry in entries] == [None, None, None, 1]
    exported = {row.entry: row for row in rows_of(board)}
    assert [exported[entry.name].lists for entry in entries] == [True, True, True, False]
    assert "place" not in badge_of(exported[entries[0].name]).message
    notes = [note.text for note in display_text.row_notes(rows[entries[0].name])]
    assert {"not ranked", "ranked lists"} <= set(notes)
