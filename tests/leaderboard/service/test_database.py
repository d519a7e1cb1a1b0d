"""A database is made, brought up to date and refused; what it holds is bounded by itself."""

import sqlite3
import threading
import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from alembic import command
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError, StatementError

from leaderboard.service.accounts import create_user, list_users
from leaderboard.service.database import (
    EntryRow,
    User,
    default_url,
    insert_missing,
    open_database,
    reading,
    writing,
)
from leaderboard.service.migrations import settings
from now_builder.errors import ConfigError
from tests.leaderboard.conftest import at_once, entry_values

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def _add(database, **fields):
    with writing(database) as session:
        session.add(EntryRow(**entry_values(**fields)))


def test_migrations_and_models_agree(database):
    with database.connect() as connection:
        command.check(settings(connection))


def test_opened_again_it_is_the_same(database):
    create_user(database, "ann")
    again = open_database(_url(database))
    assert [user.handle for user in list_users(again)] == ["ann"]
    again.dispose()
    with pytest.raises(DBAPIError, match="never changed"), writing(database) as session:
        session.execute(text("DELETE FROM events"))


def _url(engine):
    return engine.url.render_as_string(hide_password=False)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            "UPDATE alembic_version SET version_num = '9999'",
            "newer version .tables 9999., expected",
        ),
        ("DROP TABLE alembic_version", "holds other tables .entries."),
    ],
)
def test_a_newer_one_and_one_of_something_else_are_refused(database, change, problem):
    with database.begin() as connection:
        connection.execute(text(change))
    with pytest.raises(ConfigError, match=problem):
        open_database(_url(database))


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("board.sqlite", "an address that is not one"),
        ("", "an address that is not one"),
        ("mysql://root@localhost/board", "found mysql://"),
        ("sqlite://", "found no file"),
        ("sqlite:///:memory:", "found no file"),
        ("sqlite:////proc/nowhere/board.sqlite", "No such file or directory"),
        ("sqlite:////etc/passwd/board.sqlite", "Not a directory|File exists"),
        ("postgresql://user:hunter2@127.0.0.1:1/board", "refused"),
    ],
)
def test_what_cannot_be_opened_is_said_in_a_line(url, problem):
    with pytest.raises(ConfigError, match=problem) as refused:
        open_database(url)
    assert "hunter2" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_files_that_are_no_database_or_cannot_be_written(tmp_path):
    path = tmp_path / "board.sqlite"
    path.write_text("not a database, only text\n" * 100)
    with pytest.raises(ConfigError, match="not a database"):
        open_database(f"sqlite:///{path}")
    path.unlink()
    open_database(f"sqlite:///{path}").dispose()
    with pytest.raises(ConfigError, match="readonly"):
        open_database(f"sqlite:///file:{path}?mode=ro&uri=true")


def test_others_cannot_read_the_file(tmp_path):
    engine = open_database(f"sqlite:///{tmp_path / 'made' / 'board.sqlite'}")
    create_user(engine, "ann")
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "made").iterdir()}
    engine.dispose()
    assert modes == {0o600}


@pytest.mark.parametrize("name", ["what?", "50%20", "#1 ü"])
def test_the_database_of_a_store_lies_in_it_whatever_its_name(tmp_path, name):
    open_database(default_url(tmp_path / name)).dispose()
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name / "private" / "board.sqlite").is_file()


def test_sqlite_is_set_for_many_readers_and_one_writer(tmp_path):
    engine = open_database(f"sqlite:///{tmp_path / 'board.sqlite'}")
    with reading(engine) as session:
        pragmas = ("journal_mode", "foreign_keys", "synchronous", "busy_timeout")
        found = [session.scalar(text(f"PRAGMA {name}")) for name in pragmas]
    engine.dispose()
    assert found == ["wal", 1, 1, 30_000]


def test_a_database_is_made_once_by_many_at_a_time(tmp_path, forked):
    url = f"sqlite:///{tmp_path / 'board.sqlite'}"
    script = (
        "from leaderboard.service.database import open_database\n"
        "argv[1].wait()\n"
        "open_database(argv[0])"
    )
    barrier = forked.Barrier(3)
    processes = [forked(script, url, barrier) for _ in range(3)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]


def test_opening_waits_for_another_process_that_is_making_the_file(tmp_path):
    # SQLite refuses the switch to the write-ahead log at once while another connection writes.
    file = tmp_path / "board.sqlite"
    other = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    other.execute("CREATE TABLE another (a)")
    timer = threading.Timer(0.3, other.rollback)
    timer.start()
    engine = open_database(f"sqlite:///{file}")
    timer.join()
    other.close()
    with reading(engine) as session:
        assert session.scalar(text("PRAGMA journal_mode")) == "wal"
    engine.dispose()


@pytest.mark.parametrize(
    "rsum", [float("nan"), float("inf"), -float("inf"), -0.001, 600.001, "high"]
)
def test_no_sum_of_recalls_outside_of_0_to_600(database, rsum):
    with pytest.raises(StatementError):
        _add(database, rsum=rsum)
    with pytest.raises(StatementError), writing(database) as session:
        insert_missing(session, EntryRow, entry_values(rsum=rsum))
    _add(database, rsum=0.0)
    _add(database, name="b" * 12, rsum=600.0)
    with reading(database) as session:
        assert session.query(EntryRow).count() == 2


def test_an_upload_is_one_entry_and_owners_exist(database):
    _add(database)
    with pytest.raises(IntegrityError):
        _add(database, name="b" * 12, payload_sha256=entry_values()["payload_sha256"])
    with pytest.raises(IntegrityError):
        _add(database, name="c" * 12, user_id=99)
    with writing(database) as session:
        assert not insert_missing(session, EntryRow, entry_values())
        assert insert_missing(session, EntryRow, entry_values("d" * 12))


def test_moments_come_back_as_they_went_in(database):
    shanghai = timezone(timedelta(hours=8))
    _add(
        database,
        submitted_at=datetime(2026, 3, 1, 20, 0, 0, 123456, tzinfo=shanghai),
    )
    with reading(database) as session:
        row = session.get(EntryRow, "a" * 12)
    assert row.submitted_at == NOON.replace(microsecond=123456)
    assert row.submitted_at.tzinfo is UTC
    with pytest.raises(StatementError, match="a time with a zone"):
        _add(database, name="b" * 12, submitted_at=datetime(2026, 3, 1, 12))  # noqa: DTZ001


def test_what_fails_half_way_leaves_nothing(database):
    def fail(session):
        session.add(User(handle="ann", display_name="Ann", created_at=NOON))
        session.flush()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), writing(database) as session:
        fail(session)
    assert list_users(database) == []


def test_a_reader_changes_nothing(database):
    with reading(database) as session:
        session.add(User(handle="ann", display_name="Ann", created_at=NOON))
        session.flush()
    assert list_users(database) == []


def test_more_threads_than_connections_all_write(database):
    def make(number):
        create_user(database, f"user-{number}")
        assert len(list_users(database)) >= 1

    at_once(make, range(100))
    assert len(list_users(database)) == 100


def test_a_writer_waits_for_one_in_another_process(tmp_path):
    path = tmp_path / "board.sqlite"
    engine = open_database(f"sqlite:///{path}")
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.5, other.execute, ["ROLLBACK"])
    release.start()
    start = time.monotonic()
    create_user(engine, "ann")
    assert time.monotonic() - start > 0.3
    other.close()
    engine.dispose()
