"""Routes of administrators: users, tokens, the log, reproductions."""

from dataclasses import asdict
from datetime import datetime
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from leaderboard.service import accounts, events, intake
from leaderboard.service.access import Admin
from leaderboard.service.api import UPLOAD_FAILS, ZIP_BODY, CurrentService, fails, scoring
from leaderboard.service.problems import RequestBody
from leaderboard.store.entries import Moment, Reproduction
from leaderboard.store.reproduce import Claim
from leaderboard.submission.archive import Name

admin = APIRouter(prefix="/v1/admin", responses=fails(401, 403, 422))


class UserView(BaseModel):
    """A user."""

    handle: str
    display_name: str
    created_at: datetime
    disabled_at: datetime | None


class Users(BaseModel):
    """All users."""

    users: tuple[UserView, ...]


class NewUser(RequestBody):
    """A request to create a user."""

    handle: str
    display_name: str = ""


class Disabled(RequestBody):
    """A request to disable or enable a user."""

    disabled: bool


class Tokens(BaseModel):
    """Tokens, the oldest first."""

    tokens: tuple[accounts.TokenInfo, ...]


class NewToken(RequestBody):
    """A request to create a token."""

    handle: str
    scopes: tuple[Literal["admin", "read", "submit"], ...]
    label: str = ""
    expires_at: Moment | None = None


class Secret(BaseModel):
    """A new token, shown only once."""

    token: str


class Events(BaseModel):
    """A page of the log, the oldest first."""

    events: tuple[events.Event, ...]


class Rerun(RequestBody):
    """A request to file a reproduction."""

    by: Name
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{7,64}$")] | None = None


@admin.get("/users")
def users(_who: Admin, service: CurrentService) -> Users:
    """List users."""
    found = accounts.list_users(service.database)
    return Users(users=tuple(UserView(**asdict(user)) for user in found))


@admin.post("/users", status_code=201)
def create_user(who: Admin, new: NewUser, service: CurrentService) -> UserView:
    """Create a user."""
    database = service.database
    user = accounts.create_user(database, new.handle, new.display_name, actor=who.handle)
    return UserView(**asdict(user))


@admin.put("/users/{handle}/disabled", status_code=204)
def disable_user(who: Admin, handle: str, wanted: Disabled, service: CurrentService) -> None:
    """Disable a user's tokens, or enable them again."""
    accounts.set_disabled(service.database, handle, disabled=wanted.disabled, actor=who.handle)


@admin.get("/tokens")
def tokens(_who: Admin, service: CurrentService, handle: str | None = None) -> Tokens:
    """List tokens, of one user or of all."""
    return Tokens(tokens=tuple(accounts.list_tokens(service.database, handle)))


@admin.post("/tokens", status_code=201)
def create_token(who: Admin, new: NewToken, service: CurrentService) -> Secret:
    """Create a token; only this response shows it."""
    token = accounts.create_token(
        service.database,
        new.handle,
        new.scopes,
        label=new.label,
        expires_at=new.expires_at,
        actor=who.handle,
    )
    return Secret(token=token)


@admin.delete("/tokens/{prefix}", status_code=204)
def revoke_token(who: Admin, prefix: str, service: CurrentService) -> None:
    """Revoke a token."""
    accounts.revoke_token(service.database, prefix, actor=who.handle)


@admin.get("/events")
def read_events(
    _who: Admin,
    service: CurrentService,
    after: Annotated[int, Query(ge=0, lt=2**31)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    kind: str | None = None,
) -> Events:
    """Read a page of the log."""
    return Events(events=tuple(events.read(service.database, after, limit, kind)))


@admin.post(
    "/entries/{name}/reproductions",
    status_code=201,
    responses=UPLOAD_FAILS | fails(404),
    openapi_extra=ZIP_BODY,
)
async def add_reproduction(
    request: Request, who: Admin, name: str, ran: Annotated[Rerun, Query()], service: CurrentService
) -> Reproduction:
    """Score the body, an independent run of an entry, and file it as a reproduction."""
    claim = Claim(ran.by, ran.commit)
    async with intake.received(request, service, who) as upload:
        work = partial(intake.file_reproduction, service, upload, name, claim)
        return await scoring(service, work)
