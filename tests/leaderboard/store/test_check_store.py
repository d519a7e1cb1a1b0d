"""What a pull request would make of a store: everything that is wrong is found, nothing is run."""

import json
import os
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from leaderboard.store.check_store import Trust, check_store
from leaderboard.store.dataset import dataset_report, file_report
from leaderboard.store.entries import (
    NewFiling,
    Reproduction,
    add_reproduction,
    file_result,
    withdraw,
)
from tests.leaderboard.conftest import make_similarity, score_matrix

AT = datetime(2026, 1, 1, tzinfo=UTC)
LATER = AT + timedelta(seconds=1)


def _scored(release, folder, strength=2.0, name="Mine"):
    return score_matrix(folder / f"{name}.zip", release, make_similarity(strength=strength), name)


def _file(store, *arguments):
    """File a result, and leave out what is private, as git does."""
    entry, _ = file_result(store, *arguments)
    shutil.rmtree(store / "private")
    return entry


@pytest.fixture(scope="module")
def whole(release, tmp_path_factory):
    """A store with everything in it, as git would have it: without what is private."""
    folder = tmp_path_factory.mktemp("whole")
    store, result = folder / "store", _scored(release, folder)
    first, _ = file_result(store, result, NewFiling("ann", AT))
    file_result(store, _scored(release, folder, 1.0, "Other"), NewFiling("bo", AT))
    withdraw(store, first.name, "an error", AT)
    again = Reproduction(
        name=first.name, by="cy", reproduced_at=AT, rsum=400.0, payload_sha256="a" * 64
    )
    add_reproduction(store, again)
    file_report(store, dataset_report(release))
    (store / "README.md").write_text("Results.\n")
    shutil.rmtree(store / "private")
    return store


@pytest.fixture
def store(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "store")


def _codes(problems):
    return [problem.code for problem in problems]


def _one(store, folder):
    return min((store / folder).iterdir())


def test_a_sound_store_is_fine_and_so_is_its_growth(store, whole, release, now_leaderboard):
    assert check_store(store) == []
    _file(store, _scored(release, store.parent, 3.0, "Third"), NewFiling("dee", LATER))
    assert check_store(store, whole) == []
    code, text, _ = now_leaderboard("check-store", store, "--base", whole)
    assert (code, text) == (0, f"{store}: fine\n")
    assert json.loads(now_leaderboard("check-store", store, "--json")[1]) == []


def test_nothing_of_the_base_may_change_or_go(store, whole, now_leaderboard):
    _one(store, "results").unlink()
    path = _one(store, "filings")
    path.write_text(path.read_text().replace("2026-01-01", "2025-01-01"))
    (store / ".gitignore").unlink()
    (store / "README.md").write_text("Other results.\n")
    found = {(problem.code, problem.field) for problem in check_store(store, whole)}
    expected = {
        ("base.deleted", f"results/{_one(whole, 'results').name}"),
        ("base.changed", f"filings/{path.name}"),
        ("base.deleted", ".gitignore"),
        ("base.changed", "README.md"),
    }
    assert expected <= found
    code, text, _ = now_leaderboard("check-store", store, "--base", whole, "--json")
    assert code == 1
    assert {problem["code"] for problem in json.loads(text)} >= {"base.deleted", "base.changed"}
    code, text, told = now_leaderboard("check-store", store, "--base", whole)
    assert (code, told) == (1, "")
    assert "base.deleted: .gitignore: found nothing" in text


def test_figures_that_nobody_can_recompute_are_the_judges_alone(store, whole, release):
    result = _scored(release, store.parent, 3.0, "Blind")
    told = {"release": result.release.model_copy(update={"origin": "blind"}), "ranks": None}
    blind = result.model_copy(update=told)
    _file(store, blind, NewFiling("judge", LATER))
    assert _codes(check_store(store, whole)) == ["result.unproved"]
    assert check_store(store, whole, Trust(keeper=True)) == []
    assert check_store(store, store) == [], "what stands was judged"
    unproved = shutil.copytree(whole, store.parent / "other")
    _file(unproved, result.model_copy(update={"ranks": None}))
    assert _codes(check_store(unproved, trust=Trust(keeper=True))) == ["result.unproved"]


def test_names_are_those_of_contents(store):
    result = _one(store, "results")
    result.rename(result.with_name(f"bert-{result.name.partition('-')[2]}"))
    for folder in ("filings", "withdrawals", "reproductions", "datasets"):
        path = _one(store, folder)
        path.rename(
            path.with_name(f"0{path.name[1:]}" if path.name[0] != "0" else f"1{path.name[1:]}")
        )
    found = {problem.field.partition("/")[0] for problem in check_store(store)
             if problem.code == "record.name"}  # fmt: skip
    assert found == {"results", "filings", "withdrawals", "reproductions", "datasets"}


def test_what_is_said_points_to_entries(store):
    for path in (store / "results").iterdir():
        path.unlink()
    codes = _codes(check_store(store))
    assert codes.count("record.dangling") == 4, "two filings, two others"


def test_what_is_no_record_is_the_judges_alone(store, whole, tmp_path):
    base = shutil.copytree(whole, tmp_path / "base")
    (base / "README.md").unlink()
    (store / ".github").mkdir()
    found = {(problem.code, problem.field) for problem in check_store(store, base)}
    assert found == {("base.changed", "README.md"), ("store.foreign", ".github")}


@pytest.mark.parametrize("second", [0, -1])
def test_a_filing_dated_no_later_than_the_last_of_the_base_is_named(store, whole, release, second):
    """Of near-identical entries the earlier one keeps the place."""
    filing = NewFiling("eve", AT + timedelta(seconds=second))
    _file(store, _scored(release, store.parent, 3.0, "Third"), filing)
    assert _codes(check_store(store, whole)) == ["filing.date"]


def test_a_new_result_without_a_filing_is_named(store, whole, release):
    """It would count as older than all that are dated."""
    entry = _file(store, _scored(release, store.parent, 3.0, "Third"))
    (problem,) = check_store(store, whole)
    assert problem.code == "filing.missing"
    assert (problem.expected, check_store(store, store)) == (f"filings/{entry.name}.json", [])


@pytest.mark.parametrize(
    ("at", "code"),
    [
        ("2999-01-01T00:00:00Z", "filing.date"),
        ("9999-12-31T23:59:59-14:00", "record.format"),
        ("0001-01-01T00:00:00+14:00", "record.format"),
    ],
)
def test_a_filing_of_another_time_is_named(store, at, code):
    """It would be the newest for ever, or too far for a database."""
    path = next((store / "filings").iterdir())
    path.write_text(json.dumps(json.loads(path.read_text()) | {"submitted_at": at}))
    assert code in _codes(check_store(store))


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"\xff", "JSON"), (b'{"format": "now-filing/1"}', "name"), (b"[]", "dictionary|object")],
)
def test_a_file_that_is_no_record_is_named(store, content, said):
    path = _one(store, "filings")
    path.write_bytes(content)
    problems = [one for one in check_store(store) if one.field == f"filings/{path.name}"]
    assert _codes(problems) == ["record.format"]
    assert any(word in problems[0].found for word in said.split("|")), problems[0]


def test_a_result_is_written_as_score_writes_it(store):
    path = _one(store, "results")
    path.write_text(json.dumps(json.loads(path.read_text())))
    assert _codes(check_store(store)) == ["record.text"]


def test_links_and_foreign_files_are_found_and_never_followed(store, tmp_path):
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    (store / "filings" / "aaaaaaaaaaaa.json").symlink_to(secret)
    (store / "datasets2").symlink_to(tmp_path)
    (store / "results" / "evil.py").write_text("raise SystemExit(3)")
    (store / "results" / "FILE.json").write_text("{}")
    (store / "results" / ".hidden.json").write_text("{}")
    (store / "filings" / "deep").mkdir()
    (store / "conftest.py").write_text("raise SystemExit(3)")
    (store / "private").write_text("{}")
    os.mkfifo(store / "withdrawals" / "bbbbbbbbbbbb.json")
    (store / "results" / "a\u202eb.json").write_text("{}")
    found = {problem.field: problem.code for problem in check_store(store)}
    assert found == {
        "filings/aaaaaaaaaaaa.json": "store.link",
        "datasets2": "store.link",
        "results/evil.py": "store.foreign",
        "results/FILE.json": "store.foreign",
        "results/.hidden.json": "store.foreign",
        "results/'a\\u202eb.json'": "store.foreign",
        "filings/deep": "store.foreign",
        "conftest.py": "store.foreign",
        "private": "store.private",
        "withdrawals/bbbbbbbbbbbb.json": "store.special",
    }


@pytest.mark.parametrize(
    ("name", "make", "refused"),
    [
        ("store.lock", Path.touch, False),
        ("store.lock", Path.mkdir, True),
        ("store.lock", lambda path: path.symlink_to("/dev/null"), True),
        ("store.lock", lambda path: path.write_text("{}"), True),
        ("x.json", Path.touch, True),
        ("folder", Path.mkdir, True),
    ],
)
def test_a_private_folder_has_the_lock_that_submit_leaves_alone(store, name, make, refused):
    (store / "private").mkdir()
    make(store / "private" / name)
    assert _codes(check_store(store)) == ["store.private"] * refused
    assert _codes(check_store(store, store)) == ["store.private"] * refused


def test_a_file_too_large_is_not_read(store):
    path = store / "filings" / "aaaaaaaaaaaa.json"
    with path.open("wb") as file:
        file.truncate(2**40)
    assert _codes(check_store(store)) == ["store.size"]


def test_neither_a_store_nor_its_folders_may_be_links_or_missing(store, whole, now_leaderboard):
    for arguments in ([store / "none"], [store, "--base", store / "none"]):
        code, _, told = now_leaderboard("check-store", *arguments)
        assert (code, "no such folder" in told, told.count("\n")) == (1, True, 1)
    shutil.rmtree(store / "results")
    (store / "results").symlink_to(whole / "results")
    codes = _codes(check_store(store, whole))
    assert ("store.link" in codes, codes.count("base.deleted")) == (True, 2)
    shutil.rmtree(store)
    store.symlink_to(whole)
    code, _, told = now_leaderboard("check-store", store, "--base", whole)
    assert (code, f"{store}: a link" in told) == (1, True)


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

    def changed(change):
        place = tmp_path / change.__name__
        for side in ("base", "head"):
            (place / side / ".git").mkdir(parents=True)
            (place / side / ".github").mkdir()
            (place / side / ".github" / "check.yml").write_text("on: pull_request\n")
            shutil.copytree(whole, place / side / "store")
        change(place / "head")
        command = ["bash", "-e", "-c", step["run"]]
        code = subprocess.run(command, cwd=place, capture_output=True, check=False).returncode
        return code, sorted(path.name for path in place.iterdir())

    def nothing(head):
        pass

    def more_results(head):
        (head / "store" / "results" / "x.json").write_text("{}")

    def workflow_changed(head):
        (head / ".github" / "check.yml").write_text("on: pull_request_target\n")

    def code_added(head):
        (head / "sub" / "store").mkdir(parents=True)

    def link_added(head):
        (head / "link").symlink_to("/etc/passwd")

    assert changed(nothing) == (0, ["base", "head", "new", "old"])
    assert changed(more_results)[0] == 0
    for change in (workflow_changed, code_added, link_added):
        assert changed(change)[0] == 1, change
