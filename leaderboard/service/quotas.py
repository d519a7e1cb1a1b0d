"""Daily quotas of a user: uploads, and submissions scored on a test split."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Literal

from sqlalchemy import Engine, func, select, update
from sqlalchemy.orm import Session

from leaderboard.service.database import EntryRow, Usage, insert_missing, reading, writing
from now_builder.errors import NowError

Quota = Literal["attempts", "scored"]


@dataclass(frozen=True, slots=True)
class Quotas:
    """Quotas of a user per day (UTC).

    Attributes:
        attempts: number of uploads, including refused ones.
        scored: number of submissions scored on a test split; other splits are free.
    """

    attempts: int = 50
    scored: int = 5


@dataclass(frozen=True, slots=True)
class Remaining:
    """The rest of a day's quotas."""

    attempts: int
    scored: int
    resets_at: datetime


class QuotaError(NowError):
    """An exhausted quota."""

    def __init__(self, which: Quota, limit: int, resets_at: datetime) -> None:
        noun = "uploads" if which == "attempts" else "scored submissions"
        super().__init__(f"all {limit} {noun} of today are used; more from {resets_at:%FT%TZ}")
        self.resets_at = resets_at


def take(engine: Engine, which: Quota, user_id: int, quotas: Quotas, now: datetime) -> None:
    """Count an upload before it is read, or a scored submission before its result is filed.

    Raises:
        QuotaError: If the quota is used up.
    """
    limit, used = getattr(quotas, which), getattr(Usage, which)
    with writing(engine) as session:
        _make_row(session, user_id, _day(now))
        taken = session.scalar(
            update(Usage)
            .where(Usage.user_id == user_id, Usage.day == _day(now), used < limit)
            .values({used: used + 1})
            .returning(used)
        )
        if taken is None:
            raise QuotaError(which, limit, _resets_at(now))


def release_scored(engine: Engine, user_id: int, at: datetime) -> None:
    """Release a scored submission that was taken at a time and then refused."""
    of_day = (Usage.user_id == user_id, Usage.day == _day(at), Usage.scored > 0)
    with writing(engine) as session:
        session.execute(update(Usage).where(*of_day).values(scored=Usage.scored - 1))


def remaining(engine: Engine, user_id: int, quotas: Quotas, now: datetime) -> Remaining:
    """Return the rest of today's quotas."""
    with reading(engine) as session:
        usage = session.get(Usage, (user_id, _day(now)))
    attempts, scored = (usage.attempts, usage.scored) if usage else (0, 0)
    left = max(0, quotas.attempts - attempts), max(0, quotas.scored - scored)
    return Remaining(*left, _resets_at(now))


def reconcile(engine: Engine, now: datetime) -> int:
    """Set the days' counts of scored submissions to their entries; return how many were wrong.

    This releases reservations left by a killed process. It runs at the start of the service, after
    :func:`leaderboard.service.index.update_index` and before uploads are accepted; no other process
    may serve the database.
    """
    today = _day(now)
    with writing(engine) as session:
        return sum(_reconcile_day(session, day) for day in (today - timedelta(days=1), today))


def _reconcile_day(session: Session, day: date) -> int:
    start = _midnight(day)
    entries = (
        select(EntryRow.user_id, func.count())
        .where(
            EntryRow.user_id.is_not(None),
            EntryRow.split == "test",
            EntryRow.submitted_at >= start,
            EntryRow.submitted_at < start + timedelta(days=1),
        )
        .group_by(EntryRow.user_id)
    )
    filed = {user: count for user, count in session.execute(entries) if user is not None}
    for user_id in filed:
        _make_row(session, user_id, day)
    changed = 0
    for usage in session.scalars(select(Usage).where(Usage.day == day)):
        if usage.scored != filed.get(usage.user_id, 0):
            usage.scored = filed.get(usage.user_id, 0)
            changed += 1
    return changed


def _make_row(session: Session, user_id: int, day: date) -> None:
    insert_missing(session, Usage, {"user_id": user_id, "day": day, "attempts": 0, "scored": 0})


def _day(now: datetime) -> date:
    return now.astimezone(UTC).date()


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def _resets_at(now: datetime) -> datetime:
    return _midnight(_day(now) + timedelta(days=1))
