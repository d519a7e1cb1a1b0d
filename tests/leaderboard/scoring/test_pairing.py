"""Two results side by side, and an entry that somebody ran again, through the commands."""

import json

import pytest

from leaderboard.metrics import recalls
from leaderboard.scoring.evaluate import score
from leaderboard.store.entries import file_result, write_result
from leaderboard.store.verify import read_board
from leaderboard.submission.archive import new_submission, pack
from tests.leaderboard.conftest import SIZES, make_similarity, score_matrix


@pytest.fixture
def pair(tmp_path, release):
    """Results of a strong and of a weak matrix, and their zips."""
    for name, strength in (("a", 4.0), ("b", 0.5)):
        matrix = make_similarity(strength=strength, seed=ord(name))
        result = score_matrix(tmp_path / f"{name}.zip", release, matrix, name * 3)
        write_result(tmp_path / f"{name}.json", result)
    return tmp_path / "a.json", tmp_path / "b.json"


def test_two_results_are_compared_query_by_query(now_leaderboard, pair):
    code, text, problem = now_leaderboard("compare", *pair)
    assert (code, problem) == (0, "")
    assert text.startswith("aaa less bbb: +")
    assert ": significant" in text
    tree = json.loads(now_leaderboard("compare", *pair, "--json")[1])
    expected = [
        recalls(make_similarity(strength=strength, seed=ord(name))).rsum
        for name, strength in (("a", 4.0), ("b", 0.5))
    ]
    assert tree["difference"] == pytest.approx(expected[0] - expected[1])
    assert tree["low"] < tree["difference"] < tree["high"]
    assert tree["p"] < 0.001
    assert tree["i2t"]["1"]["first_only"] > tree["i2t"]["1"]["second_only"]


def test_results_of_other_queries_are_not_compared(now_leaderboard, tmp_path, pair, release):
    result = score_matrix(tmp_path / "c.zip", release, make_similarity(), track="bpe")
    write_result(tmp_path / "c.json", result)
    code, text, problem = now_leaderboard("compare", pair[0], tmp_path / "c.json")
    assert (code, text) == (1, "")
    assert "track: found jieba (aaa) and bpe (Mine)" in problem


def test_ranks_that_no_matrix_has_are_not_compared(now_leaderboard, pair):
    tree = json.loads(pair[1].read_text())
    tree["ranks"]["t2i"].update(equal=[1, 2])
    pair[1].write_text(json.dumps(tree))
    for both in (pair, pair[::-1]):
        code, text, problem = now_leaderboard("compare", *both)
        assert (code, text, problem.count("\n")) == (1, "", 1)
        assert "ranks (bbb): found some that no matrix has" in problem


def test_results_of_other_numbers_of_queries_are_not_compared(now_leaderboard, pair):
    tree = json.loads(pair[1].read_text())
    for way in ("i2t", "t2i"):
        tree["ranks"][way] = {"greater": [0, 1]}
    tree["ranks"]["duplicate_aware"] = tree["ranks"]["explained"] = None
    pair[1].write_text(json.dumps(tree))
    code, _, problem = now_leaderboard("compare", *pair)
    assert code == 1
    assert "ranks: found (2, 2) queries, expected as many as (24, 24)" in problem


@pytest.mark.parametrize("kind", ["submission", "result"])
def test_the_schema_says_which_fields_there_are(now_leaderboard, kind):
    code, text, _ = now_leaderboard("schema", kind)
    assert code == 0
    assert {"track", "split", "method"} <= set(json.loads(text)["properties"])
    assert now_leaderboard("schema", "x")[0] == 1


def test_a_second_run_is_filed_beside_its_entry(now_leaderboard, tmp_path, pair, release):
    entry, _ = file_result(tmp_path / "s", score(tmp_path / "a.zip", release))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.toml").write_text("seed = 2\n")
    pack(
        tmp_path / "again.zip",
        make_similarity(strength=4.0, seed=9),
        new_submission(release, "jieba", "test", "aaa"),
    )
    command = ["reproduce", entry.name, tmp_path / "again.zip", "--store", tmp_path / "s"]
    command += ["--release", release, "--by", "Bob", "--run", tmp_path / "run"]
    code, text, problem = now_leaderboard(*command, "--commit", "0123abc")
    assert (code, problem) == (0, "")
    assert f"the run of Bob less entry {entry.name}" in text
    (found,) = read_board([tmp_path / "s"])
    assert found.evidence == "reproduced"
    (filed,) = found.reproductions
    assert filed.rsum == recalls(make_similarity(SIZES["test"], 4.0, 9)).rsum
    assert (filed.by, filed.code_commit) == ("Bob", "0123abc")
    assert filed.config_sha256 is not None
    command[2] = tmp_path / "a.zip"
    code, _, problem = now_leaderboard(*command)
    assert code == 1
    assert "is the very file" in problem
    assert pair
