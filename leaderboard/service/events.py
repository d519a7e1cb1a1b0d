"""The service's log: events chained by their hashes, to which one can only add."""

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
    """What happened.

    Attributes:
        number: Rises with time; may leave gaps.
        at: In UTC.
        actor: A handle, or ``operator`` for who has the machine, or ``service``.
        kind: Such as ``entry.filed``.
        subject: What it was done to: an entry's name, a handle, a token's prefix.
        detail: More of it; never a secret.
        hash: Of this and, through it, of all before.
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
    """What a look at all events found.

    Attributes:
        n_events: How many there are.
        head: The last hash; note it elsewhere to find out later whether the end was cut off.
        broken_at: The first event that is not what was appended, or does not follow on the one
            before; None if all are well.
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

    Append last in a transaction: in PostgreSQL those that append wait for one another here.

    Returns:
        Its hash.
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


def read(
    engine: Engine, *, after: int = 0, limit: int = 100, kind: str | None = None
) -> list[Event]:
    """Read a page of events, oldest first.

    Args:
        engine: The database.
        after: Number of the last event of the page before.
        limit: The most to give.
        kind: Only these.
    """
    query = select(EventRow).where(EventRow.id > after).order_by(EventRow.id).limit(limit)
    if kind is not None:
        query = query.where(EventRow.kind == kind)
    with reading(engine) as session:
        return [_event(row) for row in session.scalars(query)]


def check_chain(engine: Engine) -> Chain:
    """Compute every hash again, and look whether each event follows on the one before."""
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
