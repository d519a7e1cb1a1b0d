"""Tokens: shown once, kept as a hash, and one answer for all that are no good."""

import io
import logging
import re
import zlib
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Table, text

from leaderboard.service import events
from leaderboard.service.accounts import (
    TOKEN,
    TokenError,
    authenticate,
    create_token,
    create_user,
    list_tokens,
    list_users,
    revoke_token,
    set_disabled,
)
from leaderboard.service.database import Base, Token, reading, writing
from now_builder.errors import ConfigError


@pytest.fixture
def token(database):
    create_user(database, "ann", "Ann of the hills")
    return create_token(database, "ann", ["submit", "read"], label="laptop")


def _refused(database, token, **at):
    with pytest.raises(TokenError, match=r"^a valid bearer token is needed$"):
        authenticate(database, token, **at)
    return True


def test_a_token_tells_whose_it_is_and_what_it_allows(database, token):
    create_user(database, "bob")
    other = create_token(database, "bob", ["admin"])
    ann, bob = authenticate(database, token), authenticate(database, other)
    assert (ann.handle, ann.scopes) == ("ann", {"submit", "read"})
    assert (bob.handle, bob.scopes) == ("bob", {"admin"})
    assert ann.user_id != bob.user_id


def test_scanners_can_find_a_token_and_see_that_it_is_one(token):
    parts = TOKEN.fullmatch(token)
    assert parts is not None
    body, _, checksum = token.rpartition("_")
    assert int(checksum, 16) == zlib.crc32(body.encode())
    assert len(parts[2]) == 43


def _with_checksum(body):
    return f"{body}_{zlib.crc32(body.encode()):08x}"


def test_what_was_never_given_out_lets_nobody_in(database, token):
    prefix = token[4:12]
    guesses = [
        "",
        "now_",
        token[:-1],
        token + "0",
        token.upper(),
        token + "\n",
        token[:-1] + ("0" if token[-1] != "0" else "1"),
        "é" * 65,
        _with_checksum(f"now_{prefix}_{'A' * 43}"),
        _with_checksum(f"now_{'z' * 8}_{token[13:56]}"),
        f"now_{prefix}_' OR 1=1 --",
    ]
    assert all(_refused(database, guess) for guess in guesses)


def test_a_revoked_one_lets_nobody_in(database, token):
    prefix = token[4:12]
    revoke_token(database, prefix)
    first = list_tokens(database)[0].revoked_at
    revoke_token(database, prefix)
    assert _refused(database, token)
    assert list_tokens(database)[0].revoked_at == first
    kinds = [event.kind for event in events.read(database)]
    assert kinds == ["user.created", "token.created", "token.revoked"]


def test_an_expired_one_lets_nobody_in(database, token):
    soon = datetime.now(UTC) + timedelta(hours=1)
    brief = create_token(database, "ann", ["read"], expires_at=soon)
    assert authenticate(database, brief, soon - timedelta(seconds=1)).handle == "ann"
    assert _refused(database, brief, now=soon)
    assert authenticate(database, token, soon).handle == "ann"


def test_nobody_disabled_gets_in_until_enabled(database, token):
    set_disabled(database, "ann")
    assert _refused(database, token)
    assert list_users(database)[0].disabled_at is not None
    set_disabled(database, "ann", disabled=False)
    assert authenticate(database, token).handle == "ann"
    kinds = [event.kind for event in events.read(database)]
    assert kinds[-2:] == ["user.disabled", "user.enabled"]


def test_a_token_is_in_no_dump_no_repr_no_log(database, token, monkeypatch):
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    logger = logging.getLogger("sqlalchemy.engine")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    database.echo = True
    try:
        principal = authenticate(database, token)
        second = create_token(database, "ann", ["read"])
    finally:
        database.echo = False
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    with reading(database) as session:
        dump = [
            str(session.execute(table.select()).all())
            for table in Base.metadata.tables.values()
            if isinstance(table, Table)
        ]
        dump += [repr(row) for row in session.query(Token)]
    shown = "".join([*dump, repr(principal), repr(list_tokens(database)), log.getvalue()])
    assert "INSERT INTO tokens" in shown
    for plain in (token, second):
        assert plain not in shown
        assert plain[13:56] not in shown


def test_use_is_noted_to_the_minute(database, token):
    start = datetime(2026, 3, 1, tzinfo=UTC)
    for seconds, noted in ((0, 0), (59, 0), (60, 60), (90, 60)):
        authenticate(database, token, start + timedelta(seconds=seconds))
        assert list_tokens(database)[0].last_used_at == start + timedelta(seconds=noted)


@pytest.mark.parametrize(
    "handle", ["", "Ann", "a--b", "-a", "a-", "a b", "a/b", "<b>", "é", "a" * 40, "a\n", "=1+1"]
)
def test_what_is_no_handle(database, handle):
    with pytest.raises(ConfigError, match="handle: found"):
        create_user(database, handle)


def test_mistakes_of_the_operator(database, token):
    past = datetime.now(UTC) - timedelta(seconds=1)
    for mistake, problem in (
        (lambda: create_token(database, "bob", ["read"]), "found 'bob'"),
        (lambda: create_token(database, "ann", []), "found none"),
        (lambda: create_token(database, "ann", ["root"]), "found root"),
        (lambda: create_token(database, "ann", ["read"], expires_at=past), "a time to come"),
        (lambda: create_token(database, "ann", ["read"], label="\x1b[2J"), "printable"),
        (lambda: revoke_token(database, "nonesuch"), "'nonesuch'"),
        (lambda: set_disabled(database, "bob"), "found 'bob'"),
        (lambda: create_user(database, "bob", "x" * 121), "at most 120"),
        (lambda: create_user(database, "ann"), "is taken"),
    ):
        with pytest.raises(ConfigError, match=re.escape(problem)):
            mistake()


def test_two_tokens_of_one_prefix_are_told_apart(database, token):
    create_user(database, "bob")
    other = create_token(database, "bob", ["read"])
    twin = _with_checksum(f"now_{token[4:12]}_{other[13:56]}")
    from leaderboard.service.accounts import _hash

    with writing(database) as session:
        session.execute(
            text("UPDATE tokens SET prefix = :prefix, sha256 = :hash WHERE prefix = :old"),
            {"prefix": token[4:12], "hash": _hash(twin), "old": other[4:12]},
        )
    assert authenticate(database, twin).handle == "bob"
    assert authenticate(database, token).handle == "ann"
