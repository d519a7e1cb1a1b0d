"""Users and their tokens: create, list, check, revoke."""

import hashlib
import hmac
import re
import secrets
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Engine, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from leaderboard.service import events
from leaderboard.service.database import Token, User, reading, writing
from now_builder.errors import ConfigError, NowError

SCOPES = ("admin", "read", "submit")
OPERATOR, SERVICE = "operator", "service"
"""Actors of the log that are not users; their handles may not be taken."""

# GitHub's form: a word that scanners find, a name, the secret, a checksum against mistyping.
TOKEN = re.compile(r"now_([a-z0-9]{8})_([A-Za-z0-9_-]{43})_([0-9a-f]{8})")
_HANDLE = re.compile(r"[a-z0-9](?:-?[a-z0-9]){0,38}")
_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
_USED = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Principal:
    """The authenticated caller of a request.

    Attributes:
        scopes: scopes of the token, from SCOPES; ``admin`` does not imply the others.
    """

    user_id: int
    handle: str
    scopes: frozenset[str]


class TokenError(NowError):
    """An invalid token: unknown, revoked, expired or of a disabled user."""

    def __init__(self) -> None:
        super().__init__("a valid bearer token is needed")


def create_user(engine: Engine, handle: str, display_name: str = "") -> int:
    """Create a user and return its id; an empty display name becomes the handle."""
    if not is_handle(handle):
        raise ConfigError(
            f"handle: found {handle[:50]!r}, expected a-z, 0-9, single hyphens between,"
            " at most 39, and not operator or service"
        )
    if len(display_name) > 120 or not display_name.isprintable():
        raise ConfigError("display name: expected at most 120 printable characters")
    try:
        with writing(engine) as session:
            user = add_user(session, handle, display_name)
            events.append(session, OPERATOR, "user.created", handle)
            return user.id
    except IntegrityError:
        raise ConfigError(f"handle: {handle} is taken") from None


def is_handle(text: str) -> bool:
    """Return whether a text is a valid handle."""
    fits = len(text) <= 39 and _HANDLE.fullmatch(text) is not None
    return fits and text not in {OPERATOR, SERVICE}


def add_user(session: Session, handle: str, display_name: str = "") -> User:
    """Add the row of a user without tokens."""
    user = User(handle=handle, display_name=display_name or handle, created_at=datetime.now(UTC))
    session.add(user)
    session.flush()
    return user


def set_disabled(engine: Engine, handle: str, *, disabled: bool = True) -> None:
    """Disable a user's tokens, or enable them again."""
    with writing(engine) as session:
        user = _find(session, handle)
        if (user.disabled_at is not None) != disabled:
            user.disabled_at = datetime.now(UTC) if disabled else None
            kind = "user.disabled" if disabled else "user.enabled"
            events.append(session, OPERATOR, kind, handle)


def list_users(engine: Engine) -> list[Any]:
    """List users by handle, as rows of named columns."""
    query = select(
        User.id.label("user_id"), User.handle, User.display_name, User.created_at, User.disabled_at
    )
    with reading(engine) as session:
        return list(session.execute(query.order_by(User.handle)))


def create_token(
    engine: Engine,
    handle: str,
    scopes: Iterable[str],
    *,
    label: str = "",
    expires_at: datetime | None = None,
) -> str:
    """Create a token with one or more of SCOPES and return it; only its hash is stored.

    Raises:
        ConfigError: If there is no such user, a scope is unknown or the time has passed.
    """
    wanted = sorted(set(scopes))
    if not wanted or not set(wanted) <= set(SCOPES):
        raise ConfigError(f"scopes: found {', '.join(wanted) or 'none'}, expected {SCOPES}")
    if len(label) > 120 or not label.isprintable():
        raise ConfigError("label: expected at most 120 printable characters")
    now = datetime.now(UTC)
    if expires_at is not None and expires_at <= now:
        raise ConfigError(f"expires: found {expires_at:%FT%TZ}, expected a time to come")
    prefix = "".join(secrets.choice(_ALPHABET) for _ in range(8))
    body = f"now_{prefix}_{secrets.token_urlsafe(32)}"
    plain = f"{body}_{_checksum(body)}"
    with writing(engine) as session:
        token = Token(
            user_id=_find(session, handle).id,
            prefix=prefix,
            sha256=_hash(plain),
            scopes=" ".join(wanted),
            label=label,
            created_at=now,
            expires_at=expires_at,
        )
        session.add(token)
        detail = {"handle": handle, "scopes": wanted}
        events.append(session, OPERATOR, "token.created", prefix, detail)
    return plain


def authenticate(engine: Engine, token: str, now: datetime | None = None) -> Principal:
    """Return the owner of a token.

    Raises:
        TokenError: If the token is invalid; the message is the same for every reason.
    """
    now = now or datetime.now(UTC)
    parts = TOKEN.fullmatch(token)
    if parts is None or _checksum(token[:-9]) != parts[3]:
        raise TokenError
    digest = _hash(token)
    with reading(engine) as session:
        query = select(Token, User).join(User, Token.user_id == User.id)
        rows = session.execute(query.where(Token.prefix == parts[1])).all()
    matching = [pair for pair in rows if hmac.compare_digest(pair[0].sha256, digest)]
    if not matching:
        raise TokenError
    row, user = matching[0]
    expired = row.expires_at is not None and row.expires_at <= now
    if row.revoked_at is not None or expired or user.disabled_at is not None:
        raise TokenError
    if row.last_used_at is None or now - row.last_used_at >= _USED:
        with writing(engine) as session:
            session.execute(update(Token).where(Token.id == row.id).values(last_used_at=now))
    return Principal(user.id, user.handle, frozenset(row.scopes.split()))


def revoke_token(engine: Engine, prefix: str) -> None:
    """Revoke a token; revoking it again changes nothing."""
    with writing(engine) as session:
        tokens = session.scalars(select(Token).where(Token.prefix == prefix)).all()
        if not tokens:
            raise ConfigError(
                f"token: found {prefix[:50]!r}, expected a prefix that the list shows"
            )
        for token in tokens:
            if token.revoked_at is None:
                token.revoked_at = datetime.now(UTC)
                events.append(session, OPERATOR, "token.revoked", prefix)


def list_tokens(engine: Engine, handle: str | None = None) -> list[Any]:
    """List tokens of one user or of all, oldest first, as rows without their hashes."""
    times = Token.created_at, Token.expires_at, Token.revoked_at, Token.last_used_at
    query = select(Token.prefix, User.handle, Token.scopes, Token.label, *times)
    query = query.join(User, Token.user_id == User.id).order_by(Token.id)
    if handle is not None:
        query = query.where(User.handle == handle)
    with reading(engine) as session:
        return list(session.execute(query))


def _checksum(body: str) -> str:
    return f"{zlib.crc32(body.encode()):08x}"


def _hash(token: str) -> str:
    # No salt, no slow hash: 256 random bits cannot be guessed.
    return hashlib.sha256(token.encode()).hexdigest()


def _find(session: Session, handle: str) -> User:
    user = session.scalar(select(User).where(User.handle == handle))
    if user is None:
        raise ConfigError(f"handle: found {handle[:50]!r}, expected a user that the list shows")
    return user
