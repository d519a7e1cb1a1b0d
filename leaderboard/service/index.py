"""Index of a store's entries in the database, which can be rebuilt from the folder."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sqlalchemy import Engine, select, update
from sqlalchemy.orm import Session

from leaderboard.service import events
from leaderboard.service.accounts import OPERATOR, SERVICE, add_user, is_handle
from leaderboard.service.database import EntryRow, User, insert_missing, reading, writing
from leaderboard.store.entries import RESULTS, Entry, age, read_entry, read_result
from leaderboard.store.proof import prove
from leaderboard.store.signatures import read_chain, refuse_broken
from now_builder.errors import FormatError


@dataclass(frozen=True, slots=True)
class Counts:
    """Outcome of rebuilding the index: numbers of rows, and of users created, without tokens.

    Duplicates are entries left out because an earlier one is of the same upload.
    """

    entries: int
    added: int
    removed: int
    users: int
    duplicates: tuple[str, ...]


def record_entry(session: Session, entry: Entry, user_id: int | None) -> bool:
    """Add an entry's row inside a transaction; return whether it is new.

    An entry of the same name or upload changes nothing.
    """
    result, filing, withdrawal = entry.result, entry.filing, entry.withdrawal
    values = {
        "name": entry.name,
        "user_id": user_id,
        "payload_sha256": result.payload_sha256,
        "track": result.track,
        "split": result.split,
        "fingerprint": result.release.fingerprint,
        "rsum": entry.shown.rsum,
        "ranked": entry.shown.ranked,
        "method": result.method.name,
        "evidence": entry.evidence,
        "submitted_at": filing and filing.submitted_at,
        "withdrawn_at": withdrawal and withdrawal.withdrawn_at,
    }
    return insert_missing(session, EntryRow, values)


def methods(engine: Engine) -> list[str]:
    """Return the names of the methods of entries that are not withdrawn."""
    query = select(EntryRow.method).where(EntryRow.withdrawn_at.is_(None)).distinct()
    with reading(engine) as session:
        return list(session.scalars(query))


def find_by_payload(engine: Engine, payload_sha256: str) -> EntryRow | None:
    """Find the entry of an upload, withdrawn or not."""
    with reading(engine) as session:
        query = select(EntryRow).where(EntryRow.payload_sha256 == payload_sha256)
        return session.scalar(query)


def find_entry(engine: Engine, name: str) -> EntryRow | None:
    """Find an entry by its name, withdrawn or not."""
    with reading(engine) as session:
        return session.get(EntryRow, name)


def entries_of(engine: Engine, user_id: int) -> list[EntryRow]:
    """List a user's entries, newest first, including withdrawn ones."""
    newest = EntryRow.submitted_at.desc().nulls_last()
    query = select(EntryRow).where(EntryRow.user_id == user_id).order_by(newest, EntryRow.name)
    with reading(engine) as session:
        return list(session.scalars(query))


def mark_withdrawn(session: Session, name: str, at: datetime) -> bool:
    """Mark a row as withdrawn; return whether it was not before."""
    found = session.scalar(
        update(EntryRow)
        .where(EntryRow.name == name, EntryRow.withdrawn_at.is_(None))
        .values(withdrawn_at=at)
        .returning(EntryRow.name)
    )
    return found is not None


def rebuild(engine: Engine, store: Path) -> Counts:
    """Rebuild every row from the folder; missing users are created.

    Users, tokens, usage and events are kept. The service may be running.
    """
    if not store.is_dir():
        raise FormatError(store, "no such folder, expected a store")
    return _index(engine, store, whole=True)


def update_index(engine: Engine, store: Path) -> Counts:
    """Add or update rows of new or changed entries, and delete rows whose file is gone.

    Run at every start of the service, before :func:`leaderboard.service.quotas.reconcile`.

    Raises:
        FormatError: If a file of the store is invalid, or the store of a non-empty index
            is missing.
    """
    return _index(engine, store, whole=False)


def _index(engine: Engine, store: Path, *, whole: bool) -> Counts:
    with writing(engine) as session:
        rows = {row.name: row for row in session.scalars(select(EntryRow))}
        if rows and not store.is_dir():
            raise FormatError(store, f"no such folder, and the database has {len(rows)} entries")
        results = (store / RESULTS).glob("[!.]*.json")
        files = {path.stem.rpartition("-")[2]: path for path in results}
        chain = read_chain(store)
        refuse_broken(store, chain)
        runs = {one.entry for one in chain.signatures if one.says == "reproduced"}
        kept = set() if whole else _unchanged(rows, files, store, runs)
        for name in rows.keys() - kept:
            session.delete(rows[name])
        session.flush()
        read = [read_entry(store, read_result(files[name])) for name in files.keys() - kept]
        entries = prove(store, read, frozenset(files), chain)
        owners = {name: row.user_id for name, row in rows.items()}
        made, duplicates = _record_all(session, sorted(entries, key=age), owners)
        after = set(session.scalars(select(EntryRow.name)))
        counts = Counts(
            len(after), len(after - set(rows)), len(set(rows) - after), made, duplicates
        )
        if whole or counts.added or counts.removed:
            detail = {"entries": counts.entries, "added": counts.added, "removed": counts.removed}
            events.append(session, OPERATOR if whole else SERVICE, "index.made", "entries", detail)
    return counts


def _unchanged(
    rows: dict[str, EntryRow], files: Iterable[str], store: Path, runs: set[str]
) -> set[str]:
    """Return the names of rows that are up to date; results themselves never change.

    Entries that the judge ran again (``runs``) are read anew: the last run decides.
    """
    withdrawn = {path.stem for path in (store / "withdrawals").glob("*.json")}
    return {
        name
        for name in (rows.keys() & set(files)) - runs
        if (rows[name].withdrawn_at is not None) == (name in withdrawn)
        and rows[name].evidence in {"scored", "blind"}
    }


def _record_all(
    session: Session, entries: Iterable[Entry], owners: dict[str, int | None]
) -> tuple[int, tuple[str, ...]]:
    """Add rows, of entries of one upload the first; return the users created, and duplicates."""
    users = {user.handle: user.id for user in session.scalars(select(User))}
    known, duplicates = len(users), []
    for entry in entries:
        handle = _submitter(entry)
        if handle is not None and handle not in users:
            users[handle] = add_user(session, handle).id
        owner = owners.get(entry.name) if handle is None else users[handle]
        if not record_entry(session, entry, owner):
            duplicates.append(entry.name)
    return len(users) - known, tuple(duplicates)


def _submitter(entry: Entry) -> str | None:
    """Return the submitter's handle; None without a filing, or if its text is not a handle."""
    handle = entry.filing.submitter if entry.filing else None
    return handle if handle is not None and (handle == OPERATOR or is_handle(handle)) else None
