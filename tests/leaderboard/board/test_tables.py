"""The boards: sections, places, how sure they are, and where their figures come from."""

from dataclasses import replace

import numpy as np
import pytest

from leaderboard.board import tables
from leaderboard.board.exports import rows_of
from leaderboard.board.pages import render_site
from leaderboard.board.reported import NoiseCondition, read_reported
from leaderboard.board.tables import SectionKind, boards_of, make_board
from leaderboard.metrics import RECALLS, recalls
from leaderboard.scoring.evaluate import figures_of
from leaderboard.scoring.references import chance_rsum
from leaderboard.scoring.result import Release
from leaderboard.scoring.within import figures_within, record_within
from leaderboard.store.entries import entry_of
from leaderboard.submission.archive import Training
from now_builder.formats.benchmarks import BOARDS
from now_builder.formats.noise import Noise
from tests.leaderboard.conftest import NO_DUPLICATES, proven


def _sections(board):
    """The rows of each section, in order, by its kind."""
    return dict(list(board.groupby("kind", sort=False)))


def _scored(board):
    return board[board["entry"].notna()].set_index("method", drop=False)


def _changed(entry, **fields):
    return entry_of(entry.result.model_copy(update=fields))


def test_results_on_a_rebuilt_release_stand_apart_from_the_papers(entry_on):
    board = make_board("jieba", [entry_on("A", 2.0), entry_on("B", 4.0)])
    (own, mine), (paper, printed) = _sections(board).items()
    assert (own.published, paper.published) == (False, True)
    assert mine["data"].iloc[0].startswith("rebuilt release ")
    assert list(_scored(mine).index) == ["B", "A"]
    assert set(mine["evidence"]) == {"scored", "reference"}
    assert board["place"].isna().all(), "claims are not numbered"
    assert printed["rsum"].iloc[-1] == 3.2
    reported = printed[printed["source"].notna()]
    assert (reported["low"] < reported["rsum"]).all()
    assert (reported["rsum"] < reported["high"]).all()


def test_equal_scores_share_a_place_and_the_unranked_have_none(entry_on):
    entries = [entry_on("A"), entry_on("B"), entry_on("C", 1.0), entry_on("D", 0)]
    rows = _scored(make_board("jieba", [*map(proven, entries), entry_on("E", 5.0)]))
    assert rows["place"].dropna().to_dict() == {"A": 1, "B": 1, "C": 3}
    assert list(rows.index) == ["A", "B", "C", "D", "E"]


def test_a_row_says_which_places_it_may_hold_and_whether_it_is_tied(filed):
    rows = _scored(make_board("jieba", filed.values()))
    assert rows.loc[["Best", "Level", "Behind"], "tied"].tolist() == [True, True, False]
    assert rows.loc["Best", "place_low"] == 1 < rows.loc["Level", "place_high"]
    assert rows.loc["Behind", ["place_low", "place_high"]].tolist() == [4, 4]
    claims = rows.loc[["Tied throughout", "Normalised", "Poor"]]
    assert claims[["place", "tied", "place_low", "place_high"]].isna().all(axis=None)
    placed = rows[rows["place"].notna()]
    assert (placed["place_low"] <= placed["place"]).all()
    assert (placed["place"] <= placed["place_high"]).all()


def test_what_was_contradicted_stands_last_with_the_figures_of_the_run(filed):
    section = next(iter(_sections(make_board("jieba", filed.values())).values()))
    claim, rows = filed["Overstated"], _scored(section)
    row = rows.loc["Poor"]
    assert (row["evidence"], row["claimed"]) == ("contradicted", claim.result.rsum)
    assert row["rsum"] == claim.run.result.rsum < claim.result.rsum
    assert rows[rows["ranked"]].index[-1] == "Poor"
    proof = section["proof"].tolist()
    leading = section["proof"] | (section["evidence"] == "reference")
    assert leading.tolist() == sorted(leading, reverse=True), "proof and references first"
    assert sum(proof) == 4


def test_other_noise_another_split_and_a_blind_round_are_tables_of_their_own(filed):
    kinds = list(_sections(make_board("jieba", filed.values())))
    assert [(kind.split, kind.noise.protocol, kind.published) for kind in kinds] == [
        ("test", "web", False), ("test", "either", False), ("test", "web", True),
        ("dev", "web", False)
    ]  # fmt: skip
    assert kinds[1].noise.mismatch == 0.2
    assert [kind.origin for kind in _sections(make_board("bert", filed.values()))] == [
        "blind",
        "archive",
    ]
    boards = [make_board(name, filed.values()) for name in BOARDS]
    names = [kind.name for board in boards for kind in _sections(board)]
    assert len(set(names)) > 20
    for board in boards:
        own = [kind.name for kind in _sections(board)]
        assert len(set(own)) == len(own)
    shown = [method for board in boards for method in _scored(board).index]
    assert sorted(shown) == sorted({*filed, "Poor"} - {"Gone", "Overstated"})
    printed = [board["source"].notna().sum() for board in boards]
    assert printed == [len(read_reported(name)) for name in BOARDS]


def test_a_result_of_five_folds_stands_on_both_boards(entry_on, monkeypatch):
    """On folds of two images: the whole split on one board, the folds on the other."""
    monkeypatch.setattr("leaderboard.board.tables.FOLD", 2)
    first = np.array([[5, 1, 9, 1], [1, 5, 1, 9], [1, 9, 5, 1], [9, 1, 1, 5]], np.float32)
    second = first.copy()
    second[:2, :2] = [[1, 5], [5, 1]]
    clean = Training(noise=Noise(protocol="captions", sha256="0" * 64, mismatch=0.0))
    shared = {"release": Release(origin="field", fingerprint="0" * 64), "training": clean}
    entries = []
    for name, matrix in (("A", first), ("B", second)):
        entry = entry_on(name)
        folds = record_within(matrix, np.arange(4), np.split(np.arange(4), 2))
        figures = figures_of(folds, NO_DUPLICATES) | {
            "folds": figures_within("folds", folds, (2, 2))
        }
        entries.append(_changed(entry, **figures, **shared, track="coco", ranks=folds))
    assert boards_of(entries[0].result) == ("coco-5k", "coco-1k")
    assert [entry.result.folds.rsum for entry in entries] == [600.0, 500.0]
    board = make_board("coco-1k", map(proven, entries))
    rows = _scored(board)
    # The difference is 2 hits for each image of the first fold that a resample draws: both are
    # first and second where it draws none of them, in 1 of 16 resamples.
    assert rows[["place_low", "place_high"]].to_numpy().tolist() == [[1, 2], [1, 2]]
    assert (rows.loc["B", "low"], rows.loc["B", "high"]) == (400.0, 600.0)
    assert rows.loc["B", list(RECALLS)].tolist()[:2] == [50.0, 100.0]
    assert len(_scored(make_board("coco-5k", entries))) == 2


def test_scored_rows_stand_among_the_reported_ones_on_the_same_data(entry_on, archive):
    base = entry_on(on=archive, track="bert")
    paper = {"n_pairs": 1000, "n_images": 1000}
    entries = [
        proven(_changed(base, rsum=140.0, **paper)),
        _changed(base, rsum=150.0, **paper),
        _changed(base, rsum=300.0, ranked=False, **paper),
    ]
    rows = rows_of(make_board("bert", entries))
    rows = [row for row in rows if row["evidence"] != "reference"]
    assert [(row["place"], row["method"]) for row in rows] == [
        (1, "Mine"),
        (None, "PC²"),
        (None, "Mine"),
        (None, "BiCro"),
        (None, "DECL"),
        (None, "NCR"),
        (None, "SGR"),
        (None, "Mine"),
    ]
    assert {(row["noise"], row["data"]) for row in rows} == {
        ("noise of the web", "published test split")
    }
    elsewhere = make_board("bert", [base])
    assert elsewhere["data"].iloc[0].startswith("copy ")
    silent = _changed(base, track="flickr30k")
    assert _scored(make_board("flickr30k", [silent]))["noise"].tolist() == ["noise not stated"]
    shuffled = Training(noise=Noise(protocol="either", sha256="0" * 64, mismatch=0.2))
    more = _scored(make_board("bert", [proven(_changed(base, training=shuffled))]))
    assert more["noise"].tolist() == ["noise of the web, 20 % more shuffled"]
    assert more["place"].isna().all(), "its submitter alone states it"


def test_references_of_a_filed_entry_are_those_that_the_board_vouches_for(filed, entry_on):
    entry = filed["Normalised"]
    own, known = entry.result.references["lang"], {"lang": 349.0}
    assert tables.trusted_references(entry, {}).keys() == {"chance"}
    assert tables.trusted_references(entry, known)["lang"] == 349.0 != own
    assert tables.trusted_references(replace(entry, filing=None), {})["lang"] == own
    assert tables.trusted_references(proven(entry), {})["lang"] == own


def test_an_axis_begins_at_zero_unless_all_rows_stand_far_above_it():
    assert (tables.axis_of(1.0), tables.axis_of(500.0), tables.axis_of(599.0)) == (60, 540, 600)
    assert tables.base_of(450.0, 540.0) == 440.0
    assert tables.base_of(300.0, 540.0) == 0.0


@pytest.mark.parametrize(("images", "each"), [(24, 1), (7, 5), (3, 2), (1, 1)])
def test_chance_in_closed_form_is_the_score_of_a_constant_matrix(images, each):
    constant = np.zeros((images, images * each), np.float32)
    owner = np.arange(images * each) // each
    assert chance_rsum(images, images * each) == recalls(constant, owner).rsum


def test_the_name_of_a_section_says_its_noise():
    noise = NoiseCondition(protocol="captions", mismatch=0.2)
    kind = SectionKind("test", "a" * 64, "field", noise, 4, 20)
    assert kind.name == f"test-{'a' * 16}-captions-20-4"


def test_a_board_of_a_release_split_by_domain_is_led_by_figures_within_sites(entry_on, by_domain):
    entries = [entry_on(name, strength, on=by_domain) for name, strength in (("A", 2), ("B", 1))]
    rows = _scored(make_board("jieba", map(proven, entries)))
    for entry in entries:
        result, row = entry.result, rows.loc[entry.result.method.name]
        assert (row["rsum"], row["whole_rsum"]) == (result.within_site.rsum, result.rsum)
        assert row["rsum"] != row["whole_rsum"]
        assert (row["low"], row["high"]) == result.within_site.rsum_interval
    assert rows["place"].tolist() == [1, 2]
    board = make_board("jieba", entries)
    references = board[board["evidence"] == "reference"]
    chance = references[references["kind"].map(lambda kind: kind.sites > 0)]
    assert chance["rsum"].tolist() == [pytest.approx(entries[0].result.within_site.chance)]
    pages = dict(render_site([proven(entry) for entry in entries]))
    page = pages[f"entries/{entries[0].name}.html"]
    for title in ("Within sites", "Across owners", "Within languages"):
        assert title in page
    assert f"whole gallery {entries[0].result.rsum:.1f}" in pages["boards/jieba.html"]
    assert "ranked within each of 4 sites" in pages["boards/jieba.html"]
    assert f"whole gallery {entries[0].result.rsum:.1f}" in pages["boards/jieba.md"]


def test_rows_with_and_without_owners_are_tested_by_owner(entry_on, by_domain):
    """Where no site is large enough, rSum of the whole gallery leads."""
    entries = [entry_on(name, strength, on=by_domain) for name, strength in (("A", 2), ("B", 1))]
    entries = [_changed(entry, within_site=None) for entry in entries]
    bare = entries[1].result.ranks.model_copy(update={"site_owners": None})
    entries[1] = _changed(entries[1], ranks=bare)
    rows = _scored(make_board("jieba", map(proven, entries)))
    assert rows["tied"].all()  # three owners cannot show a difference
    assert rows["whole_rsum"].isna().all()
