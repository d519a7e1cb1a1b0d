"""The operator's commands: users, tokens, the log, the index."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from leaderboard.scoring.evaluate import score
from leaderboard.service.accounts import authenticate, list_tokens
from leaderboard.service.database import open_database
from leaderboard.store.entries import NewFiling, file_result


@pytest.fixture(autouse=True)
def _no_database_named(monkeypatch):
    monkeypatch.delenv("NOW_LEADERBOARD_DATABASE", raising=False)


@pytest.fixture
def admin(monkeypatch, now_leaderboard, database_url):
    """The same, on a database that the environment names."""
    monkeypatch.setenv("NOW_LEADERBOARD_DATABASE", database_url)
    return lambda *arguments: now_leaderboard("admin", *arguments)


def test_a_token_is_printed_once_and_lets_its_user_in(admin, database_url):
    assert admin("user", "add", "ann", "--name", "Ann of the hills") == (0, "ann: made\n", "")
    code, out, progress = admin("token", "add", "ann", "--label", "laptop", "--days", 30)
    token = out.strip()
    engine = open_database(database_url)
    principal = authenticate(engine, token)
    (listed,) = list_tokens(engine)
    engine.dispose()
    assert (code, principal.handle, principal.scopes) == (0, "ann", {"submit", "read"})
    left = listed.expires_at - datetime.now(UTC)
    assert timedelta(days=29, hours=23) < left <= timedelta(days=30)
    assert token not in progress
    assert "not shown again" in progress
    everything = [admin("token", "list"), admin("token", "list", "--json"), admin("events")]
    for code, out, progress in everything:
        assert code == 0
        assert token[4:12] in out
        assert token[13:56] not in out + progress


def test_lists_for_people_and_for_machines(admin):
    admin("user", "add", "bob")
    admin("user", "add", "ann")
    admin("token", "add", "ann", "--scope", "admin", "--scope", "read")
    _, out, _ = admin("user", "list")
    assert [line.split()[1] for line in out.splitlines()] == ["handle=ann", "handle=bob"]
    assert "disabled_at" not in out
    _, out, _ = admin("user", "list", "--json")
    assert [user["disabled_at"] for user in json.loads(out)] == [None, None]
    (token,) = json.loads(admin("token", "list", "ann", "--json")[1])
    assert (token["handle"], token["scopes"]) == ("ann", ["admin", "read"])
    assert admin("token", "list", "bob") == (0, "", "")


def test_users_and_tokens_are_shut_out(admin, database_url):
    admin("user", "add", "ann")
    token = admin("token", "add", "ann")[1].strip()
    assert admin("user", "disable", "ann")[:2] == (0, "ann: disabled\n")
    assert "disabled_at=" in admin("user", "list")[1]
    assert admin("user", "disable", "ann", "--undo")[:2] == (0, "ann: enabled\n")
    assert admin("token", "revoke", token[4:12])[:2] == (0, f"{token[4:12]}: revoked\n")
    kinds = [event["kind"] for event in json.loads(admin("events", "--json")[1])]
    assert kinds == [
        "user.created",
        "token.created",
        "user.disabled",
        "user.enabled",
        "token.revoked",
    ]
    first, *others = json.loads(admin("events", "--json", "--limit", 2)[1])
    assert len(others) == 1
    page = json.loads(admin("events", "--json", "--after", first["number"])[1])
    assert [event["kind"] for event in page] == kinds[1:]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("user", "add", "Ann"), "handle: found 'Ann'"),
        (("token", "add", "ann", "--scope", "root"), "scopes: found root"),
        (("token", "revoke", "nonesuch"), "found 'nonesuch'"),
    ],
)
def test_a_mistake_is_a_line_and_exit_code_1(now_leaderboard, tmp_path, arguments, problem):
    store = tmp_path / "store"
    now_leaderboard("admin", "user", "add", "ann", "--store", store)
    assert (store / ".gitignore").read_text() == "/private/\n"
    code, out, said = now_leaderboard("admin", *arguments, "--store", store)
    assert (code, out, said.count("\n")) == (1, "", 1)
    assert problem in said


def test_the_index_is_made_again_in_the_stores_own_database(
    now_leaderboard, tmp_path, packed, release
):
    store = tmp_path / "store"
    file_result(store, score(packed, release), NewFiling("ann", datetime(2026, 3, 1, tzinfo=UTC)))
    first = now_leaderboard("rebuild-db", store)
    again = now_leaderboard("rebuild-db", store)
    assert first == (0, "1 entries (1 added, 0 removed), 1 users made\n", "")
    assert again == (0, "1 entries (0 added, 0 removed), 0 users made\n", "")
    assert (store / "private" / "board.sqlite").is_file()
    assert now_leaderboard("admin", "user", "list", "--store", store)[1].count("handle=ann") == 1
    code, _, problem = now_leaderboard("rebuild-db", tmp_path / "elsewhere")
    assert (code, "no such folder" in problem) == (1, True)
