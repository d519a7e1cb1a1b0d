"""The board over HTTP: the pages of the static site, and one way in for submissions."""

import asyncio
import hashlib
import hmac
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from leaderboard.evaluate import score
from leaderboard.page import Site, policy
from leaderboard.store import Entry, file_result, read_results
from leaderboard.submission import max_submission
from now_builder import __version__
from now_builder.errors import ConfigError, NowError, SubmissionError
from now_builder.formats.captions import TOKENIZERS
from now_builder.formats.release import data_folder

TOKEN_VARIABLE = "NOW_LEADERBOARD_TOKEN"  # noqa: S105 - a name, not a secret
MIN_TOKEN = 16
BODY_SECONDS = 120.0
SCORERS = 2
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}


@dataclass(frozen=True, slots=True)
class Judge:
    """What a server needs to accept submissions.

    Attributes:
        release: The release that submissions must be made on.
        truth: Languages and topics for the references, if at hand.
        token_hash: sha256 of the token that a submitter must show.
        max_bytes: The most that a body may hold.
    """

    release: Path
    truth: Path | None
    token_hash: bytes
    max_bytes: int


def make_judge(release: Path, truth: Path | None, token: str) -> Judge:
    """Prepare for scoring against a release; the token itself is not kept.

    Raises:
        ConfigError: If the token is too short to be a secret.
        FormatError: If there is no such release.
    """
    if len(token) < MIN_TOKEN:
        raise ConfigError(
            f"token: found {len(token)} characters, expected {MIN_TOKEN} or more"
            f" (in {TOKEN_VARIABLE} or --token-file)"
        )
    return Judge(release, truth, _hash(token), max_submission((_largest(release),) * 2))


def read_token(path: Path | None) -> str:
    """Read the token from a file, or from the environment if no file is named.

    Raises:
        ConfigError: If there is none.
    """
    if path is None:
        token = os.environ.get(TOKEN_VARIABLE, "")
        if not token:
            raise ConfigError(f"{TOKEN_VARIABLE} is not set, and no --token-file is given")
        return token
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--token-file {path}: cannot be read ({error})") from None


def _largest(release: Path) -> int:
    """Count the pairs of the largest split that is scored."""
    folder, counts = data_folder(release), [0]
    for tokenizer in TOKENIZERS:
        for split in ("dev", "test"):
            path = folder / f"{split}_caps_{tokenizer}.txt"
            if path.exists():
                with path.open("rb") as file:
                    counts.append(sum(1 for _ in file))
    return max(counts)


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


class Pages:
    """The site as it stands, rendered again when a result is filed.

    Args:
        store: Folder of results.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self._names: frozenset[str] | None = None
        self._site = Site([])
        self._lock = asyncio.Lock()

    async def get(self, path: str) -> tuple[str, str] | None:
        """Give a page and its media type, or None."""
        async with self._lock:
            names = frozenset(file.name for file in (self._store / "results").glob("[!.]*.json"))
            if names != self._names:
                self._site = await run_in_threadpool(self._read)
                self._names = names
            return await run_in_threadpool(self._site.get, path)

    def _read(self) -> Site:
        return Site(read_results([self._store]))


def make_app(store: Path, judge: Judge | None = None) -> FastAPI:
    """Make the service: read-only without a judge.

    Args:
        store: Folder of results; only this service or ``submit`` should write to it.
        judge: Accepts submissions where given.
    """
    store.mkdir(parents=True, exist_ok=True)
    app = FastAPI(title="now-leaderboard", version=__version__, docs_url=None, redoc_url=None)
    pages = Pages(store)
    scorers = asyncio.Semaphore(SCORERS)

    app.middleware("http")(_with_headers)
    app.exception_handler(HTTPException)(_problem)
    app.exception_handler(RequestValidationError)(_invalid)
    app.exception_handler(Exception)(_problem)

    @app.get("/healthz")
    async def _health() -> dict[str, str]:
        await pages.get("index.html")
        return {"status": "ok", "version": __version__}

    @app.put("/v1/submissions", status_code=201)
    async def _submit(request: Request) -> Response:
        if judge is None:
            raise HTTPException(403, "this board is read-only: it was started without --release")
        _check_token(request, judge)
        _check_length(request, judge)
        with tempfile.TemporaryDirectory(prefix="now-leaderboard-") as folder:
            path = Path(folder) / "submission.zip"
            await _receive(request, path, judge.max_bytes)
            async with scorers:
                entry, new = await run_in_threadpool(_judge_one, path, store, judge)
        return Response(
            entry.result.to_json(),
            status_code=201 if new else 200,
            media_type="application/json",
            headers={"Location": f"/entries/{entry.name}.html"},
        )

    @app.api_route("/{path:path}", methods=["GET", "HEAD"], include_in_schema=False)
    async def _page(path: str) -> Response:
        page = await pages.get(path or "index.html")
        if page is None:
            raise HTTPException(404, "no such page")
        return Response(page[0], media_type=page[1])

    return app


def _check_token(request: Request, judge: Judge) -> None:
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() != "bearer" or not hmac.compare_digest(_hash(token), judge.token_hash):
        raise HTTPException(401, "a valid bearer token is needed", {"WWW-Authenticate": "Bearer"})


def _check_length(request: Request, judge: Judge) -> None:
    length = request.headers.get("Content-Length", "0")
    if not length.isdigit() or int(length) > judge.max_bytes:
        raise _too_large(judge.max_bytes)


def _too_large(limit: int) -> HTTPException:
    return HTTPException(413, f"expected at most {limit} bytes, enough for the largest split")


async def _receive(request: Request, path: Path, limit: int) -> None:
    """Stream the body to a file, counting: what the headers say is not believed."""
    received = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            with path.open("wb") as file:
                async for chunk in request.stream():
                    received += len(chunk)
                    if received > limit:
                        raise _too_large(limit)
                    file.write(chunk)
    except TimeoutError:
        raise HTTPException(408, f"the body took longer than {BODY_SECONDS:g} s") from None
    except ClientDisconnect:
        raise HTTPException(400, "the body ended early") from None


def _judge_one(path: Path, store: Path, judge: Judge) -> tuple[Entry, bool]:
    try:
        return file_result(store, score(path, judge.release, judge.truth, name="submission"))
    except SubmissionError as error:
        raise HTTPException(422, str(error)) from None
    except NowError as error:
        sys.stderr.write(f"cannot score: {error}\n")
        problem = "this board's release cannot be scored on for that split and track"
        raise HTTPException(422, problem) from None


async def _with_headers(
    request: Request, respond: Callable[[Request], Awaitable[Response]]
) -> Response:
    response = await respond(request)
    response.headers["Content-Security-Policy"] = f"{policy()}; frame-ancestors 'none'"
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "no-referrer"
    return response


async def _problem(_request: Request, error: Exception) -> Response:
    """Answer as RFC 9457 says."""
    status, detail, headers = 500, "", None
    if isinstance(error, HTTPException):
        status, detail, headers = error.status_code, error.detail, error.headers
    title = _TITLES.get(status, "Error")
    return JSONResponse(
        {"type": "about:blank", "title": title, "status": status, "detail": detail},
        status_code=status,
        media_type="application/problem+json",
        headers=dict(headers or {}),
    )


async def _invalid(request: Request, _error: Exception) -> Response:
    return await _problem(request, HTTPException(400, "the request cannot be read"))


_TITLES = {
    400: "Bad request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    408: "Too slow",
    413: "Too large",
    422: "Submission refused",
    500: "Internal error",
}


def serve(store: Path, judge: Judge | None, host: str, port: int) -> None:
    """Serve until interrupted.

    Args:
        store: Folder of results.
        judge: Accepts submissions where given.
        host: Address to listen on.
        port: Port to listen on.
    """
    if judge is not None and host not in _LOOPBACK:
        sys.stderr.write(f"listening on {host}: put TLS before it, tokens travel in the clear\n")
    mode = "accepts submissions" if judge else "read-only"
    sys.stderr.write(f"http://{host}:{port}/ ({mode}); stop with Ctrl-C\n")
    uvicorn.run(make_app(store, judge), host=host, port=port, log_level="warning")
