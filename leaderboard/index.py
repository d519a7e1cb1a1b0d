"""The entries of a store as rows: what the service asks often, made again from the folder."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import date, datetime
from pathlib import Path

from sqlalchemy import Engine, delete, func, select, update
from sqlalchemy.orm import Session

from leaderboard import events
from leaderboard.accounts import OPERATOR
from leaderboard.database import EntryRow, insert_missing, reading, writing
from leaderboard.store import Entry, read_results


@dataclass(frozen=True, slots=True)
class Indexed:
    """An entry's row.

    Attributes:
        name: The store's name of it.
        user_id: Who filed it; None where the folder does not say.
        payload_sha256: Of the submission's zip.
        anonymous_until: The board does not say who filed it before that day.
        withdrawn_at: A tombstone since then.
    """

    name: str
    user_id: int | None
    payload_sha256: str
    track: str
    split: str
    fingerprint: str
    rsum: float
    ranked: bool
    method: str
    evidence: str
    submitted_at: datetime | None
    anonymous_until: date | None
    withdrawn_at: datetime | None


@dataclass(frozen=True, slots=True)
class Counts:
    """What making the index again did.

    Attributes:
        entries: Rows that it has now.
        added: Of them, not there before.
        removed: Rows whose file is gone.
        users: Users made, who have no token yet.
        doubled: Names of entries that are not in it, for an earlier one is of the same upload.
    """

    entries: int
    added: int
    removed: int
    users: int
    doubled: tuple[str, ...]


def record_entry(session: Session, entry: Entry, user_id: int | None) -> bool:
    """Add an entry's row inside a transaction of :func:`leaderboard.database.writing`.

    Returns:
        Whether it is new; one of that name or of the same upload changes nothing.
    """
    result = entry.result
    return insert_missing(
        session,
        EntryRow,
        {
            "name": entry.name,
            "user_id": user_id,
            "payload_sha256": result.payload_sha256,
            "track": result.track,
            "split": result.split,
            "fingerprint": result.release.fingerprint,
            "rsum": result.rsum,
            "ranked": result.ranked,
            "method": result.method.name,
            "evidence": "scored",
            "submitted_at": None,
            "anonymous_until": None,
            "withdrawn_at": None,
        },
    )


def find_by_payload(engine: Engine, payload_sha256: str) -> Indexed | None:
    """Find the entry that an upload became, withdrawn or not."""
    with reading(engine) as session:
        query = select(EntryRow).where(EntryRow.payload_sha256 == payload_sha256)
        return _indexed(session.scalar(query))


def find_entry(engine: Engine, name: str) -> Indexed | None:
    """Find an entry by its name, withdrawn or not."""
    with reading(engine) as session:
        return _indexed(session.get(EntryRow, name))


def entries_of(engine: Engine, user_id: int) -> list[Indexed]:
    """List a user's entries, the newest first, withdrawn ones among them."""
    newest = EntryRow.submitted_at.desc().nulls_last()
    query = select(EntryRow).where(EntryRow.user_id == user_id).order_by(newest, EntryRow.name)
    with reading(engine) as session:
        return [row for row in map(_indexed, session.scalars(query)) if row is not None]


def mark_withdrawn(session: Session, name: str, at: datetime) -> bool:
    """Make a row a tombstone; whether it was not one before."""
    found = session.scalar(
        update(EntryRow)
        .where(EntryRow.name == name, EntryRow.withdrawn_at.is_(None))
        .values(withdrawn_at=at)
        .returning(EntryRow.name)
    )
    return found is not None


def rebuild(engine: Engine, store: Path) -> Counts:
    """Make every row again from the folder; users of filings are made where missing.

    Raises:
        FormatError: If a file of the store is not what it should be.
    """
    with writing(engine) as session:
        before = set(session.scalars(select(EntryRow.name)))
        session.execute(delete(EntryRow))
        counts = _add(session, read_results([store]), before)
        events.append(session, OPERATOR, "index.rebuilt", "entries", {"entries": counts.entries})
    return counts


def update_index(engine: Engine, store: Path) -> Counts:
    """Read only what the index lacks, and drop rows whose file is gone: for every start."""
    return rebuild(engine, store)


def _add(session: Session, entries: Iterable[Entry], before: set[str]) -> Counts:
    doubled = [entry.name for entry in entries if not record_entry(session, entry, None)]
    after = set(session.scalars(select(EntryRow.name)))
    return Counts(
        entries=session.scalar(select(func.count()).select_from(EntryRow)) or 0,
        added=len(after - before),
        removed=len(before - after),
        users=0,
        doubled=tuple(doubled),
    )


def _indexed(row: EntryRow | None) -> Indexed | None:
    if row is None:
        return None
    return Indexed(**{field.name: getattr(row, field.name) for field in fields(Indexed)})
