"""An open blind round over HTTP: few files a person, and new figures only a step up."""

import numpy as np
import pytest

from leaderboard.blind import RoundPlan, close_round, make_round
from leaderboard.scoring.evaluate import score
from leaderboard.submission.archive import Method
from tests.leaderboard.conftest import at_once, pack_for_round, pairing_of


@pytest.fixture
def out(release, tmp_path):
    make_round(release, tmp_path / "out", RoundPlan(scored=3))
    return tmp_path / "out"


@pytest.fixture
def made(out, tmp_path):
    """Make the bytes of a file that scores the higher the stronger."""

    def make(strength, seed=0, track="jieba"):
        pairs = pairing_of(out)
        noise = np.random.default_rng(seed).standard_normal(pairs.shape)
        matrix, method = noise + strength * pairs, Method(name=f"Mine {seed}")
        path = pack_for_round(out, matrix, tmp_path / "made.zip", track, method=method)
        return path.read_bytes()

    return make


@pytest.fixture
def board(make_board, out, database_url):
    return make_board(database_url, scored_on=out / "judge")


def _left(board, token):
    return board.call("GET", "/v1/me", token).json()["quota"]["round"]


def test_only_a_step_up_gets_new_figures_and_every_file_counts(board, made, out, tmp_path):
    ann, bob = board.token("ann"), board.token("bob")
    first = board.put(made(2), ann)
    assert (first.status_code, first.headers["Round-File"]) == (201, "1 of 3")
    (tmp_path / "x.zip").write_bytes(made(2))
    assert first.json()["rsum"] == score(tmp_path / "x.zip", out / "judge").rsum
    for _ in range(2):  # the second time it is the same file
        worse = board.put(made(0, seed=1), ann)
        assert (worse.status_code, worse.headers["Round-File"]) == (200, "2 of 3")
        assert (worse.text, worse.headers["Location"]) == (first.text, first.headers["Location"])
        assert _left(board, ann) == 1
    better = board.put(made(20, seed=2), ann)
    assert (better.status_code, better.headers["Round-File"]) == (201, "3 of 3")
    assert better.json()["rsum"] > first.json()["rsum"]
    over = board.put(made(30, seed=3), ann)
    assert over.status_code == 429
    assert over.json()["detail"] == "all 3 files of this round are used; your best one stands"
    again = board.put(made(2), ann)
    assert (again.status_code, again.headers["Round-File"]) == (200, "1 of 3")
    assert (_left(board, ann), _left(board, bob)) == (0, 3)
    assert board.put(made(0.5, seed=4), bob).status_code == 201
    assert len(list((tmp_path / "store/results").glob("*.json"))) == 3


def test_a_refused_file_is_not_counted_and_the_operator_has_no_bound(board, made):
    ann = board.token("ann")
    refused = board.put(made(1)[:-1], ann)
    assert (refused.status_code, _left(board, ann)) == (422, 3)
    for seed in range(5):
        assert board.put(made(1, seed)).status_code == 201
    assert board.call("GET", "/v1/me", board.token("eve")).json()["quota"]["scored"] == 5


def test_tracks_share_the_files_and_have_a_best_each(board, made):
    ann = board.token("ann")
    assert board.put(made(9), ann).headers["Round-File"] == "1 of 3"
    other = board.put(made(1, track="bpe"), ann)
    assert (other.status_code, other.headers["Round-File"]) == (201, "2 of 3")


def test_who_withdraws_the_best_hears_no_lower_figure(board, made):
    ann = board.token("ann")
    location = board.put(made(20), ann).headers["Location"]
    said = {"reason": "Once more."}
    assert board.call("POST", f"{location}/withdraw", ann, json=said).status_code == 200
    told = board.put(made(1, seed=1), ann)
    assert told.status_code == 409
    assert "file 2 of 3: no step above your best" in told.json()["detail"]
    assert _left(board, ann) == 1


def test_files_sent_at_once_are_counted_one_by_one(board, made, tmp_path):
    ann, files = board.token("ann"), [made(1, seed) for seed in range(9)]
    answers = at_once(lambda content: board.put(content, ann), files)
    codes = sorted(answer.status_code for answer in answers)
    assert codes[-6:] == [429] * 6
    turns = [answer.headers["Round-File"] for answer in answers if answer.status_code < 300]
    assert sorted(turns) == ["1 of 3", "2 of 3", "3 of 3"]


def test_files_stay_counted_when_the_service_starts_again(make_board, made, out, database_url):
    first = make_board(database_url, scored_on=out / "judge")
    ann = first.token("ann")
    first.put(made(9), ann)
    first.put(made(1, seed=1), ann)
    first.stop()
    second = make_board(database_url, scored_on=out / "judge")
    assert _left(second, ann) == 1
    assert second.put(made(1, seed=1), ann).headers["Round-File"] == "2 of 3"


def test_after_the_close_files_are_scored_as_ever(board, made, out):
    ann = board.token("ann")
    board.put(made(9), ann)
    close_round(out)
    late = board.put(made(1, seed=1), ann)
    assert (late.status_code, late.headers.get("Round-File")) == (201, None)
    assert late.json()["i2t"]["meanR"] is not None
    assert _left(board, ann) is None


def test_the_client_says_which_file_it_was(make_board, made, out, tmp_path, now_leaderboard):
    board = make_board(scored_on=out / "judge")
    (tmp_path / "token").write_text(board.token("ann"))
    to = ("--url", board.url, "--token-file", tmp_path / "token")
    for strength, told in (
        (9, "file 1 of 3 in this round\n"),
        (1, "file 2 of 3 in this round; your best stands\n"),
    ):
        (tmp_path / "x.zip").write_bytes(made(strength))
        code, text, said = now_leaderboard("submit", tmp_path / "x.zip", *to)
        assert code == 0
        assert told in said
    assert "already there" in text
    assert "files in this round: 1 left" in now_leaderboard("quota", *to)[1]
