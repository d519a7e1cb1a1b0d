"""The service's log of events, which is never changed."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from leaderboard.service.database import EventRow, reading


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
    """

    number: int
    at: datetime
    actor: str
    kind: str
    subject: str
    detail: dict[str, Any]


def append(
    session: Session,
    actor: str,
    kind: str,
    subject: str,
    detail: Mapping[str, Any] | None = None,
) -> None:
    """Add an event inside a transaction of :func:`leaderboard.service.database.writing`."""
    text = json.dumps(dict(detail or {}), sort_keys=True, allow_nan=False)
    session.add(
        EventRow(at=datetime.now(UTC), actor=actor, kind=kind, subject=subject, detail=text)
    )
    session.flush()


def read(engine: Engine, after: int = 0, limit: int = 100) -> list[Event]:
    """Read a page of events, oldest first."""
    query = select(EventRow).where(EventRow.id > after).order_by(EventRow.id).limit(limit)
    with reading(engine) as session:
        return [
            Event(row.id, row.at, row.actor, row.kind, row.subject, json.loads(row.detail))
            for row in session.scalars(query)
        ]
