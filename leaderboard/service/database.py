"""Tables of the service; open, migrate, read and write its database."""

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import (
    CheckConstraint,
    Connection,
    Date,
    DateTime,
    Dialect,
    Double,
    Engine,
    ForeignKey,
    Index,
    MetaData,
    String,
    Text,
    TypeDecorator,
    create_engine,
    event,
    exc,
    literal,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from leaderboard.store.entries import PRIVATE, prepare_store
from now_builder.errors import ConfigError

SQLITE, POSTGRESQL = "sqlite", "postgresql"
# Connections open at the same time; further threads wait.
POOL = 16
WAIT_SECONDS = 30.0
_LOCK_KEY = 0x6E6F77  # "now": the advisory lock that a migration holds in PostgreSQL
_EXPECTED = "expected sqlite:///FILE or postgresql://USER@HOST/NAME"


class Instant(TypeDecorator[datetime]):
    """A time in UTC; SQLite stores no time zone, so it is added on reading."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert to UTC; refuse times without a zone."""
        del dialect
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value}: expected a time with a zone")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Add the time zone."""
        del dialect
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    """Base of all tables, with constraint names for both databases."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_name)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {datetime: Instant(), date: Date(), float: Double()}  # noqa: RUF012


class User(Base):
    """A user who may submit; none of the user's tokens is valid from ``disabled_at`` on."""

    __tablename__ = "users"

    id: Mapped[int] = mapped_column(primary_key=True)
    handle: Mapped[str] = mapped_column(String(40), unique=True)
    display_name: Mapped[str] = mapped_column(String(120))
    created_at: Mapped[datetime]
    disabled_at: Mapped[datetime | None]


class Token(Base):
    """Hash and limits of a token, named by its prefix in lists; the token itself is not stored.

    Attributes:
        scopes: words of accounts.SCOPES, sorted, separated by spaces.
        last_used_at: time of last use, to the minute.
    """

    __tablename__ = "tokens"

    id: Mapped[int] = mapped_column(primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), index=True)
    prefix: Mapped[str] = mapped_column(String(8), index=True)
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    scopes: Mapped[str] = mapped_column(String(40))
    label: Mapped[str] = mapped_column(String(120))
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]


class EntryRow(Base):
    """Index row of an entry; the store's folder is authoritative.

    Attributes:
        user_id: id of the submitter; None if unknown.
        payload_sha256: sha256 of the submission's zip; uploads of the same zip are one entry.
    """

    __tablename__ = "entries"
    __table_args__ = (
        CheckConstraint("rsum >= 0 AND rsum <= 600", name="rsum"),
        Index("ix_entries_board", "track", "split", "rsum"),
    )

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    user_id: Mapped[int | None] = mapped_column(ForeignKey("users.id"), index=True)
    payload_sha256: Mapped[str] = mapped_column(String(64), unique=True)
    track: Mapped[str] = mapped_column(String(32))
    split: Mapped[str] = mapped_column(String(32))
    fingerprint: Mapped[str] = mapped_column(String(64))
    rsum: Mapped[float]
    ranked: Mapped[bool]
    method: Mapped[str] = mapped_column(Text)
    evidence: Mapped[str] = mapped_column(String(16))
    submitted_at: Mapped[datetime | None]
    withdrawn_at: Mapped[datetime | None]


class Usage(Base):
    """A user's use of a day's quotas."""

    __tablename__ = "usage"
    __table_args__ = (
        CheckConstraint("attempts >= 0", name="attempts"),
        CheckConstraint("scored >= 0", name="scored"),
    )

    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), primary_key=True)
    day: Mapped[date] = mapped_column(primary_key=True)
    attempts: Mapped[int] = mapped_column(default=0)
    scored: Mapped[int] = mapped_column(default=0)


class EventRow(Base):
    """An event of the log; triggers prevent changes and deletion.

    Attributes:
        actor: a handle, ``operator`` or ``service``.
        kind: kind of event, such as ``entry.filed``.
        subject: object of the action: an entry's name, a handle, a token's prefix.
        detail: details, a JSON object; never a secret.
    """

    __tablename__ = "events"
    __table_args__ = ({"sqlite_autoincrement": True},)

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime]
    actor: Mapped[str] = mapped_column(String(64))
    kind: Mapped[str] = mapped_column(String(40), index=True)
    subject: Mapped[str] = mapped_column(String(120))
    detail: Mapped[str] = mapped_column(Text)


def default_url(store: Path) -> URL:
    """Return the URL of the store's own database, a file in its private folder.

    In a text, a ``?`` or ``%`` in the path would name another file.
    """
    prepare_store(store)
    return URL.create(SQLITE, database=str((store / PRIVATE / "board.sqlite").absolute()))


def open_database(url: str | URL) -> Engine:
    """Open a database; create or migrate it if needed.

    Data committed by :func:`writing` survives the death of the process. A power cut may lose
    SQLite's last transactions, which are then restored from the store's folder.

    Args:
        url: ``sqlite:///FILE`` or ``postgresql://USER:PASSWORD@HOST:PORT/NAME``.

    Raises:
        ConfigError: If the URL is invalid, the server is not reachable, or the database cannot
            be written or was made by a newer version.
    """
    engine = _engine(_parse(url))
    from leaderboard.service.migrations import upgrade

    shown = engine.url.render_as_string(hide_password=True)
    try:
        with _begin(engine) as connection:
            if connection.dialect.name == POSTGRESQL:
                connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK_KEY})"))
            upgrade(connection, shown)
            # A file that is read-only shows that only when written.
            connection.execute(text("UPDATE alembic_version SET version_num = version_num"))
    except DBAPIError as error:
        engine.dispose()
        problem = " ".join(str(error.orig).split())
        raise ConfigError(f"database {shown}: {problem}") from None
    except ConfigError:
        engine.dispose()
        raise
    return engine


@contextmanager
def reading(engine: Engine) -> Iterator[Session]:
    """Yield a read-only session; changes are rolled back."""
    with _holdable(), Session(engine) as session:
        yield session


@contextmanager
def writing(engine: Engine) -> Iterator[Session]:
    """Yield a session in a transaction, committed at the end, rolled back on an error.

    SQLite has one writer: threads of this process queue for it here, other processes by its lock.
    A ``ConfigError`` names a text that no database holds.
    """
    with (
        _holdable(),
        _begin(engine) as connection,
        Session(connection, expire_on_commit=False) as session,
    ):
        yield session
        session.flush()


@contextmanager
def _holdable() -> Iterator[None]:
    try:
        yield
    except (UnicodeEncodeError, DataError) as error:
        if isinstance(error, DataError) and "NUL" not in str(error.orig):
            raise
        problem = "found a text with a lone surrogate or NUL, expected one without"
        raise ConfigError(problem) from None


def insert_missing(session: Session, table: type[Base], values: dict[str, Any]) -> bool:
    """Insert a row unless it violates a constraint; return whether it was inserted."""
    postgres = session.get_bind().dialect.name == POSTGRESQL
    insert = postgresql.insert if postgres else sqlite.insert
    adding = insert(table).values(values).on_conflict_do_nothing().returning(literal(1))
    return session.execute(adding).first() is not None


@contextmanager
def _begin(engine: Engine) -> Iterator[Connection]:
    writers: threading.Semaphore = engine.get_execution_options()["writers"]
    if not writers.acquire(timeout=WAIT_SECONDS):
        raise exc.TimeoutError(f"no writer became free within {WAIT_SECONDS:g} s")
    try:
        with engine.execution_options(immediate=True).begin() as connection:
            yield connection
    finally:
        writers.release()


def _parse(url: str | URL) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise ConfigError(f"database: found an address that is not one, {_EXPECTED}") from None
    if parsed.drivername in {"postgresql", "postgres"}:
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in {SQLITE, "postgresql+psycopg"}:
        raise ConfigError(f"database: found {parsed.drivername}://, {_EXPECTED}")
    if parsed.drivername == SQLITE and parsed.database in {None, "", ":memory:"}:
        raise ConfigError(f"database: found no file in {parsed.drivername}://, {_EXPECTED}")
    return parsed


def _engine(url: URL) -> Engine:
    arguments: dict[str, Any] = {"connect_timeout": 10}
    if url.drivername == SQLITE:
        _make_file(url)
        arguments = {"timeout": WAIT_SECONDS}
    engine = create_engine(
        url,
        connect_args=arguments,
        pool_size=POOL,
        max_overflow=0,
        pool_timeout=WAIT_SECONDS,
        pool_pre_ping=url.drivername != SQLITE,
        execution_options={"writers": threading.Semaphore(1 if url.drivername == SQLITE else POOL)},
    )
    if url.drivername == SQLITE:
        event.listen(engine, "connect", _set_pragmas)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def _make_file(url: URL) -> None:
    """Create the file with permissions for its owner only, which SQLite does not do."""
    if url.database is None or url.query.get("uri"):
        return
    path = Path(url.database)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise ConfigError(f"database {path}: {error.strerror or 'cannot be opened'}") from None


def _set_pragmas(connection: Any, _record: object) -> None:
    # Transactions are begun by _begin_sqlite, not implicitly by the driver.
    connection.isolation_level = None
    cursor = connection.cursor()
    _use_write_ahead_log(cursor)
    for pragma in ("foreign_keys=ON", "synchronous=NORMAL"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _use_write_ahead_log(cursor: sqlite3.Cursor) -> None:
    """Set the mode, which the file then keeps; SQLite's own timeout does not cover the switch."""
    until = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(0.02)
        else:
            return


def _begin_sqlite(connection: Connection) -> None:
    immediate = connection.get_execution_options().get("immediate", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")
