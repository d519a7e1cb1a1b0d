"""Checks of a store that a pull request changes: every problem is found, nothing is executed."""

import json
import os
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import yaml

from leaderboard.blind import RoundPlan, close_round, make_round
from leaderboard.board.pages import render_site
from leaderboard.board.tables import make_board
from leaderboard.scoring.evaluate import score
from leaderboard.scoring.result import Release
from leaderboard.store.check_store import check_store
from leaderboard.store.dataset import dataset_report, file_report
from leaderboard.store.entries import file_result, now, read_result, read_store, withdraw
from leaderboard.store.recompute import Runner, reproduce
from leaderboard.submission.archive import new_submission, pack
from now_builder.errors import FormatError
from tests.leaderboard.conftest import (
    make_similarity,
    pack_for_round,
    pairing_of,
    score_matrix,
)

AT = datetime(2026, 1, 1, tzinfo=UTC)
LATER = AT + timedelta(seconds=1)


def _scored(release, folder, strength=2.0, name="Mine"):
    return score_matrix(folder / f"{name}.zip", release, make_similarity(strength=strength), name)


@pytest.fixture(scope="module")
def whole(release, tmp_path_factory):
    """A store with everything in it."""
    folder = tmp_path_factory.mktemp("whole")
    store = folder / "store"
    first, _ = file_result(store, _scored(release, folder), AT)
    file_result(store, _scored(release, folder, 1.0, "Other"), AT)
    withdraw(store, first.name, "an error", AT)
    pack(folder / "run.zip", make_similarity(seed=3), new_submission(release, "jieba", "test", "R"))
    reproduce(store, first.name, folder / "run.zip", release, Runner("cy"))
    file_report(store, dataset_report(release))
    (store / "README.md").write_text("Results.\n")
    return store


@pytest.fixture
def store(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "store")


def _codes(store, *arguments, **options):
    return [problem.code for problem in check_store(store, *arguments, **options)]


def _one(store, folder):
    return min((store / folder).iterdir())


def test_a_sound_store_is_fine_and_so_is_its_growth(store, whole, release, now_leaderboard):
    assert check_store(store, releases=[release]) == []
    file_result(store, _scored(release, store.parent, 3.0, "Third"), LATER)
    assert check_store(store, whole, releases=[release]) == []
    code, text, _ = now_leaderboard("check-store", store, "--base", whole, "--release", release)
    assert (code, text) == (0, f"{store}: valid\n")
    assert json.loads(now_leaderboard("check-store", store, "--json")[1]) == []


def test_files_of_the_base_may_not_change_or_disappear(store, whole, now_leaderboard):
    path = _one(store, "filings")
    path.write_text(path.read_text().replace("2026-01-01", "2025-01-01"))
    _one(store, "withdrawals").unlink()
    (store / "README.md").write_text("Other results.\n")
    (store / ".gitignore").write_text("new\n")
    found = {problem.field for problem in check_store(store, whole)
             if problem.code == "base.changed"}  # fmt: skip
    gone = f"withdrawals/{_one(whole, 'withdrawals').name}"
    assert found == {f"filings/{path.name}", gone, "README.md", ".gitignore"}
    code, text, errors = now_leaderboard("check-store", store, "--base", whole)
    assert (code, errors, "base.changed: README.md: found" in text) == (1, "", True)


def test_names_and_texts_fit_the_content_and_records_point_to_entries(store):
    result = _one(store, "results")
    text = result.read_text()
    result.write_text(json.dumps(json.loads(text)))
    assert _codes(store) == ["record.text"]
    result.write_text(text)
    result.rename(result.with_name(f"bert-{result.name.partition('-')[2]}"))
    for folder in ("filings", "withdrawals", "reproductions", "datasets"):
        path = _one(store, folder)
        path.rename(path.with_name(f"{'1' if path.name[0] == '0' else '0'}{path.name[1:]}"))
    found = {problem.field.partition("/")[0] for problem in check_store(store)
             if problem.code == "record.name"}  # fmt: skip
    assert found == {"results", "filings", "withdrawals", "reproductions", "datasets"}
    for path in (store / "results").iterdir():
        path.unlink()
    assert _codes(store).count("record.dangling") == 4, "two filings, two others"


def test_foreign_files_are_named_and_links_are_not_followed(store, whole, tmp_path):
    path = _one(store, "filings")
    for content in (b"\xff", b'{"format": "now-filing/1"}', b"[]"):
        path.write_bytes(content)
        (problem,) = check_store(store)
        assert (problem.code, problem.field) == ("record.format", f"filings/{path.name}")
    path.write_bytes((whole / "filings" / path.name).read_bytes())
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    (store / "filings" / "aaaaaaaaaaaa.json").symlink_to(secret)
    (store / "datasets2").symlink_to(tmp_path)
    for name in ("results/evil.py", "results/FILE.json", "results/.hidden.json", "conftest.py"):
        (store / name).write_text("raise SystemExit(3)")
    (store / "filings" / "deep").mkdir()
    os.mkfifo(store / "withdrawals" / "bbbbbbbbbbbb.json")
    (store / "results" / "a\u202eb.json").write_text("{}")
    with (store / "filings" / "cccccccccccc.json").open("wb") as file:
        file.truncate(2**40)
    problems = check_store(store)
    assert {problem.code for problem in problems} == {"store.foreign"}
    assert len(problems) == 10
    assert all(problem.field.isascii() for problem in problems)


def test_neither_a_store_nor_its_folders_may_be_links_or_missing(store, whole, now_leaderboard):
    for arguments in ([store / "none"], [store, "--base", store / "none"]):
        code, _, errors = now_leaderboard("check-store", *arguments)
        assert (code, "folder not found" in errors, errors.count("\n")) == (1, True, 1)
    shutil.rmtree(store / "results")
    (store / "results").symlink_to(whole / "results")
    assert _codes(store, whole) == ["store.foreign"]
    shutil.rmtree(store)
    store.symlink_to(whole)
    with pytest.raises(FormatError, match="a link"):
        check_store(store)


def test_a_filing_in_the_future_or_not_after_the_base_is_named(store, whole, release):
    """Earlier filings win, and a filing in the future would block all later ones."""
    result = _scored(release, store.parent, 3.0, "Third")
    entry, _ = file_result(store, result, LATER)
    path = store / "filings" / f"{entry.name}.json"
    tree = json.loads(path.read_text())
    ahead = now() + timedelta(minutes=11)
    for at in (AT, AT - timedelta(seconds=1), ahead, "2999-01-01T00:00:00Z"):
        path.write_text(json.dumps(tree | {"submitted_at": str(at).replace(" ", "T")}))
        assert _codes(store, whole) == ["filing.date"], at
    soon = now() + timedelta(minutes=9)
    path.write_text(json.dumps(tree | {"submitted_at": soon.isoformat()}))
    assert _codes(store, whole) == []
    for at in ("9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00"):
        path.write_text(json.dumps(tree | {"submitted_at": at}))
        assert _codes(store, whole) == ["record.format"]
    path.unlink()
    assert _codes(store, whole) == ["filing.missing"]


def test_an_invented_blind_round_and_a_result_without_ranks_are_refused(store, whole, release):
    result = _scored(release, store.parent, 60.0, "Blind")
    invented = Release(origin="blind", fingerprint=result.release.fingerprint)
    with_ranks = shutil.copytree(whole, store.parent / "ranks")
    file_result(with_ranks, result.model_copy(update={"release": invented}), LATER)
    assert "record.keeper" in _codes(with_ranks, whole), "whatever else it has"
    forged = {"ranks": None, "release": invented}
    file_result(store, result.model_copy(update=forged), LATER)
    assert _codes(store, whole) == ["record.keeper"]
    assert "result.differs" in _codes(store, whole, keeper=True, releases=[release])
    other = shutil.copytree(whole, store.parent / "other")
    file_result(other, result.model_copy(update={"ranks": None}), LATER)
    assert "result.differs" in _codes(other, keeper=True)


def test_forged_references_and_counts_are_found_and_not_shown(store, whole, release):
    """A board only shows references that its keepers recomputed, and chance."""
    result = _scored(release, store.parent, 3.0, "Forged")
    forged = {"references": {**result.references, "lang": 1.0, "site": 0.5}}
    forged["duplicates"] = result.duplicates.model_copy(update={"captions": 9})
    entry, _ = file_result(store, result.model_copy(update=forged), LATER)
    assert _codes(store, whole) == []
    problems = check_store(store, whole, releases=[release])
    fields = {problem.found.split()[0] for problem in problems}
    assert fields == {"references.lang", "references.site", "duplicates.captions"}
    own = [one for one in read_store(store) if one.name == entry.name]
    for known, shown in (({}, {"chance"}), ({"lang": 350.0}, {"chance", "lang"})):
        board = make_board("jieba", own, references={entry.result.release.fingerprint: known})
        rows = board[(board["evidence"] == "reference") & (board["data"] != "published test split")]
        assert set(rows["method"]) == shown
        assert set(rows["rsum"]) & {1.0, 0.5} == set()
    made_up = Release(origin="rebuilt", fingerprint="ab" * 32)
    file_result(store, result.model_copy(update={"release": made_up}), LATER)
    problems = check_store(store, whole, releases=[release])
    assert "release.fingerprint" in {problem.found.split()[0] for problem in problems}
    unknown = {"references": {**result.references, "fame": 1.0}}
    file_result(store, result.model_copy(update=unknown), LATER)
    assert "result.differs" in _codes(store, whole)


def test_records_that_decide_on_proof_are_for_keepers(store, whole, release):
    """A forged report on a data set would show its text on pages of proven entries."""
    report = dataset_report(release)
    forged = report.model_copy(update={"fingerprint": "f" * 64, "name": "Everyone else cheated"})
    file_report(store, forged)
    name = next(one.name for one in read_store(store) if not one.withdrawal)
    withdraw(store, name, "not good enough", AT)
    run = json.loads(_one(store, "reproductions").read_text())
    path = store / "reproductions" / f"{run['name']}-{'0' * 12}.json"
    run["result"]["payload_sha256"] = "0" * 64
    path.write_text(json.dumps(run))
    problems = check_store(store, whole)
    assert [(one.code, one.field.partition("/")[0]) for one in problems] == [
        ("record.keeper", folder) for folder in ("datasets", "reproductions", "withdrawals")
    ]
    assert check_store(store, whole, keeper=True) == []
    run["difference"] = [-1.0, 1.0]
    path.write_text(json.dumps(run))
    assert _codes(store, whole, keeper=True) == ["result.differs"]


def test_a_round_is_proof_if_its_hashes_were_filed_before_the_close(
    release, secret, tmp_path, now_leaderboard
):
    """Results of the open round commit to files, and the round to its pairing."""
    out, store = tmp_path / "out", tmp_path / "store"
    make_round(release, out, RoundPlan(secret_file=secret))
    noise = np.random.default_rng(0).standard_normal((24, 24))
    x = pack_for_round(out, (noise + 2 * pairing_of(out)).astype(np.float32), tmp_path / "x.zip")
    submit = ("submit", x, "--store", store, "--release")
    assert now_leaderboard(*submit, out / "judge")[0] == 0
    assert [one.evidence for one in read_store(store)] == ["blind"]
    assert check_store(store, keeper=True, releases=[out / "participants"]) == []
    before = shutil.copytree(store, tmp_path / "before")
    closed = close_round(out)
    assert now_leaderboard(*submit, closed)[0] == 0
    assert check_store(store, before, keeper=True, releases=[closed]) == []
    (entry,) = read_store(store)
    assert (entry.evidence, entry.result.release.origin) == ("blind", "closed")
    assert entry.result.ranks is not None
    pages = dict(render_site([entry]))
    assert 'class="chip blind"' in pages[f"entries/{entry.name}.html"]
    assert _codes(store, before) == ["record.keeper"], "proof is for keepers to add"
    late = pack_for_round(out, pairing_of(out), tmp_path / "late.zip")
    _, new = file_result(store, score(late, closed))
    assert new
    assert {one.evidence for one in read_store(store)} == {"blind", "scored"}, "no hash stood"
    path = store / entry.path
    path.unlink()
    (store / "filings" / f"{entry.name}.json").unlink()
    better = score(late, closed).model_copy(
        update={"payload_sha256": entry.result.payload_sha256, "method": entry.result.method}
    )
    file_result(store, better)
    assert "result.differs" in _codes(store, before, keeper=True), "other figures than it had open"
    _one(store, "rounds").unlink()
    problems = check_store(store, keeper=True, releases=[closed])
    assert any("a record of the open round" in problem.expected for problem in problems)
    assert read_result(_one(before, "results")).ranks is None


@pytest.fixture(scope="module")
def workflow():
    """The example in the documentation."""
    text = (Path(__file__).parents[3] / "docs" / "results-repository.md").read_text()
    return yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0])


def test_the_documented_workflow_trusts_nothing_of_a_pull_request(workflow):
    assert workflow[True] == "pull_request", "YAML's on"
    assert workflow["permissions"] == {"contents": "read"}
    steps = workflow["jobs"]["check"]["steps"]
    assert not any("${{" in step.get("run", "") for step in steps)
    checkouts = [step["with"] for step in steps if "checkout" in step.get("uses", "")]
    assert [one["persist-credentials"] for one in checkouts] == [False, False]
    installs = [step for step in steps if "pip install" in step.get("run", "")]
    assert [step["working-directory"] for step in installs] == ["base"]


def test_the_documented_steps_find_what_is_outside_the_store(workflow, whole, tmp_path):
    step = next(one for one in workflow["jobs"]["check"]["steps"] if "diff" in one.get("run", ""))
    changes = {
        "nothing": (lambda head: None, 0),
        "results": (lambda head: (head / "store" / "results" / "x.json").write_text("{}"), 0),
        "workflow": (lambda head: (head / ".github" / "check.yml").write_text("on: push\n"), 1),
        "code": (lambda head: (head / "sub" / "store").mkdir(parents=True), 1),
        "link": (lambda head: (head / "link").symlink_to("/etc/passwd"), 1),
    }
    for name, (change, expected) in changes.items():
        for side in ("base", "head"):
            (tmp_path / name / side / ".git").mkdir(parents=True)
            (tmp_path / name / side / ".github").mkdir()
            (tmp_path / name / side / ".github" / "check.yml").write_text("on: pull_request\n")
            shutil.copytree(whole, tmp_path / name / side / "store")
        change(tmp_path / name / "head")
        command = ["bash", "-e", "-c", step["run"]]
        done = subprocess.run(command, cwd=tmp_path / name, capture_output=True, check=False)
        assert done.returncode == expected, name
