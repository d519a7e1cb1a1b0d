"""Recomputing results: valid ones agree, and every changed figure is named."""

import json
import time
from pathlib import Path

import numpy as np
import pytest

from leaderboard.board.tables import make_board
from leaderboard.metrics import count_own_captions, count_ranks, recalls
from leaderboard.scoring.evaluate import figures_of, score
from leaderboard.scoring.references import chance_rsum
from leaderboard.scoring.result import QueryRanks, RankRecord, query_ranks
from leaderboard.scoring.within import figures_within, record_within
from leaderboard.store.entries import entry_of, equal_ranks, read_result, write_result
from leaderboard.store.recompute import Runner, read_board, recomputed, reproduce, verify
from leaderboard.submission.archive import new_submission, pack
from now_builder.errors import FormatError
from now_builder.formats.io import sha256_of
from now_builder.formats.release import FileEntry, read_manifest, write_manifest
from tests.leaderboard.conftest import (
    NO_DUPLICATES,
    file_entry,
    filed_on,
    make_similarity,
    proven,
    score_matrix,
)

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def filed(tmp_path, packed, release):
    result = score(packed, release)
    path = tmp_path / f"jieba-test-{entry_of(result).name}.json"
    write_result(path, result)
    return path


def _change(path, edit):
    tree = json.loads(path.read_text())
    edit(tree)
    changed = path.with_name("changed.json")
    changed.write_text(json.dumps(tree))
    return changed


def test_a_sound_result_agrees_with_itself_and_its_submission(
    filed, packed, release, now_leaderboard
):
    for options in ([], ["--release", release], ["--submission", packed, "--release", release]):
        code, text, _ = now_leaderboard("verify", filed, *options)
        assert code == 0
        assert text == f"{filed}: all figures agree\n"


def test_every_changed_figure_is_named(filed, now_leaderboard):
    edits = {
        "rsum": lambda tree: tree.update(rsum=tree["rsum"] + 0.5),
        "i2t.R@5": lambda tree: tree["i2t"].update({"R@5": 99.0}),
        "t2i.interval.R@1": lambda tree: tree["t2i"]["interval"].update({"R@1": [1.0, 2.0]}),
        "ranked": lambda tree: tree.update(ranked=False),
        "duplicates.rsum": lambda tree: tree["duplicates"].update(rsum=600.0),
        "n_pairs": lambda tree: tree.update(n_pairs=25),
        "references.chance": lambda tree: tree["references"].update(chance=600.0),
    }
    for field, edit in edits.items():
        changed = _change(filed, edit)
        code, text, errors = now_leaderboard("verify", filed, changed)
        assert (code, errors) == (1, "")
        assert f"{changed}: {field}: found" in text
        assert f"{filed}: " in text.splitlines()[0]
    changed = _change(filed, lambda tree: tree["method"].update(name="Other")).rename(filed)
    assert "name: found" in now_leaderboard("verify", changed)[1]


def test_figures_of_another_submission_differ(
    filed, tmp_path, release, packed, now_leaderboard, archive
):
    other = _change(filed, lambda tree: tree["ranks"]["i2t"]["greater"].__setitem__(0, 5))
    code, text, _ = now_leaderboard("verify", other, "--submission", packed, "--release", release)
    assert (code, "ranks.i2t.greater" in text) == (1, True)
    code, text, _ = now_leaderboard("verify", filed, "--release", archive)
    assert code == 1, "the archive has no jieba track"
    for arguments in ([filed, "--submission", packed], [filed, filed, "--submission", packed]):
        code, _, errors = now_leaderboard("verify", *arguments)
        assert (code, "expected one result, and --release" in errors) == (1, True)


def test_ranks_that_no_matrix_has_are_found_at_once(filed):
    edits = (
        lambda ranks: ranks["i2t"]["greater"].pop(),
        lambda ranks: ranks["i2t"].update(greater=[]),
        lambda ranks: ranks["t2i"].update(equal=[1, 2]),
        lambda ranks: ranks["t2i"]["greater"].__setitem__(0, 24),
        lambda ranks: ranks["t2i"]["greater"].__setitem__(0, 2**40 - 1),
        lambda ranks: ranks["i2t"].update(right=[2**39] * 24, equal=[2**39] * 24),
        lambda ranks: ranks["i2t"].update(right=[0] * 24),
        lambda ranks: ranks["i2t"].update(later=[1] * 24),
        lambda ranks: ranks.update(explained=[[1, 2], []]),
    )
    start = time.monotonic()
    for edit in edits:
        changed = _change(filed, lambda tree, edit=edit: edit(tree["ranks"]))
        found = verify(changed, read_result(changed))
        assert "ranks that no matrix has" in str(found[-1])
    assert time.monotonic() - start < 2


def test_figures_of_folds_are_recomputed_from_the_ranks_within_them(monkeypatch, filed):
    """Folds of two of four images: typed-in figures, and ranks worse than in the whole split."""
    monkeypatch.setattr("leaderboard.scoring.within.FOLD", 2)
    matrix = np.array([[5, 1, 9, 1], [1, 5, 1, 9], [1, 9, 5, 1], [9, 1, 1, 5]], np.float32)
    i2t, t2i = (query_ranks(way) for way in count_ranks(matrix))
    record = RankRecord(i2t=i2t, t2i=t2i)
    base = read_result(filed)

    def result_of(record, folds):
        known = {"references": {"chance": chance_rsum(4, 4)}, "ranks": record}
        known["folds"] = figures_within("folds", folds, (2, 2))
        return base.model_copy(update=figures_of(record, base.duplicates) | known)

    result = result_of(record, record_within(matrix, np.arange(4), [np.arange(2), np.arange(2, 4)]))
    assert recomputed(result) == []
    typed = result.folds.model_copy(update={"rsum": 512.0})
    (one,) = recomputed(result.model_copy(update={"folds": typed}))
    assert (one.field, one.found, one.expected) == ("folds.rsum", 512.0, 600.0)
    bare = typed.model_copy(update={"ranks": None})
    assert recomputed(result.model_copy(update={"folds": bare}))
    worse, best = QueryRanks(greater=(1, 1, 1, 1)), QueryRanks(greater=(0, 0, 0, 0))
    whole = RankRecord(i2t=best, t2i=best)
    assert recomputed(result_of(whole, RankRecord(i2t=worse, t2i=worse)))
    assert recomputed(result_of(whole, whole)) == []


def test_a_stored_result_is_read_as_it_was_written_and_verified():
    (path,) = GOLDEN.iterdir()
    result = read_result(path)
    assert result.to_json() == path.read_text()
    assert verify(path, result) == []


def test_ranks_of_five_captions_are_those_of_their_best():
    """The record has the rank of every caption, for nDCG; the best must fit the recalls."""
    matrix = np.random.default_rng(0).integers(0, 9, (4, 20)).astype(np.float32)
    owner = np.arange(20) // 5
    i2t, t2i = count_ranks(matrix, owner)
    own = query_ranks(count_own_captions(matrix, owner, i2t))
    ways = query_ranks(i2t), query_ranks(t2i)
    record = RankRecord(i2t=ways[0], t2i=ways[1], own=own)
    assert record.possible()
    assert figures_of(record, NO_DUPLICATES)["i2t"].ndcg == recalls(matrix, owner).i2t.ndcg
    better = tuple(max(0, rank - 1) for rank in own.greater)
    for greater in (better, own.greater[1:]):
        forged = own.model_copy(update={"greater": greater})
        assert not record.model_copy(update={"own": forged}).possible()


@pytest.fixture
def pair(tmp_path, release):
    """Results of a strong and of a weak matrix."""
    for name, strength in (("a", 4.0), ("b", 0.5)):
        matrix = make_similarity(strength=strength, seed=ord(name))
        result = score_matrix(tmp_path / f"{name}.zip", release, matrix, name * 3)
        write_result(tmp_path / f"{name}.json", result)
    return tmp_path / "a.json", tmp_path / "b.json"


def test_two_results_are_compared_query_by_query(now_leaderboard, tmp_path, pair, release):
    code, text, problem = now_leaderboard("compare", *pair)
    assert (code, problem) == (0, "")
    assert text.startswith("aaa minus bbb: +")
    assert ": significant" in text
    tree = json.loads(now_leaderboard("compare", *pair, "--json")[1])
    rsums = [read_result(path).rsum for path in pair]
    assert tree["difference"] == pytest.approx(rsums[0] - rsums[1])
    assert tree["low"] < tree["difference"] < tree["high"]
    assert tree["p"] < 0.001
    assert tree["i2t"]["1"]["first_only"] > tree["i2t"]["1"]["second_only"]
    result = score_matrix(tmp_path / "c.zip", release, make_similarity(), track="bpe")
    write_result(tmp_path / "c.json", result)
    code, text, problem = now_leaderboard("compare", pair[0], tmp_path / "c.json")
    assert (code, text) == (1, "")
    assert "track: found jieba (aaa) and bpe (Mine)" in problem


def test_ranks_that_no_matrix_has_and_other_numbers_of_queries_are_not_compared(
    now_leaderboard, pair
):
    tree = json.loads(pair[1].read_text())
    tree["ranks"]["t2i"].update(equal=[1, 2])
    pair[1].write_text(json.dumps(tree))
    for both in (pair, pair[::-1]):
        code, text, problem = now_leaderboard("compare", *both)
        assert (code, text, problem.count("\n")) == (1, "", 1)
        assert "ranks (bbb): found some that no matrix has" in problem
    for way in ("i2t", "t2i"):
        tree["ranks"][way] = {"greater": [0, 1]}
    tree["ranks"]["duplicate_aware"] = tree["ranks"]["explained"] = None
    pair[1].write_text(json.dumps(tree))
    code, _, problem = now_leaderboard("compare", *pair)
    assert code == 1
    assert "expected those of every query, as many as (24, 24)" in problem


@pytest.fixture
def board(tmp_path, release):
    """A store with two entries."""
    for day, name in enumerate(("First", "Second")):
        file_entry(tmp_path / "board", release, name, 2.0 + day, filed_on(day), seed=day)
    return tmp_path / "board"


def _named(store, method):
    return next(e for e in read_board([store]) if e.result.method.name == method)


def _run(store, method, release, strength, seed=7, name="Again"):
    path = store.parent / "run.zip"
    meta = new_submission(release, "jieba", "test", name)
    pack(path, make_similarity(strength=strength, seed=seed), meta)
    return reproduce(store, _named(store, method).name, path, release, Runner("cy"))[0]


def _rows(store):
    entries = read_board([store])
    board = make_board("jieba", entries, equal_ranks(entries))
    return board[board["entry"].notna()].set_index("entry", drop=False)


def test_a_run_is_filed_by_the_command(now_leaderboard, board, release, tmp_path):
    entry = _named(board, "First")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.toml").write_text("seed = 2\n")
    meta = new_submission(release, "jieba", "test", "First")
    pack(tmp_path / "again.zip", make_similarity(strength=2.0, seed=9), meta)
    command = ["reproduce", entry.name, tmp_path / "again.zip", "--store", board]
    command += ["--release", release, "--by", "Bob", "--run", tmp_path / "run"]
    code, text, problem = now_leaderboard(*command, "--commit", "0123abc")
    assert (code, problem) == (0, "")
    assert f"the run of Bob minus entry {entry.name}" in text
    found = _named(board, "First")
    assert (found.evidence, found.run.by, found.run.code_commit) == (
        "reproduced", "Bob", "0123abc"
    )  # fmt: skip
    assert found.run.config_sha256 == sha256_of(tmp_path / "run" / "run.toml")
    pack(tmp_path / "x.zip", make_similarity(strength=2.0), meta)
    command[2] = board.parent / "x.zip"
    score_matrix(tmp_path / "x.zip", release, make_similarity(strength=2.0), "First")
    code, _, problem = now_leaderboard(*command)
    assert (code, "the same file as" in problem) == (1, True)
    for wrong in (["--commit", "no"], ["--run", tmp_path / "none"]):
        assert now_leaderboard(*command, *wrong)[0] == 1


def test_proof_stands_before_claims_with_the_figures_and_the_description_of_the_run(board, release):
    """The lower of two entries is first, since only it has been reproduced."""
    run = _run(board, "First", release, 2.0)
    entry = _named(board, "First")
    rows = _rows(board)
    row = rows.loc[entry.name]
    assert (row.evidence, row.place, rows.index[0]) == ("reproduced", 1, entry.name)
    assert (row.rsum, row.claimed) == (run.result.rsum, entry.result.rsum)
    assert (row.low, row.high) == run.result.rsum_interval
    assert row.method == "Again", "described as the run is, whatever the claim says"
    assert rows.loc[_named(board, "Second").name].isna().place


def test_the_latest_run_decides_and_one_that_scores_less_contradicts(board, release):
    """The claim is 600; the second run scores far lower than the first, which agreed."""
    forged = file_entry(board, release, "Forged", 60.0, seed=5)
    agreed = _run(board, "Forged", release, 59.0)
    assert agreed.agrees
    assert _rows(board).loc[forged.name].place == 1
    earlier = agreed.model_copy(update={"reproduced_at": filed_on(0)})
    (board / agreed.path).write_text(earlier.model_dump_json(by_alias=True) + "\n")
    run = _run(board, "Forged", release, 0.8, seed=8)
    assert run.difference[1] < 0
    rows = _rows(board)
    row = rows.loc[forged.name]
    assert (row.evidence, row.proof, row.ranked) == ("contradicted", False, True)
    assert (row.rsum, row.claimed) == (run.result.rsum, 600.0)
    assert rows.index[-1] == forged.name
    assert rows["place"].isna().all()


def test_a_run_on_altered_features_is_refused(board, mine):
    """The fingerprint does not cover features."""
    manifest = read_manifest(mine)
    path = mine / "now100k_precomp" / "test.h5"
    entry = FileEntry(sha256=sha256_of(path), bytes=path.stat().st_size)
    files = {"now100k_precomp/test.h5": entry}
    write_manifest(mine, manifest.model_copy(update={"files": files}))
    assert _run(board, "First", mine, 2.0).agrees
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"test\.h5: content differs from its sha256"):
        _run(board, "Second", mine, 2.0)


def test_a_run_with_the_ranks_of_another_entry_is_marked_and_has_no_place(board, entry_on):
    """The run of the older entry copies the ranks of the newer entry."""
    first, second = (_named(board, name) for name in ("First", "Second"))
    stolen = proven(first, second.result)
    entries = [stolen, proven(second)]
    assert equal_ranks(entries) == {first.name: second.name}
    rows = make_board("jieba", entries, equal_ranks(entries)).set_index("entry")
    assert rows.loc[first.name, "equal_to"] == second.name
    assert rows["place"].dropna().to_dict() == {second.name: 1}
    tied = [entry_on(f"Tied {n}", 0.0, seed=n) for n in range(2)]
    perfect = [entry_on(f"Perfect {n}", 60.0, seed=n) for n in range(2)]
    assert equal_ranks(tied + perfect) == {}, "all of one rank: equal trivially"
