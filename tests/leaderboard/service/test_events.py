"""The log only grows, and shows when it was touched all the same."""

import json
import threading

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from leaderboard.service import events
from leaderboard.service.database import writing


def _append(database, number=0):
    with writing(database) as session:
        return events.append(session, "ann", "entry.filed", f"e{number}", {"rsum": 150.5})


@pytest.fixture
def log(database):
    """Five events."""
    for number in range(5):
        _append(database, number)
    return database


def test_events_are_read_by_the_page(log):
    pages, after = [], 0
    while page := events.read(log, after=after, limit=2):
        pages.append([event.subject for event in page])
        after = page[-1].number
    assert pages == [["e0", "e1"], ["e2", "e3"], ["e4"]]
    assert events.read(log, kind="entry.withdrawn") == []
    first = events.read(log, kind="entry.filed", limit=1)[0]
    assert (first.actor, first.detail) == ("ann", {"rsum": 150.5})


def test_each_event_follows_on_the_one_before(log):
    chain = events.check_chain(log)
    assert (chain.n_events, chain.broken_at) == (5, None)
    assert chain.head == events.read(log)[-1].hash


def test_a_log_of_nothing_is_whole(database):
    assert events.check_chain(database) == events.Chain(0, events.FIRST, None)


def test_an_event_of_what_failed_is_not_there(log):
    def fail(session):
        events.append(session, "ann", "entry.filed", "lost")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), writing(log) as session:
        fail(session)
    _append(log, 5)
    assert [event.subject for event in events.read(log)][-2:] == ["e4", "e5"]
    assert events.check_chain(log).broken_at is None


_CHANGES = [
    "UPDATE events SET actor = 'eve' WHERE id = 2",
    "UPDATE events SET id = id + 100",
    "DELETE FROM events WHERE id = 5",
    "DELETE FROM events",
]
_REPLACE = "INSERT OR REPLACE INTO events SELECT {} FROM events WHERE subject = 'e3'"
_OTHER_WAYS = {
    "postgresql": [
        "TRUNCATE events",
        "INSERT INTO events SELECT * FROM events ON CONFLICT (id) DO UPDATE SET actor = 'eve'",
    ],
    "sqlite": [
        _REPLACE.format("id, at, 'eve', kind, subject, detail, 'p', 'h'"),
        _REPLACE.format("77, at, 'eve', kind, subject, detail, previous, 'h'"),
        _REPLACE.format("77, at, 'eve', kind, subject, detail, 'p', hash"),
    ],
}


@pytest.mark.parametrize("change", _CHANGES)
def test_the_database_itself_refuses_changes(log, change):
    before = events.read(log)
    with pytest.raises(DBAPIError, match="events are never changed"), writing(log) as session:
        session.execute(text(change))
    assert events.read(log) == before


def test_each_databases_own_ways_around_are_closed(log):
    before = events.read(log)
    for way in _OTHER_WAYS[log.dialect.name]:
        with pytest.raises(DBAPIError, match="never changed"), writing(log) as session:
            session.execute(text(way))
    assert events.read(log) == before


def _lift(database, session):
    """What only the database's owner can do."""
    if database.dialect.name == "postgresql":
        session.execute(text("ALTER TABLE events DISABLE TRIGGER ALL"))
    else:
        for name in ("update", "delete", "replace"):
            session.execute(text(f"DROP TRIGGER events_{name}"))


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE events SET actor = 'eve' WHERE subject = 'e2'",
        "UPDATE events SET kind = 'entry.withdrawn' WHERE subject = 'e2'",
        "UPDATE events SET detail = '{\"rsum\": 600.0}' WHERE subject = 'e2'",
        "UPDATE events SET at = '2020-01-01 00:00:00.000000' WHERE subject = 'e2'",
        "UPDATE events SET previous = 'p' WHERE subject = 'e2'",
        "UPDATE events SET hash = 'h' WHERE subject = 'e2'",
        "UPDATE events SET subject = 'e9' WHERE subject = 'e2'",
    ],
)
def test_a_row_that_was_tampered_with_is_found(log, change):
    number = events.read(log)[2].number
    with writing(log) as session:
        _lift(log, session)
        session.execute(text(change))
    assert events.check_chain(log).broken_at == number


def test_a_row_that_was_taken_out_is_found(log):
    number = events.read(log)[2].number
    with writing(log) as session:
        _lift(log, session)
        session.execute(text("DELETE FROM events WHERE subject = 'e1'"))
    chain = events.check_chain(log)
    assert (chain.n_events, chain.broken_at) == (4, number)


def test_many_appenders_make_one_chain(database):
    failures = []

    def work(start):
        try:
            for number in range(start, start + 5):
                _append(database, number)
        except Exception as error:  # noqa: BLE001 - counted below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(5 * place,)) for place in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    chain = events.check_chain(database)
    assert (chain.n_events, chain.broken_at) == (80, None)
    subjects = {event.subject for event in events.read(database, limit=100)}
    assert subjects == {f"e{number}" for number in range(80)}


@pytest.mark.parametrize("odd", ["名字", "\u2028", "\x00", "\ud800", '"}; DROP TABLE events; --'])
def test_any_text_may_stand_in_the_detail(database, odd):
    with writing(database) as session:
        events.append(session, "ann", "entry.refused", "none", {"found": odd})
    (event,) = events.read(database)
    assert event.detail == {"found": odd}
    assert events.check_chain(database).broken_at is None


def test_what_json_does_not_know_is_refused(database):
    with pytest.raises(ValueError, match="not JSON compliant"), writing(database) as session:
        events.append(session, "ann", "entry.filed", "e", {"rsum": float("nan")})
    assert json.dumps([event.subject for event in events.read(database)]) == "[]"
