"""The log only grows."""

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
    first = events.read(log, limit=1)[0]
    assert (first.actor, first.detail) == ("ann", {"rsum": 150.5})


_CHANGES = [
    "UPDATE events SET actor = 'eve' WHERE id = 2",
    "UPDATE events SET id = id + 100",
    "DELETE FROM events WHERE id = 5",
    "DELETE FROM events",
]


@pytest.mark.parametrize("change", _CHANGES)
def test_the_database_itself_refuses_changes(log, change):
    before = events.read(log)
    with pytest.raises(DBAPIError, match="events are never changed"), writing(log) as session:
        session.execute(text(change))
    assert events.read(log) == before


@pytest.mark.parametrize("odd", ["名字", "\u2028", "\x00", "\ud800", '"}; DROP TABLE events; --'])
def test_any_text_may_stand_in_the_detail(database, odd):
    with writing(database) as session:
        events.append(session, "ann", "entry.refused", "none", {"found": odd})
    (event,) = events.read(database)
    assert event.detail == {"found": odd}
