"""Results for the page of a model on the hub: read back by the hub's own client."""

from datetime import UTC, datetime

import pytest
import yaml
from huggingface_hub import parse_eval_result_entries

from leaderboard.scoring.evaluate import score
from leaderboard.store.entries import file_result, read_result, withdraw, write_result
from leaderboard.store.reproduce import Claim, reproduce
from leaderboard.submission.archive import new_submission, pack, with_details
from now_builder.hub.publish import _EVALUATION
from tests.leaderboard.conftest import make_similarity


@pytest.fixture
def filed(tmp_path, release):
    """A result with a link, as a file."""
    meta = with_details(
        new_submission(release, "jieba", "test", "Mine"),
        {"links": {"code": "https://example.org/mine"}},
    )
    pack(tmp_path / "x.zip", make_similarity(), meta)
    write_result(tmp_path / "r.json", score(tmp_path / "x.zip", release))
    return tmp_path / "r.json"


def test_the_hubs_client_reads_ndcg_of_both_tasks(filed, tmp_path, now_leaderboard):
    model = tmp_path / "model"
    command = ["export", filed, "--to", "hf-results", "--dataset", "me/NoW", "-o", model]
    code, text, _ = now_leaderboard(*command)
    assert (code, text) == (0, f"{model / '.eval_results' / 'NoW-jieba.yaml'}\n")
    entries = parse_eval_result_entries(
        yaml.safe_load((model / ".eval_results" / "NoW-jieba.yaml").read_text())
    )
    result = read_result(filed)
    ways = (result.i2t, result.t2i)
    assert [entry.value for entry in entries] == [round(100 * way.ndcg, 5) for way in ways]
    assert 0 < entries[0].value < 100
    assert {entry.dataset_id for entry in entries} == {"me/NoW"}
    assert {entry.source_url for entry in entries} == {"https://example.org/mine"}
    tasks = yaml.safe_load(_EVALUATION)["tasks"]
    assert [entry.task_id for entry in entries] == [task["id"] for task in tasks]
    assert f"R@1 {result.i2t.r1:.1f}, R@5" in entries[0].notes
    assert "captions as jieba tokens" in entries[1].notes
    assert "scored, a claim: a file of similarities was scored" in entries[0].notes


def test_a_result_that_a_store_proves_is_told_with_the_judges_figures(
    filed, tmp_path, release, now_leaderboard
):
    store, claim = tmp_path / "store", read_result(filed)
    entry, _ = file_result(store, claim)
    model = tmp_path / "model"
    command = ["export", filed, "--to", "hf-results", "--dataset", "me/NoW", "-o", model]
    for word, strength in (("reproduced", 1.9), ("contradicted", 0.1)):
        again = tmp_path / f"{word}.zip"
        pack(
            again,
            make_similarity(strength=strength),
            new_submission(release, "jieba", "test", "Again"),
        )
        run = reproduce(store, entry.name, again, release, Claim("Fay"))[0]
        assert now_leaderboard(*command, "--store", store)[0] == 0
        told = yaml.safe_load((model / ".eval_results" / "NoW-jieba.yaml").read_text())
        i2t, t2i = parse_eval_result_entries(told)
        assert i2t.value == round(100 * run.result.i2t.ndcg, 5) != round(100 * claim.i2t.ndcg, 5)
        assert f"; {word}, " in t2i.notes
        assert f"rSum of both directions {run.rsum:.1f}" in t2i.notes
        assert f"claimed rSum {claim.rsum:.1f}" in t2i.notes
    withdraw(store, entry.name, "", datetime(2026, 8, 1, tzinfo=UTC))
    code, _, told = now_leaderboard(*command, "--store", store)
    assert (code, "withdrawn, expected an entry that stands" in told) == (1, True)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"ranked": False, "reason": "ties"}, "not ranked, expected a ranked result: ties"),
        ({"split": "dev"}, "split dev: expected the test split"),
        ({"track": "coco"}, "expected the test split and one of jieba, bpe, bert"),
        ({}, "no nDCG@10, as in a blind round; else score it again"),
    ],
)
def test_what_the_hub_has_no_task_for_is_refused(filed, tmp_path, now_leaderboard, change, line):
    result = read_result(filed)
    if not change:
        ways = ("i2t", "t2i")
        change |= {way: getattr(result, way).model_copy(update={"ndcg": None}) for way in ways}
    write_result(filed, result.model_copy(update=change))
    command = ["export", filed, "--to", "hf-results", "--dataset", "me/NoW", "-o", tmp_path / "m"]
    code, _, told = now_leaderboard(*command)
    assert (code, line in told, told.count("\n")) == (1, True, 1)
    assert not (tmp_path / "m").exists()


def test_what_is_not_given_is_named(filed, tmp_path, now_leaderboard):
    command = ["export", filed, "--to", "hf-results", "-o", tmp_path]
    assert "--dataset USER/NAME" in now_leaderboard(*command)[2]
    assert "found 'NoW', expected USER/NAME" in now_leaderboard(*command, "--dataset", "NoW")[2]
