"""What is proof, and what a keeper alone may add: runs, blind results, tombstones."""

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from leaderboard.board.exports import FORMATS, badge_of, export_row
from leaderboard.board.tables import equal_ranks, make_board
from leaderboard.core.errors import SubmissionError
from leaderboard.scoring.result import Release
from leaderboard.site.pages import Site
from leaderboard.store.check_store import Trust, check_store
from leaderboard.store.entries import (
    Filing,
    add_reproduction,
    file_result,
    reproduction_path,
    withdraw,
)
from leaderboard.store.reproduce import Claim, reproduce
from leaderboard.store.verify import read_board
from leaderboard.submission.archive import new_submission, pack
from now_builder.errors import FormatError
from tests.leaderboard.conftest import file_entry, filed_on, make_similarity, proven, run_of

AT = datetime(2026, 6, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def made(release, tmp_path_factory):
    """A store with two entries."""
    store = tmp_path_factory.mktemp("proof") / "store"
    for day, name in enumerate(("First", "Second")):
        file_entry(store, release, name, 2.0 + day, filed_on(day), seed=day)
    shutil.rmtree(store / "private")
    return store


@pytest.fixture
def board(made, tmp_path):
    """A copy of it, as a pull request changes it."""
    return shutil.copytree(made, tmp_path / "board")


def _named(store, method):
    return next(e for e in read_board([store]) if e.result.method.name == method)


def _forge(store, method, **changes):
    """File a changed copy of an entry's result by hand."""
    result = _named(store, method).result.model_copy(update=changes)
    return file_result(store, result, None)[0]


def _codes(store, base=None, **trust):
    shutil.rmtree(store / "private", ignore_errors=True)
    return {problem.code for problem in check_store(store, base, Trust(**trust))}


def _row(store, name):
    entries = read_board([store])
    (section,) = (
        part
        for part in make_board("jieba", entries, equal_ranks(entries)).sections
        if part.row_of(name)
    )
    return section, section.row_of(name)


@pytest.mark.parametrize("ranks", [True, False])
def test_a_blind_result_is_for_a_keeper_to_add_and_proof_in_a_store_alone(board, made, ranks):
    origin = Release(origin="blind", fingerprint="0" * 64)
    changes = {} if ranks else {"ranks": None}
    forged = _forge(board, "First", release=origin, **changes)
    assert "result.unproved" in _codes(board, made)
    assert "result.unproved" not in _codes(board, made, keeper=True)
    assert next(e for e in read_board([board]) if e.name == forged.name).evidence == "blind"
    path = next((board / "results").glob(f"*{forged.name}.json"))
    assert read_board([path])[0].evidence == "scored"


def test_runs_and_tombstones_are_for_a_keeper_to_add(board, made):
    entry = _named(board, "First")
    add_reproduction(board, run_of(entry))
    withdraw(board, entry.name, "gone", AT)
    assert "record.keeper" in _codes(board, made)
    assert "record.keeper" not in _codes(board, made, keeper=True)


def test_a_run_that_is_sent_again_is_filed_once(board, packed, release):
    name = _named(board, "First").name
    first, _ = reproduce(board, name, packed, release, Claim("Fay"))
    again, _ = reproduce(board, name, packed, release, Claim("Guy"))
    assert (again, _named(board, "First").reproductions) == (first, (first,))
    assert _codes(board) == set()


@pytest.mark.parametrize(
    ("claim", "found"),
    [
        (Claim("Fay", "HEAD"), r"reproduction\.code_commit: found 'HEAD', expected pattern"),
        (Claim("Fay", "ABCDEF0"), r"code_commit: found 'ABCDEF0'"),
        (Claim(""), r"reproduction\.by: found ''"),
        (Claim("Fay", run=Path("none")), "run.toml: no such file"),
    ],
)
def test_a_claim_that_is_none_is_refused_before_anything_is_scored(board, claim, found):
    with pytest.raises((SubmissionError, FormatError), match=found):
        reproduce(board, _named(board, "First").name, Path("no.zip"), Path("none"), claim)


def test_nobody_files_an_entry_that_the_base_has_without_a_filing(board, release, tmp_path):
    entry = file_entry(board, release, "Plain", 2.0, None, seed=5)
    shutil.rmtree(board / "private")
    base = shutil.copytree(board, tmp_path / "base")
    filing = Filing(name=entry.name, submitter="eve", submitted_at=AT)
    path = board / "filings" / f"{entry.name}.json"
    path.write_text(filing.model_dump_json(indent=2) + "\n")
    late = [p.field for p in check_store(board, base) if p.code == "filing.late"]
    assert late == [f"filings/{entry.name}.json"]


@pytest.mark.parametrize(("minutes", "code"), [(9, set()), (15, {"filing.date"})])
def test_a_filing_dated_ahead_does_not_close_a_store_to_others(board, made, minutes, code):
    """Each later filing must be dated after it."""
    copied = _named(board, "First").result
    named = copied.method.model_copy(update={"name": "Ahead"})
    at = datetime.now(UTC) + timedelta(minutes=minutes)
    filing = type(filed_on(0))("eve", at)
    file_result(board, copied.model_copy(update={"method": named}), filing)
    assert _codes(board, made) == code


def test_a_filing_dated_back_does_not_pass(board, made):
    copied = _named(board, "First").result
    named = copied.method.model_copy(update={"name": "Copy"})
    file_result(board, copied.model_copy(update={"method": named}), filed_on(-2200))
    assert _codes(board, made) == {"filing.date"}


def test_a_bribed_reference_is_refused_and_not_drawn(board):
    known = _row(board, _named(board, "First").name)[0]
    drawn = [row.method for row in known.rows if row.evidence == "reference"]
    assert set(drawn) == {"chance", "lang"}
    forged = _forge(board, "First", references={"bribe": 12.0})
    assert _codes(board) == {"result.differs"}
    with pytest.raises(FormatError, match="bribe"):
        read_board([board])
    section = make_board("jieba", [forged]).sections[0]
    assert [r.method for r in section.rows if r.evidence == "reference"] == ["chance"]


def test_removed_chance_and_language_are_refused(board, release):
    result = _named(board, "First").result
    _forge(board, "First", references={"chance": result.references["chance"]})
    assert _codes(board) == set()
    assert _codes(board, releases=(release,)) == {"result.differs"}
    _forge(board, "Second", references={})
    assert _codes(board) == {"result.differs"}


def test_a_changed_figure_stops_every_reader(board, now_leaderboard):
    _forge(board, "First", rsum=599.0)
    assert _codes(board) == {"result.differs"}
    code, _, told = now_leaderboard("export-site", board.parent / "site", "--results", board)
    assert (code != 0, "rsum: found 599.0" in told) == (True, True)


def _run(store, method, release, strength, seed=9):
    """File a run of an entry as the command does; return the record."""
    meta, path = new_submission(release, "jieba", "test", "Run"), store.parent / "run.zip"
    pack(path, make_similarity(strength=strength, seed=seed), meta)
    return reproduce(store, _named(store, method).name, path, release, Claim("cy"))[0]


def test_proof_stands_before_claims_with_the_figures_of_the_run(board, release):
    """The lower of two entries, run again with another seed: first, for it alone is proof."""
    run = _run(board, "First", release, 2.0)
    entry = _named(board, "First")
    section, row = _row(board, entry.name)
    assert (row.evidence, row.place, section.rows[0]) == ("reproduced", 1, row)
    assert (row.rsum, row.claimed) == (run.rsum, entry.result.rsum)
    assert row.recalls == run.result.i2t.values() + run.result.t2i.values()
    assert (row.low, row.high) == run.result.rsum_interval
    assert row.method == "First", "described as the entry is"
    assert section.row_of(_named(board, "Second").name).place is None
    assert _codes(board) == set()


def test_the_latest_run_decides_and_one_that_scores_less_contradicts(board, release):
    """A claim of 600 that comes out far lower, also where a run had agreed before."""
    forged = file_entry(board, release, "Forged", 60.0, None, seed=5)
    agreed = _run(board, "Forged", release, 59.0)
    assert agreed.agrees
    assert _row(board, forged.name)[1].place == 1
    earlier = agreed.model_copy(update={"reproduced_at": AT})
    path = board / reproduction_path(agreed)
    path.write_text(earlier.model_dump_json(by_alias=True) + "\n")
    run = _run(board, "Forged", release, 0.8, seed=8)
    assert run.difference[1] < 0
    section, row = _row(board, forged.name)
    assert (row.evidence, row.place, row.proof, row.ranked) == ("contradicted", None, False, True)
    assert (row.rsum, row.claimed) == (run.rsum, 600.0)
    assert [one.entry.name for one in section.rows if one.entry][-1] == forged.name
    assert section.n_proof == 0
    assert badge_of(export_row("jieba", section, row)).message.endswith(", contradicted")


def test_a_higher_run_is_proof_and_a_record_without_a_result_is_none(board, release):
    assert _run(board, "First", release, 60.0).difference[0] > 0
    assert _named(board, "First").evidence == "reproduced"
    entry = _named(board, "Second")
    old = run_of(entry).model_copy(update={"result": None, "difference": None})
    add_reproduction(board, old)
    assert _named(board, "Second").evidence == "scored"
    assert _named(board, "Second").reproductions == (old,)


@pytest.mark.parametrize("field", ["difference", "rsum", "result"])
def test_a_record_of_a_run_says_what_follows_from_its_ranks(board, release, field):
    run = _run(board, "First", release, 0.5)
    path = board / reproduction_path(run)
    better = _named(board, "Second").result.rsum
    forged = {
        "difference": (-1.0, 1.0),
        "rsum": better,
        "result": run.result.model_copy(update={"rsum": better}),
    }
    changed = run.model_copy(update={field: forged[field]})
    path.write_text(changed.model_dump_json(by_alias=True) + "\n")
    assert "result.differs" in _codes(board)
    if field == "result":
        with pytest.raises(FormatError, match=path.name):
            read_board([board])
    with pytest.raises(FormatError, match=path.name):
        reproduce(board, run.name, board.parent / "run.zip", release, Claim("cy"))


def test_the_export_of_the_command_is_that_of_the_site(board, release, now_leaderboard):
    """With what takes two entries: one that repeats ranks is said to, in either."""
    _run(board, "First", release, 2.0)
    copy = file_entry(board, release, "Copy", 2.0, filed_on(2), seed=0)
    site = Site(read_board([board]))
    for kind in FORMATS:
        code, text, _ = now_leaderboard("export", "jieba", "--store", board, "--to", kind)
        assert (code, text) == (0, site.get(f"boards/jieba.{kind}")[0])
    rows = json.loads(site.get("boards/jieba.json")[0])["rows"]
    said = {row["entry"]: row["equal_to"] for row in rows}
    assert said[copy.name] in said
    assert said[said[copy.name]] is None


def test_a_run_with_the_ranks_of_another_entry_is_said_to_have_them_and_has_no_place(entry_on):
    first, second = entry_on("First"), entry_on("Second", 3.0, seed=1)
    stolen = proven(second, first.result)
    equal = equal_ranks([proven(first), stolen])
    assert equal in ({second.name: first.name}, {first.name: second.name})
    (section,) = (
        part for part in make_board("jieba", [proven(first), stolen], equal).sections
        if part.row_of(first.name)
    )  # fmt: skip
    (repeated,) = equal
    assert section.row_of(repeated).place is None
    assert section.row_of(equal[repeated]).place == 1
    assert section.lead.entry.name == equal[repeated]


def test_all_perfect_and_all_tied_matrices_repeat_nothing(entry_on):
    entries = [entry_on(f"Tied {n}", 0.0, seed=n) for n in range(2)]
    assert equal_ranks(entries + [entry_on(f"Perfect {n}", 60.0, seed=n) for n in range(2)]) == {}
