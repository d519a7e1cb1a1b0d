"""The service's log: append-only events, chained by their hashes."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Engine, select, text
from sqlalchemy.orm import Session

from leaderboard.service.database import POSTGRESQL, EventRow, reading

FIRST = "0" * 64
_LOCK_KEY = 0x6E6F78


@dataclass(frozen=True, slots=True)
class Event:
    """An event of the log.

    Attributes:
        number: increases with time; may have gaps.
        at: time in UTC.
        actor: a handle, ``operator`` or ``service``.
        kind: kind of event, such as ``entry.filed``.
        subject: object of the action: an entry's name, a handle, a token's prefix.
        detail: details; never a secret.
        hash: sha256 of this event and, through the chain, of all previous ones.
    """

    number: int
    at: datetime
    actor: str
    kind: str
    subject: str
    detail: dict[str, Any]
    hash: str


@dataclass(frozen=True, slots=True)
class Chain:
    """Outcome of checking all events.

    Attributes:
        head: last hash; record it elsewhere to detect truncation later.
        broken_at: first event that was changed, or does not follow the previous one.
    """

    n_events: int
    head: str
    broken_at: int | None


def append(
    session: Session,
    actor: str,
    kind: str,
    subject: str,
    detail: Mapping[str, Any] | None = None,
) -> str:
    """Add an event inside a transaction of :func:`leaderboard.service.database.writing`.

    Append last in a transaction: in PostgreSQL appending takes a global lock.

    Returns:
        Hash of the event.
    """
    if session.get_bind().dialect.name == POSTGRESQL:
        session.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK_KEY})"))
    last = session.scalar(select(EventRow.hash).order_by(EventRow.id.desc()).limit(1))
    row = EventRow(
        at=datetime.now(UTC),
        actor=actor,
        kind=kind,
        subject=subject,
        detail=json.dumps(dict(detail or {}), sort_keys=True, allow_nan=False),
        previous=last or FIRST,
    )
    row.hash = _hash(row)
    session.add(row)
    session.flush()
    return row.hash


def read(engine: Engine, after: int = 0, limit: int = 100, kind: str | None = None) -> list[Event]:
    """Read a page of events, oldest first."""
    query = select(EventRow).where(EventRow.id > after).order_by(EventRow.id).limit(limit)
    if kind is not None:
        query = query.where(EventRow.kind == kind)
    with reading(engine) as session:
        return [_event(row) for row in session.scalars(query)]


def check_chain(engine: Engine) -> Chain:
    """Recompute every hash, and check that each event follows the previous one."""
    n_events, head, broken_at = 0, FIRST, None
    with reading(engine) as session:
        query = select(EventRow).order_by(EventRow.id).execution_options(yield_per=1000)
        for row in session.scalars(query):
            n_events += 1
            if broken_at is None and (row.previous != head or row.hash != _hash(row)):
                broken_at = row.id
            head = row.hash
    return Chain(n_events, head, broken_at)


def _hash(row: EventRow) -> str:
    at = row.at.astimezone(UTC).isoformat(timespec="microseconds")
    fields = [row.previous, at, row.actor, row.kind, row.subject, row.detail]
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()


def _event(row: EventRow) -> Event:
    detail = json.loads(row.detail)
    return Event(row.id, row.at, row.actor, row.kind, row.subject, detail, row.hash)
