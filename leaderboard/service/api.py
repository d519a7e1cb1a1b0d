"""Routes of the board: submissions, entries, boards, comparisons, pages."""

import asyncio
from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, ConfigDict
from starlette.concurrency import run_in_threadpool

from leaderboard.board.exports import TITLES
from leaderboard.board.tables import boards_of
from leaderboard.scoring.pairing import compare_results
from leaderboard.scoring.result import Result
from leaderboard.service import events, index, intake, quotas, rounds
from leaderboard.service.access import PUBLIC, Owner, Reader, Submitter
from leaderboard.service.accounts import Principal
from leaderboard.service.database import writing
from leaderboard.service.metering import MEDIA_TYPE as METRICS
from leaderboard.service.problems import Refusal, describe_errors
from leaderboard.service.running import Service
from leaderboard.service.views import (
    BoardLink,
    Boards,
    BoardView,
    ComparisonView,
    EntryView,
    Filter,
    OwnEntries,
    export_board,
    view_entry,
    view_own,
)
from leaderboard.site.pages import MEDIA_TYPES
from leaderboard.store import entries as store
from leaderboard.store.entries import Entry
from leaderboard.store.signatures import tombstone_path
from leaderboard.submission.archive import Prose, Submission
from now_builder import __version__
from now_builder.formats.benchmarks import BOARDS


async def _service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


CurrentService = Annotated[Service, Depends(_service_of)]


def fails(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI responses of a route's errors."""
    return {status: {"description": HTTPStatus(status).phrase} for status in statuses}


api = APIRouter(prefix="/v1")
ZIP_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}},
    }
}
UPLOAD_FAILS = fails(400, 401, 403, 408, 413, 422, 429)


class Quota(BaseModel):
    """Remaining quota of today; None means no limit.

    Attributes:
        round: number of files that may still be scored in the open blind round; None without one.
    """

    attempts: int | None
    scored: int | None
    resets_at: datetime
    round: int | None = None


class Me(BaseModel):
    """Owner, scopes and remaining quotas of a token."""

    handle: str
    scopes: tuple[str, ...]
    quota: Quota


class Valid(BaseModel):
    """A valid submission."""

    valid: bool = True
    track: str
    split: str
    method: str


class Reason(BaseModel):
    """The public reason for withdrawing an entry; unknown fields are errors."""

    model_config = ConfigDict(extra="forbid")

    reason: Prose


@api.put(
    "/submissions",
    status_code=201,
    response_model=Result,
    responses=UPLOAD_FAILS
    | fails(409)
    | {200: {"model": Result, "description": "The same file was filed before: the same entry."}},
    openapi_extra=ZIP_BODY,
)
async def submit(request: Request, who: Submitter, service: CurrentService) -> Response:
    """Score a submission and file it.

    The body is the zip. The answer is sent when the result is on disk. The same file sent again
    gives the same entry, so it is safe to repeat the request if the answer is lost.

    In an open blind round each person may have a few files scored, and ``Round-File`` says which of
    how many this is. A file that is no step above the person's best is answered with that entry.
    """
    await _count_attempt(service, who)
    async with (
        intake.received(request, service, who) as upload,
        service.upload_locks.setdefault(upload.sha256, asyncio.Lock()),
    ):
        answer = await asyncio.get_running_loop().run_in_executor(
            service.scorers, intake.file_upload, service, upload
        )
    name = answer.entry.name
    headers = {
        "Location": f"/v1/entries/{name}",
        "Link": f'</entries/{name}.html>; rel="alternate"; type="text/html"',
        **({"Round-File": answer.turn} if answer.turn else {}),
    }
    return Response(
        answer.entry.result.to_json(),
        status_code=201 if answer.new else 200,
        media_type="application/json",
        headers=headers,
    )


@api.post("/validate", responses=UPLOAD_FAILS, openapi_extra=ZIP_BODY)
async def validate(request: Request, who: Submitter, service: CurrentService) -> Valid:
    """Check a submission without scoring it; it counts as an attempt."""
    await _count_attempt(service, who)
    async with intake.received(request, service, who) as upload:
        meta = await asyncio.get_running_loop().run_in_executor(
            service.scorers, intake.check_upload, service, upload
        )
    return Valid(track=meta.track, split=meta.split, method=meta.method.name)


async def _count_attempt(service: Service, who: Principal) -> None:
    """Count an upload, before reading any of it."""
    intake.judge_of(service)
    await run_in_threadpool(intake.take, service, who, "attempts", datetime.now(UTC))


@api.get("/me", responses=fails(401, 403))
def me(who: Reader, service: CurrentService) -> Me:
    """Return the token's owner, its scopes and the rest of today's quotas."""
    limits = intake.quotas_of(service, who)
    left = quotas.remaining(service.database, who.user_id, limits, datetime.now(UTC))
    free = limits is intake.UNLIMITED
    blind = intake.open_round(service, who) if service.settings.judge else None
    turns = blind and rounds.turns_of(service.database, blind, who.handle)
    return Me(
        handle=who.handle,
        scopes=tuple(sorted(who.scopes)),
        quota=Quota(
            attempts=None if free else left.attempts,
            scored=None if free else left.scored,
            resets_at=left.resets_at,
            round=turns and turns.left,
        ),
    )


@api.get("/submissions", responses=fails(401, 403))
def mine(who: Reader, service: CurrentService) -> OwnEntries:
    """List the caller's entries, newest first."""
    snapshot, site = service.pages.state()
    known = snapshot.entries
    views = [
        view_own(row, site.flags_of(known[row.name]) if row.name in known else ())
        for row in index.entries_of(service.database, who.user_id)
    ]
    return OwnEntries(submissions=tuple(views))


@api.get("/entries/{name}", dependencies=[PUBLIC], responses=fails(404))
def entry(name: str, service: CurrentService) -> EntryView:
    """Describe an entry."""
    return _view(service, name)


def _view(service: Service, name: str) -> EntryView:
    entry = _entry(service, name)
    return view_entry(entry, service.pages.state()[1].flags_of(entry))


@api.get(
    "/entries/{name}/result",
    dependencies=[PUBLIC],
    response_model=Result,
    responses=fails(404, 410),
)
def result(name: str, service: CurrentService) -> Response:
    """Return an entry's ``result.json``, byte for byte as filed."""
    return Response(_live(service, name).result.to_json(), media_type="application/json")


def _live(service: Service, name: str) -> Entry:
    entry = _entry(service, name)
    if entry.withdrawal is not None:
        raise Refusal(410, "this entry was withdrawn; its figures are not shown any more")
    return entry


def _entry(service: Service, name: str) -> Entry:
    entry = service.pages.snapshot().entries.get(name)
    if entry is None:
        raise Refusal(404, "no such entry")
    return entry


@api.post("/entries/{name}/withdraw", responses=fails(401, 403, 404, 422))
def withdraw(who: Owner, name: str, said: Reason, service: CurrentService) -> EntryView:
    """Withdraw an entry: it leaves the board, and a tombstone with the reason stays.

    Withdrawing again changes nothing.
    """
    entry = _entry(service, name)
    row = index.find_entry(service.database, name)
    if (row is None or row.user_id != who.user_id) and "admin" not in who.scopes:
        raise Refusal(403, "this token may not do that: the entry is not yours")
    tombstone = _withdraw_signed(service, entry, said.reason)
    with writing(service.database) as session:
        if index.mark_withdrawn(session, name, tombstone.withdrawn_at):
            detail = {"reason": tombstone.reason}
            events.append(session, who.handle, "entry.withdrawn", name, detail)
    return _view(service, name)


def _withdraw_signed(service: Service, entry: Entry, reason: str) -> store.Withdrawal:
    folder, signer = service.settings.store, service.signer
    with signer.signing_intent("withdrawn", entry.name) if signer else nullcontext():
        tombstone = store.withdraw(folder, entry.name, reason, store.now())
        if signer is not None:
            signer.sign("withdrawn", entry, [tombstone_path(folder, entry.name)])
    return tombstone


@api.get("/boards", dependencies=[PUBLIC])
def boards(service: CurrentService) -> Boards:
    """List the boards."""
    entries = service.pages.snapshot().entries.values()
    live = [entry for entry in entries if entry.withdrawal is None]
    counts = Counter(board for entry in live for board in boards_of(entry.result))
    links = [
        BoardLink(board=name, title=TITLES[name], entries=counts[name], href=f"/v1/boards/{name}")
        for name in BOARDS
    ]
    return Boards(boards=tuple(links))


@api.get(
    "/boards/{board}", dependencies=[PUBLIC], response_model=BoardView, responses=fails(404, 422)
)
def board(board: str, wanted: Annotated[Filter, Query()], service: CurrentService) -> Response:
    """Return the rows of a board, reported and scored, with their places.

    Formats: JSON, CSV, Markdown, LaTeX, and BibTeX of the sources.
    """
    found = next((name for name in BOARDS if name == board), None)
    if found is None:
        raise Refusal(404, f"no such board; there are {', '.join(BOARDS)}")
    snapshot, site = service.pages.state()
    text = export_board(site.board(found), snapshot.entries, wanted)
    return Response(text, media_type=MEDIA_TYPES[wanted.format])


@api.get("/compare", dependencies=[PUBLIC], responses=fails(404, 410, 422))
def compare(a: str, b: str, service: CurrentService) -> ComparisonView:
    """Compare entry ``a`` with ``b`` query by query: difference of rSum, interval and tests."""
    one, other = _live(service, a), _live(service, b)
    return ComparisonView(a=a, b=b, **asdict(compare_results(one.result, other.result)))


@api.get("/schema/submission.json", dependencies=[PUBLIC])
def submission_schema() -> dict[str, Any]:
    """Return the JSON schema of ``submission.json``."""
    return Submission.model_json_schema()


@api.get("/schema/result.json", dependencies=[PUBLIC])
def result_schema() -> dict[str, Any]:
    """Return the JSON schema of ``result.json``."""
    return Result.model_json_schema(by_alias=True)


root = APIRouter()


class Health(BaseModel):
    """A working board."""

    status: str = "ok"
    version: str = __version__


@root.get("/healthz", dependencies=[PUBLIC], responses=fails(503))
def health(service: CurrentService) -> Health:
    """Check that the database answers and the store can be written."""
    problem = service.problem()
    if problem is not None:
        raise Refusal(503, problem)
    service.pages.snapshot()
    return Health()


@root.get("/metrics", dependencies=[PUBLIC], response_class=Response)
def metrics(service: CurrentService) -> Response:
    """Return the service's metrics in Prometheus' text format."""
    service.meters.entries.set(len(service.pages.snapshot().entries))
    return Response(service.meters.text(), media_type=METRICS)


@root.get("/openapi.json", dependencies=[PUBLIC], include_in_schema=False)
def openapi(request: Request) -> dict[str, Any]:
    """Describe the API."""
    return describe_errors(request.app.openapi())


@root.get("/{path:path}", dependencies=[PUBLIC], include_in_schema=False)
def page(path: str, request: Request, service: CurrentService) -> Response:
    """Return a page of the site; for missing addresses browsers get a page, others an error."""
    found = service.pages.get(path or "index.html")
    if found is None:
        if "text/html" not in request.headers.get("Accept", "") or path.startswith("v1/"):
            raise Refusal(404, "no such page")
        missing = service.pages.state()[1].not_found(path.count("/"))
        return Response(missing, status_code=404, media_type="text/html; charset=utf-8")
    return Response(found[0], media_type=found[1])
