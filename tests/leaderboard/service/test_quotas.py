"""Quotas hold against threads, processes and kills."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from leaderboard.service.accounts import create_user
from leaderboard.service.database import EntryRow, Usage, reading, writing
from leaderboard.service.quotas import (
    QuotaError,
    Quotas,
    reconcile,
    release_scored,
    remaining,
    take,
)
from tests.leaderboard.conftest import entry_values

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
FEW = Quotas(attempts=7, scored=3)


@pytest.fixture
def ann(database):
    return create_user(database, "ann")


def _left(database, user_id, at=NOON):
    left = remaining(database, user_id, FEW, at)
    return left.attempts, left.scored


def _file(database, user_id, at, *, name, split="test"):
    with writing(database) as session:
        session.add(EntryRow(**entry_values(name, user_id=user_id, split=split, submitted_at=at)))


def test_each_quota_ends_and_says_when_it_begins_again(database, ann):
    for _ in range(3):
        take(database, "scored", ann, FEW, NOON)
    with pytest.raises(QuotaError) as refused:
        take(database, "scored", ann, FEW, NOON)
    assert refused.value.resets_at == datetime(2026, 3, 2, tzinfo=UTC)
    assert str(refused.value) == (
        "all 3 scored submissions of today are used; more from 2026-03-02T00:00:00Z"
    )
    assert _left(database, ann) == (7, 0)
    for _ in range(7):
        take(database, "attempts", ann, FEW, NOON)
    with pytest.raises(QuotaError, match="all 7 uploads"):
        take(database, "attempts", ann, FEW, NOON)
    assert _left(database, ann) == (0, 0)


def test_users_and_days_have_their_own(database, ann):
    bob = create_user(database, "bob")
    take(database, "scored", ann, FEW, datetime(2026, 3, 2, 6, tzinfo=ZoneInfo("Asia/Shanghai")))
    midnight = datetime(2026, 3, 2, tzinfo=UTC)
    assert _left(database, bob) == (7, 3)
    assert _left(database, ann, midnight - timedelta(microseconds=1)) == (7, 2)
    assert _left(database, ann, midnight) == (7, 3)


def test_what_is_given_back_is_there_again_and_never_more(database, ann):
    take(database, "scored", ann, FEW, NOON)
    for _ in range(3):
        release_scored(database, ann, NOON)
    assert _left(database, ann) == (7, 3)


_PROCESS = """
from datetime import UTC, datetime
from leaderboard.service.database import open_database
from leaderboard.service.quotas import QuotaError, Quotas, take
url, user_id, barrier, found = argv
engine, taken = open_database(url), 0
day = datetime(2026, 3, 1, tzinfo=UTC)
barrier.wait()
for _ in range(50):
    try:
        take(engine, "attempts", user_id, Quotas(attempts=61), day)
        taken += 1
    except QuotaError:
        pass
found.put(taken)
"""


def test_4_processes_never_take_too_many(database, ann, forked):
    url = database.url.render_as_string(hide_password=False)
    barrier, found = forked.Barrier(4), forked.Queue()
    processes = [forked(_PROCESS, url, ann, barrier, found) for _ in range(4)]
    for process in processes:
        process.join()
    assert sum(found.get() for _ in processes) == 61
    with reading(database) as session:
        assert session.get(Usage, (ann, datetime(2026, 3, 1, tzinfo=UTC).date())).attempts == 61


_KILLED = """
import os, signal
from datetime import datetime
from leaderboard.service.database import open_database
from leaderboard.service.quotas import Quotas, take
url, user_id, now = argv
take(open_database(url), "scored", user_id, Quotas(), datetime.fromisoformat(now))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_reserved_is_returned(database, ann, forked):
    url = database.url.render_as_string(hide_password=False)
    take(database, "scored", ann, FEW, NOON)
    _file(database, ann, NOON, name="a" * 12)
    process = forked(_KILLED, url, ann, NOON.isoformat())
    process.join()
    assert process.exitcode == -9
    assert _left(database, ann) == (7, 1)
    assert reconcile(database, NOON) == 1
    assert _left(database, ann) == (7, 2)
    assert reconcile(database, NOON) == 0


def test_reconciling_counts_the_days_entries_on_the_test_split(database, ann):
    bob = create_user(database, "bob")
    day = datetime(2026, 3, 1, tzinfo=UTC)
    second = timedelta(seconds=1)
    _file(database, ann, day, name="first")
    _file(database, ann, day + timedelta(days=1) - second, name="last")
    _file(database, ann, day - second, name="yesterday")
    _file(database, ann, day + timedelta(days=1), name="tomorrow")
    _file(database, ann, NOON, name="free", split="dev")
    _file(database, None, NOON, name="nobody")
    take(database, "attempts", bob, FEW, NOON)
    take(database, "scored", bob, FEW, NOON)
    assert reconcile(database, NOON) == 3
    assert _left(database, ann) == (7, 1)
    assert _left(database, ann, day - second) == (7, 2)
    assert _left(database, bob) == (6, 3)
