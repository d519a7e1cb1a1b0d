"""Users and their tokens: create, list, check, revoke."""

import hashlib
import hmac
import re
import secrets
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from sqlalchemy import Engine, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from leaderboard.service import events
from leaderboard.service.database import Token, User, reading, writing
from now_builder.errors import ConfigError, NowError

SCOPES = ("admin", "read", "submit")
OPERATOR, SERVICE = "operator", "service"
"""Actors of the log who are no users; their handles may not be taken."""
Refusal = Literal["unknown", "revoked", "expired", "disabled"]

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
        prefix: public prefix of the token, which names it.
    """

    user_id: int
    handle: str
    scopes: frozenset[str]
    prefix: str


@dataclass(frozen=True, slots=True)
class UserInfo:
    """A user, for lists."""

    user_id: int
    handle: str
    display_name: str
    created_at: datetime
    disabled_at: datetime | None


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """A token, for lists, without its secret."""

    prefix: str
    handle: str
    scopes: list[str]
    label: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


class TokenError(NowError):
    """An invalid token; the message does not reveal why.

    Args:
        reason: reason, only for the log and the metrics.
    """

    def __init__(self, reason: Refusal) -> None:
        super().__init__("a valid bearer token is needed")
        self.reason = reason


def create_user(
    engine: Engine, handle: str, display_name: str = "", *, actor: str = OPERATOR
) -> UserInfo:
    """Create a user; an empty display name becomes the handle, ``actor`` is for the log.

    Raises:
        ConfigError: If the handle is invalid or taken.
    """
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
            events.append(session, actor, "user.created", handle)
            return _user_info(user)
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


def set_disabled(
    engine: Engine, handle: str, *, disabled: bool = True, actor: str = OPERATOR
) -> None:
    """Disable a user's tokens, or enable them again.

    Raises:
        ConfigError: If there is no such user.
    """
    with writing(engine) as session:
        user = _find(session, handle)
        if (user.disabled_at is not None) != disabled:
            user.disabled_at = datetime.now(UTC) if disabled else None
            events.append(session, actor, "user.disabled" if disabled else "user.enabled", handle)


def list_users(engine: Engine) -> list[UserInfo]:
    """List users by handle."""
    with reading(engine) as session:
        return [_user_info(user) for user in session.scalars(select(User).order_by(User.handle))]


def create_token(
    engine: Engine,
    handle: str,
    scopes: Iterable[str],
    *,
    label: str = "",
    expires_at: datetime | None = None,
    actor: str = OPERATOR,
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
    plain, prefix = _new_token()
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
        events.append(session, actor, "token.created", prefix, {"handle": handle, "scopes": wanted})
    return plain


def authenticate(engine: Engine, token: str, now: datetime | None = None) -> Principal:
    """Return the owner of a token.

    Raises:
        TokenError: If the token is invalid; the message is the same for every reason.
    """
    now = now or datetime.now(UTC)
    parts = TOKEN.fullmatch(token)
    if parts is None or _checksum(token[:-9]) != parts[3]:
        raise TokenError("unknown")
    digest = _hash(token)
    with reading(engine) as session:
        query = select(Token, User).join(User, Token.user_id == User.id)
        rows = session.execute(query.where(Token.prefix == parts[1])).all()
    found = [pair for pair in rows if hmac.compare_digest(pair[0].sha256, digest)]
    if not found:
        raise TokenError("unknown")
    row, user = found[0]
    _refuse(row, user, now)
    if row.last_used_at is None or now - row.last_used_at >= _USED:
        with writing(engine) as session:
            session.execute(update(Token).where(Token.id == row.id).values(last_used_at=now))
    return Principal(user.id, user.handle, frozenset(row.scopes.split()), row.prefix)


def revoke_token(engine: Engine, prefix: str, *, actor: str = OPERATOR) -> None:
    """Revoke a token; revoking it again changes nothing.

    Raises:
        ConfigError: If there is no such token.
    """
    with writing(engine) as session:
        tokens = session.scalars(select(Token).where(Token.prefix == prefix)).all()
        if not tokens:
            raise ConfigError(
                f"token: found {prefix[:50]!r}, expected a prefix that the list shows"
            )
        for token in tokens:
            if token.revoked_at is None:
                token.revoked_at = datetime.now(UTC)
                events.append(session, actor, "token.revoked", prefix)


def list_tokens(engine: Engine, handle: str | None = None) -> list[TokenInfo]:
    """List tokens, oldest first, of one user or of all; never the secret."""
    query = select(Token, User.handle).join(User, Token.user_id == User.id).order_by(Token.id)
    if handle is not None:
        query = query.where(User.handle == handle)
    with reading(engine) as session:
        return [_token_info(token, owner) for token, owner in session.execute(query)]


def _new_token() -> tuple[str, str]:
    prefix = "".join(secrets.choice(_ALPHABET) for _ in range(8))
    body = f"now_{prefix}_{secrets.token_urlsafe(32)}"
    return f"{body}_{_checksum(body)}", prefix


def _checksum(body: str) -> str:
    return f"{zlib.crc32(body.encode()):08x}"


def _hash(token: str) -> str:
    # No salt, no slow hash: 256 random bits cannot be guessed.
    return hashlib.sha256(token.encode()).hexdigest()


def _refuse(token: Token, user: User, now: datetime) -> None:
    if token.revoked_at is not None:
        raise TokenError("revoked")
    if token.expires_at is not None and token.expires_at <= now:
        raise TokenError("expired")
    if user.disabled_at is not None:
        raise TokenError("disabled")


def _find(session: Session, handle: str) -> User:
    user = session.scalar(select(User).where(User.handle == handle))
    if user is None:
        raise ConfigError(f"handle: found {handle[:50]!r}, expected a user that the list shows")
    return user


def _user_info(user: User) -> UserInfo:
    return UserInfo(user.id, user.handle, user.display_name, user.created_at, user.disabled_at)


def _token_info(token: Token, handle: str) -> TokenInfo:
    return TokenInfo(
        prefix=token.prefix,
        handle=handle,
        scopes=token.scopes.split(),
        label=token.label,
        created_at=token.created_at,
        expires_at=token.expires_at,
        revoked_at=token.revoked_at,
        last_used_at=token.last_used_at,
    )
