"""The service's log of events, which is never changed."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from leaderboard.service.database import EventRow, reading


class Event(NamedTuple):
    """An event of the log, an :class:`EventRow`; numbers increase with time and may have gaps."""

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
