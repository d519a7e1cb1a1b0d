"""Who may call a route: every one declares it, and an app with one that does not cannot be made."""

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

from leaderboard.service.accounts import OPERATOR, SCOPES, Principal, TokenError, authenticate
from leaderboard.service.problems import Refusal
from now_builder.errors import ConfigError

Scope = Literal["admin", "read", "submit"]
MIN_TOKEN = 16
_BEARER = HTTPBearer(
    auto_error=False,
    description="A token that an administrator made: `now-leaderboard admin token`.",
)
_CHALLENGE = {"WWW-Authenticate": "Bearer"}


@dataclass(frozen=True, slots=True)
class Operator:
    """Who has the machine: one token from its environment, of which only the hash is kept.

    Attributes:
        token_hash: Its sha256.
    """

    token_hash: bytes

    def holds(self, token: str) -> bool:
        """Whether a token is the operator's."""
        return hmac.compare_digest(_hash(token), self.token_hash)


def make_operator(token: str) -> Operator:
    """Remember a token by its hash.

    Raises:
        ConfigError: If it is too short to be a secret.
    """
    if len(token) < MIN_TOKEN:
        raise ConfigError(f"token: found {len(token)} characters, expected {MIN_TOKEN} or more")
    return Operator(_hash(token))


@dataclass(frozen=True, slots=True)
class Doorkeeper:
    """Tells whose token a request shows.

    Attributes:
        database: Of users; None on a read-only board, which lets nobody in.
        operator: May do everything, if there is one.
        operator_id: The number of the operator's row.
    """

    database: Engine | None
    operator: Operator | None = None
    operator_id: int = 0

    def admit(self, token: str) -> Principal:
        """Tell whose token this is.

        Raises:
            Refusal: If nobody's.
        """
        if self.database is None:
            raise Refusal(403, "this board is read-only: it was started without --release")
        if self.operator is not None and self.operator.holds(token):
            return Principal(self.operator_id, OPERATOR, frozenset(SCOPES), OPERATOR)
        try:
            return authenticate(self.database, token)
        except TokenError as error:
            raise Refusal(401, str(error), headers=_CHALLENGE) from None


class Access:
    """The rule of a route, as a dependency that gives who asks.

    Args:
        scopes: A token needs one of them.
    """

    def __init__(self, *scopes: Scope) -> None:
        self.scopes = frozenset(scopes)

    def __call__(
        self,
        request: Request,
        shown: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)],
    ) -> Principal:
        """Check the token.

        Raises:
            Refusal: 401 without a valid token, 403 if it may not do this.
        """
        keeper: Doorkeeper = request.app.state.service.keeper
        who = keeper.admit(shown.credentials if shown else "")
        if not who.scopes & self.scopes:
            wanted = " or ".join(sorted(self.scopes))
            raise Refusal(403, f"this token may not do that: it lacks the scope {wanted}")
        return who


class Public:
    """The rule of a route that anybody may call."""

    async def __call__(self) -> None:
        """Let pass."""


PUBLIC = Depends(Public())
Reader = Annotated[Principal, Depends(Access("read"))]
Submitter = Annotated[Principal, Depends(Access("submit"))]
Owner = Annotated[Principal, Depends(Access("admin", "submit"))]
Admin = Annotated[Principal, Depends(Access("admin"))]


def rule_of(route: BaseRoute) -> Access | Public | None:
    """Give the rule that a route declares."""
    if not isinstance(route, APIRoute):
        return None
    rules = [
        need.call for need in route.dependant.dependencies if isinstance(need.call, Access | Public)
    ]
    return rules[0] if len(rules) == 1 else None


def check_routes(routes: Iterable[BaseRoute]) -> None:
    """Refuse to serve what nobody thought about.

    Raises:
        ValueError: Naming the routes that declare no rule, or two.
    """
    bare = sorted(getattr(route, "path", "?") for route in routes if rule_of(route) is None)
    if bare:
        raise ValueError(f"routes without one access rule: {', '.join(bare)}")


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()
