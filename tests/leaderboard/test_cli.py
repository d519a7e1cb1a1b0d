"""The commands: output, and exit codes 0, 1 and 2."""

import csv
import io
import json

import numpy as np
import pytest

from tests.leaderboard.conftest import make_similarity


@pytest.fixture
def matrix(tmp_path):
    np.save(tmp_path / "s.npy", make_similarity())
    return tmp_path / "s.npy"


def test_the_whole_way_from_a_matrix_to_a_page(
    tmp_path, now_leaderboard, matrix, release, attributes
):
    about = tmp_path / "about.toml"
    about.write_text('authors = ["Ann"]\n[training]\nseeds = [1, 2]\n')
    x, result, store = tmp_path / "x.zip", tmp_path / "r.json", tmp_path / "store"
    options = ["--release", release]
    more = ["--about", about, "--set", "training.ensemble_size=2"]
    naming = ["--track", "jieba", "--method", "Mine"]
    code, _, progress = now_leaderboard("pack", matrix, "-o", x, *options, *naming, *more)
    assert (code, progress) == (0, "")
    code, text, _ = now_leaderboard("score", "--check", x, *options)
    assert (code, "Mine" in text) == (0, True)
    options += ["--attributes", attributes]
    code, text, _ = now_leaderboard("score", x, *options, "-o", result)
    assert code == 0
    assert "rSum 491.7 (95 % interval" in text
    assert "language and topic" in text
    tree = json.loads(result.read_text())
    assert tree["training"] == tree["training"] | {"seeds": [1, 2], "ensemble_size": 2}
    _, text, _ = now_leaderboard("score", x, *options, "--json")
    assert json.loads(text) == tree
    for state in ("filed", "already there"):
        assert state in now_leaderboard("submit", x, *options, "--store", store)[1]
    code, text, _ = now_leaderboard("export-site", tmp_path / "site", "--results", store, result)
    assert (code, "1 results" in text) == (0, True)
    assert "Mine" in (tmp_path / "site" / "index.html").read_text()


def test_an_unranked_result_still_exits_0(tmp_path, now_leaderboard, release):
    x, options = tmp_path / "x.zip", ["--release", release]
    np.save(tmp_path / "s.npy", np.zeros((24, 24), np.float32))
    naming = ["--track", "bpe", "--method", "Constant"]
    now_leaderboard("pack", tmp_path / "s.npy", "-o", x, *options, *naming)
    code, text, _ = now_leaderboard("score", x, *options)
    assert code == 0
    assert "not ranked: ties decide 600.0 rSum points" in " ".join(text.split())


MISTAKES = [
    ("score none.zip --release {release}", "none.zip: file not found"),
    ("score {packed} --release nowhere", "nowhere: no such release folder"),
    ("score {packed} --release {archive}", "test_caps_jieba.txt: no such file"),
    ("score {packed} --release {release} --attributes no.csv", "no.csv"),
    ("score --check {matrix} --release {release}", "a zip without comment or trailing data"),
    ("pack none.npy -o y.zip --track bpe --method M --release {release}", "none.npy"),
    ("pack {matrix} -o y.zip --track x --method M --release {release}", "found 'x'"),
    (
        "pack {matrix} -o y.zip --track bpe --method M --split dev --release {release}",
        "found shape (24, 24), expected (12, 12)",
    ),
    (
        "pack {matrix} -o y.zip --track bpe --method M --set rsum=6 --release {release}",
        "rsum",
    ),
    (
        "pack {matrix} -o y.zip --track bpe --method M --set track=jieba --release {release}",
        "submission.track: found 'jieba', expected one of method, authors, ",
    ),
    (
        "pack {matrix} -o y.zip --track bpe --method M --release {release} --set payload=9",
        "submission.payload: found 9, expected one of method, authors, ",
    ),
    ("score {release} --release {release}", "release: a folder, expected a file"),
    ("export-site site --results none.json", "none.json"),
    (
        "submit {packed} --release {release} --store {release}",
        "release: contains manifest.json, which is not part of a folder of results. Name a new",
    ),
    (
        "submit {packed} --release {release} --store {matrix}",
        "s.npy: a file, expected a folder",
    ),
    (
        "compare {packed} {packed}",
        "x.zip: not a result. Score the submission first: now-leader",
    ),
    ("export jieba --results {release}", ".json: not a result. Score the submission first"),
    ("dataset-report {release} --store {archive}", "contains h5100k_precomp, which is not"),
    (
        "reproduce 0123456789ab {packed} --by A --store {release} --release {release}",
        "entry '0123456789ab' not found",
    ),
]


def test_a_users_mistake_is_one_line_and_exit_1(request, now_leaderboard):
    files = {
        name: request.getfixturevalue(name) for name in ("release", "archive", "packed", "matrix")
    }
    for arguments, message in MISTAKES:
        code, text, problem = now_leaderboard(*arguments.format(**files).split())
        assert (code, text) == (1, ""), arguments
        assert problem.startswith("error: ")
        assert problem.count("\n") == 1
        assert message in problem


def test_wrong_usage_exits_2(now_leaderboard):
    assert now_leaderboard("score")[0] == 2
    assert now_leaderboard("nonsense")[0] == 2


def test_what_is_submitted_first_keeps_its_place(tmp_path, now_leaderboard, release):
    """Whatever the names, which are hashes."""
    store, options, sent = tmp_path / "st", ["--release", release], []
    for factor in (1, 2, 3, 4):
        np.save(tmp_path / "s.npy", factor * make_similarity())
        naming = ["--track", "jieba", "--method", f"M{factor}"]
        now_leaderboard("pack", tmp_path / "s.npy", "-o", tmp_path / "x.zip", *options, *naming)
        output = now_leaderboard("submit", tmp_path / "x.zip", *options, "--store", store)[1]
        sent.append(output.partition(":")[0])
    assert now_leaderboard("check-store", store) == (0, f"{store}: valid\n", "")
    gone = now_leaderboard("withdraw", sent[3], "--store", store, "--reason", "a bug")
    assert gone == (0, f"{sent[3]}: withdrawn\n", "")
    text = now_leaderboard("export", "jieba", "--store", store, "--to", "json")[1]
    equal = {row["entry"]: row["equal_to"] for row in json.loads(text)["rows"] if row["entry"]}
    assert equal == {sent[0]: None} | dict.fromkeys(sent[1:3], sent[0])


def test_export_prints_a_board(tmp_path, now_leaderboard, packed, release):
    now_leaderboard("submit", packed, "--release", release, "--store", tmp_path / "st")
    code, text, _ = now_leaderboard("export", "jieba", "--store", tmp_path / "st")
    records = list(csv.DictReader(io.StringIO(text, newline="")))
    assert code == 0
    assert [row["method"] for row in records if row["evidence"] == "scored"] == ["Mine"]
    code, text, _ = now_leaderboard("export", "cc152k", "--format", "md")
    assert (code, text.count("### ")) == (0, 1)
    code, text, problem = now_leaderboard("export", "now")
    assert (code, text) == (1, "")
    assert "found 'now', expected one of " in problem
    assert now_leaderboard("export", "bpe", "--format", "xls")[0] == 2
