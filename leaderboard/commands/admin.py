"""Commands of a service's operator: users, tokens, log and index."""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leaderboard.commands.options import AsJson, DatabaseUrl
from now_builder.errors import ConfigError
from now_builder.program.command_line import Program

if TYPE_CHECKING:
    from sqlalchemy import Engine

_log = logging.getLogger(__name__)

admin = Program(
    name="now-leaderboard admin",
    help="Users, tokens and log of the service. Works on the database, whether or not the service "
    "runs.",
)
users = Program(name="now-leaderboard admin user", help="Users who may submit.")
tokens = Program(
    name="now-leaderboard admin token", help="Users' tokens: shown once, stored as a hash."
)
admin.add_typer(users, name="user")
admin.add_typer(tokens, name="token")

StoreFolder = Annotated[
    Path | None, typer.Option("--store", help="Folder of results, to use its own database.")
]
Handle = Annotated[str, typer.Argument(metavar="HANDLE", help="The user's name on the board.")]


@users.command("add")
def _add_user(
    handle: Handle,
    name: Annotated[str, typer.Option(help="Display name.")] = "",
    database: DatabaseUrl = None,
    store: StoreFolder = None,
) -> None:
    """Create a user; make a token for them with: admin token add HANDLE."""
    with _open(database, store) as engine:
        from leaderboard.service.accounts import create_user

        create_user(engine, handle, name)
        typer.echo(f"{handle}: made")


@users.command("list")
def _list_users(
    as_json: AsJson = False, database: DatabaseUrl = None, store: StoreFolder = None
) -> None:
    """List all users, by handle."""
    with _open(database, store) as engine:
        from leaderboard.service.accounts import list_users

        _print([row._asdict() for row in list_users(engine)], as_json)


@users.command("disable")
def _disable_user(
    handle: Handle,
    undo: Annotated[bool, typer.Option("--undo", help="Enable the tokens again.")] = False,
    database: DatabaseUrl = None,
    store: StoreFolder = None,
) -> None:
    """Disable all tokens of a user; their entries stay."""
    with _open(database, store) as engine:
        from leaderboard.service.accounts import set_disabled

        set_disabled(engine, handle, disabled=not undo)
        typer.echo(f"{handle}: {'enabled' if undo else 'disabled'}")


@tokens.command("add")
def _add_token(
    handle: Handle,
    scope: Annotated[
        list[str] | None,
        typer.Option(help="submit, read or admin; may be repeated. By default submit and read."),
    ] = None,
    label: Annotated[str, typer.Option(help="Description of the token.")] = "",
    days: Annotated[int, typer.Option(help="Days until it expires.", min=1, max=3650)] = 365,
    database: DatabaseUrl = None,
    store: StoreFolder = None,
) -> None:
    """Make a token and print it, only once: its hash is stored."""
    with _open(database, store) as engine:
        from leaderboard.service.accounts import create_token

        expires = datetime.now(UTC) + timedelta(days=days)
        scopes = scope or ["submit", "read"]
        typer.echo(create_token(engine, handle, scopes, label=label, expires_at=expires))
        sys.stderr.write(f"token of {handle}, valid until {expires:%F}; it is not shown again\n")


@tokens.command("list")
def _list_tokens(
    handle: Annotated[
        str | None, typer.Argument(metavar="[HANDLE]", help="Only tokens of this user.")
    ] = None,
    as_json: AsJson = False,
    database: DatabaseUrl = None,
    store: StoreFolder = None,
) -> None:
    """List tokens, without their secrets."""
    with _open(database, store) as engine:
        from leaderboard.service.accounts import list_tokens

        rows = [row._asdict() for row in list_tokens(engine, handle)]
        _print([row | {"scopes": row["scopes"].split()} for row in rows], as_json)


@tokens.command("revoke")
def _revoke_token(
    prefix: Annotated[
        str, typer.Argument(metavar="PREFIX", help="The eight characters shown by the list.")
    ],
    database: DatabaseUrl = None,
    store: StoreFolder = None,
) -> None:
    """Revoke a token."""
    with _open(database, store) as engine:
        from leaderboard.service.accounts import revoke_token

        revoke_token(engine, prefix)
        typer.echo(f"{prefix}: revoked")


@admin.command("events")
def _events(
    after: Annotated[
        int, typer.Option(help="Only events after this number.", min=0, max=2**31)
    ] = 0,
    limit: Annotated[int, typer.Option(help="Maximum number of events.", min=1, max=10**6)] = 100,
    as_json: AsJson = False,
    database: DatabaseUrl = None,
    store: StoreFolder = None,
) -> None:
    """Print the log, oldest first."""
    with _open(database, store) as engine:
        from leaderboard.service import events

        page = events.read(engine, after=after, limit=limit)
        _print([event._asdict() for event in page], as_json)


def rebuild_db(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="Folder of results.")],
    database: DatabaseUrl = None,
) -> None:
    """Rebuild the database's entries from the folder, which is authoritative.

    Missing submitters are created, without a token. Existing users, tokens, quotas and the
    log are kept.
    """
    if not store.is_dir():
        raise ConfigError(f"{store}: no such folder, expected a store")
    with _open(database, store) as engine:
        from leaderboard.service.index import rebuild

        counts = rebuild(engine, store)
        typer.echo(
            f"{counts.entries} entries ({counts.added} added, {counts.removed} removed),"
            f" {counts.users} users made"
        )
        for name in counts.duplicates:
            _log.warning("%s: left out, an earlier entry is of the same upload", name)


@contextmanager
def _open(url: str | None, store: Path | None) -> "Iterator[Engine]":
    from leaderboard.service.database import default_url, open_database

    if not url and store is None:
        raise ConfigError("no database: expected --database (NOW_LEADERBOARD_DATABASE) or --store")
    engine = open_database(url or default_url(store or Path()))
    try:
        yield engine
    finally:
        engine.dispose()


def _print(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print rows as JSON, or as lines of their non-empty fields."""
    if as_json:
        typer.echo(json.dumps(rows, default=_plain, indent=2))
        return
    for row in rows:
        shown = (
            f"{name}={_plain(value)}" for name, value in row.items() if value not in (None, "")
        )
        typer.echo("  ".join(shown))


def _plain(value: object) -> str:
    return f"{value:%FT%TZ}" if isinstance(value, datetime) else str(value)
