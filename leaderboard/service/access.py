"""Access rules: every route declares who may call it; the app refuses to start otherwise."""

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Depends, Request
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy import Engine
from starlette.routing import BaseRoute

from leaderboard.service import accounts
from leaderboard.service.problems import Refusal
from now_builder.errors import ConfigError

Scope = Literal["admin", "read", "submit"]
MIN_TOKEN = 16
_BEARER = HTTPBearer(
    auto_error=False,
    description="A token made by an administrator: `now-leaderboard admin token`.",
)
_CHALLENGE = {"WWW-Authenticate": "Bearer"}


def hash_operator_token(token: str) -> bytes:
    """Return the hash of the operator's token; the token itself is not kept.

    Raises:
        ConfigError: If the token is too short.
    """
    if len(token) < MIN_TOKEN:
        raise ConfigError(f"token: found {len(token)} characters, expected {MIN_TOKEN} or more")
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


@dataclass(frozen=True, slots=True)
class Authenticator:
    """Identifies users by their tokens; without a database the board is read-only."""

    database: Engine | None
    operator_hash: bytes | None = None
    operator_id: int = 0

    def authenticate(self, token: str) -> accounts.Principal:
        """Return the owner of a token; refuse a request whose token is invalid."""
        if self.database is None:
            raise Refusal(403, "this board is read-only: it was started without --release")
        digest = hashlib.sha256(token.encode(errors="surrogateescape")).digest()
        if self.operator_hash is not None and hmac.compare_digest(digest, self.operator_hash):
            scopes = frozenset(accounts.SCOPES)
            return accounts.Principal(self.operator_id, accounts.OPERATOR, scopes)
        try:
            return accounts.authenticate(self.database, token)
        except accounts.TokenError as error:
            raise Refusal(401, str(error), headers=_CHALLENGE) from None


class Access:
    """Access rule of a route: a dependency that returns the caller."""

    def __init__(self, *scopes: Scope) -> None:
        self.scopes = frozenset(scopes)

    def __call__(
        self,
        request: Request,
        shown: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)],
    ) -> accounts.Principal:
        """Check the token of a request.

        Raises:
            Refusal: 401 without a valid token, 403 without a required scope.
        """
        authenticator: Authenticator = request.app.state.service.authenticator
        who = authenticator.authenticate(shown.credentials if shown else "")
        if not who.scopes & self.scopes:
            wanted = " or ".join(sorted(self.scopes))
            raise Refusal(403, f"this token may not do that: it lacks the scope {wanted}")
        return who


class Public:
    """Access rule of a public route."""

    async def __call__(self) -> None:
        """Allow the request."""


PUBLIC = Depends(Public())
Reader = Annotated[accounts.Principal, Depends(Access("read"))]
Submitter = Annotated[accounts.Principal, Depends(Access("submit"))]
Owner = Annotated[accounts.Principal, Depends(Access("admin", "submit"))]


def rule_of(route: BaseRoute) -> Access | Public | None:
    """Return the access rule of a route, if it declares exactly one."""
    if not isinstance(route, APIRoute):
        return None
    rules = [
        need.call for need in route.dependant.dependencies if isinstance(need.call, Access | Public)
    ]
    return rules[0] if len(rules) == 1 else None


def check_routes(routes: Iterable[BaseRoute]) -> None:
    """Raise a ``ValueError`` that names the routes without exactly one access rule."""
    bare = sorted(getattr(route, "path", "?") for route in routes if rule_of(route) is None)
    if bare:
        raise ValueError(f"routes without one access rule: {', '.join(bare)}")
