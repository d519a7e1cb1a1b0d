"""The service's tables, and how a database is opened, brought up to date, read and written."""

import os
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
    inspect,
    literal,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from leaderboard.service.fair_semaphore import FairSemaphore
from leaderboard.store.entries import PRIVATE, prepare_store
from now_builder.errors import ConfigError

SQLITE, POSTGRESQL = "sqlite", "postgresql"
# Connections open at the same time; further threads wait in order.
POOL = 16
WAIT_SECONDS = 30.0
_LOCK_KEY = 0x6E6F77  # "now": the advisory lock that a migration holds in PostgreSQL
_EXPECTED = "expected sqlite:///FILE or postgresql://USER@HOST/NAME"


class Instant(TypeDecorator[datetime]):
    """A moment in UTC; SQLite keeps no zone, so that it is put back on reading."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse moments of no zone."""
        del dialect
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value}: a moment needs a zone")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Give the zone back."""
        del dialect
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    """What all tables share: names of constraints that are the same in both databases."""

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
    """Someone who may submit.

    Attributes:
        handle: The name that the board shows.
        disabled_at: No token of theirs is let in from then on.
    """

    __tablename__ = "users"

    id: Mapped[int] = mapped_column(primary_key=True)
    handle: Mapped[str] = mapped_column(String(40), unique=True)
    display_name: Mapped[str] = mapped_column(String(120))
    created_at: Mapped[datetime]
    disabled_at: Mapped[datetime | None]


class Token(Base):
    """A token's hash and its bounds; the token itself is kept nowhere.

    Attributes:
        prefix: The part of it that is no secret: names it in lists.
        sha256: Of the whole token.
        scopes: Words of accounts.SCOPES, sorted, a space between.
        last_used_at: To the minute.
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
    """What the service asks of an entry; the store's folder has the rest and is the truth.

    Attributes:
        name: The store's name of it.
        user_id: Who filed it; None where the folder does not say.
        payload_sha256: Of the submission's zip: a second upload of it is the same entry.
        withdrawn_at: A tombstone since then.
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
    anonymous_until: Mapped[date | None]
    withdrawn_at: Mapped[datetime | None]


class Usage(Base):
    """What a user took of a day's quotas.

    Attributes:
        day: In UTC.
        attempts: Uploads, also refused ones.
        scored: Accepted on a test split, or about to be.
    """

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
    """One link of the log; triggers refuse to change or to delete it.

    Attributes:
        actor: A handle, or ``operator`` for who has the machine, or ``service``.
        kind: Such as ``entry.filed``.
        subject: What it was done to: an entry's name, a handle, a token's prefix.
        detail: A JSON object.
        previous: The hash of the event before; unique, so that the chain never forks.
        hash: Of all the fields above.
    """

    __tablename__ = "events"
    __table_args__ = ({"sqlite_autoincrement": True},)

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime]
    actor: Mapped[str] = mapped_column(String(64))
    kind: Mapped[str] = mapped_column(String(40), index=True)
    subject: Mapped[str] = mapped_column(String(120))
    detail: Mapped[str] = mapped_column(Text)
    previous: Mapped[str] = mapped_column(String(64), unique=True)
    hash: Mapped[str] = mapped_column(String(64), unique=True)


def default_url(store: Path) -> str:
    """Name the store's own database: a file in its private folder, which is made if need be."""
    prepare_store(store)
    return f"sqlite:///{(store / PRIVATE / 'board.sqlite').absolute()}"


def open_database(url: str) -> Engine:
    """Open a database; one that is missing is made, an older one is brought up to date.

    An answer given after :func:`writing` survives the death of the process. A power cut may take
    SQLite's last transactions; the store's folder, which is synced, then gives them back.

    Args:
        url: ``sqlite:///FILE`` or ``postgresql://USER:PASSWORD@HOST:PORT/NAME``.

    Raises:
        ConfigError: If the address is not one, the server is not there, or the database cannot
            be written or was made by a newer version.
    """
    engine = _engine(_parse(url))
    from leaderboard.service.migrations import upgrade  # noqa: PLC0415 - which imports the tables

    shown = engine.url.render_as_string(hide_password=True)
    try:
        with _begin(engine) as connection:
            if connection.dialect.name == POSTGRESQL:
                connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK_KEY})"))
            _refuse_strangers(connection, shown)
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
    """Yield a session to read with; what it changes is dropped.

    Raises:
        TimeoutError: If no connection became free in time.
    """
    with _semaphore(engine, "connections"), Session(engine) as session:
        yield session


@contextmanager
def writing(engine: Engine) -> Iterator[Session]:
    """Yield a session whose changes are all kept at the end, or none if an error passes.

    SQLite has one writer: threads of this process queue for it here, other processes by its lock.

    Raises:
        TimeoutError: If no connection became free in time.
    """
    with _begin(engine) as connection, Session(connection, expire_on_commit=False) as session:
        yield session
        session.flush()


def insert_missing(session: Session, table: type[Base], values: dict[str, Any]) -> bool:
    """Insert a row unless one that it may not stand beside is there; whether it was inserted."""
    postgres = session.get_bind().dialect.name == POSTGRESQL
    insert = postgresql.insert if postgres else sqlite.insert
    adding = insert(table).values(values).on_conflict_do_nothing().returning(literal(1))
    return session.execute(adding).first() is not None


@contextmanager
def _begin(engine: Engine) -> Iterator[Connection]:
    writer = engine.execution_options(immediate=True)
    with (
        _semaphore(engine, "writers"),
        _semaphore(engine, "connections"),
        writer.begin() as connection,
    ):
        yield connection


def _semaphore(engine: Engine, name: str) -> FairSemaphore:
    semaphore: FairSemaphore = engine.get_execution_options()[name]
    return semaphore


def _parse(url: str) -> URL:
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
    try:
        engine = create_engine(
            url,
            connect_args=arguments,
            pool_size=POOL,
            max_overflow=0,
            pool_timeout=WAIT_SECONDS,
            pool_pre_ping=url.drivername != SQLITE,
            execution_options={
                "connections": FairSemaphore(POOL, WAIT_SECONDS),
                "writers": FairSemaphore(1 if url.drivername == SQLITE else POOL, WAIT_SECONDS),
            },
        )
    except (ModuleNotFoundError, NoSuchModuleError):
        raise ConfigError(
            "database: PostgreSQL needs psycopg: pip install 'noise-of-web[postgres]'"
        ) from None
    if url.drivername == SQLITE:
        event.listen(engine, "connect", _set_pragmas)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def _make_file(url: URL) -> None:
    """Make the file, which only its owner may read: SQLite itself would let the group in."""
    if url.database is None or url.query.get("uri"):
        return
    path = Path(url.database)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise ConfigError(f"database {path}: {error.strerror or 'cannot be opened'}") from None


def _set_pragmas(connection: Any, _record: object) -> None:
    # Transactions are begun by _begin_sqlite, not by the driver's guesses.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "foreign_keys=ON", "synchronous=NORMAL"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    immediate = connection.get_execution_options().get("immediate", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")


def _refuse_strangers(connection: Connection, shown: str) -> None:
    """Leave a database of something else alone."""
    tables = set(inspect(connection).get_table_names())
    if tables and "alembic_version" not in tables:
        raise ConfigError(f"database {shown}: holds other tables ({min(tables)}), expected none")
