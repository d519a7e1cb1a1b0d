"""The board's HTTP server."""

import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from leaderboard.service.access import check_routes
from leaderboard.service.admin_api import admin
from leaderboard.service.api import api, root
from leaderboard.service.guard import LOG, Connection, Guard
from leaderboard.service.problems import handle_errors, problem_response
from leaderboard.service.running import Service, Settings
from now_builder import __version__
from now_builder.errors import ConfigError

CONNECTIONS = 1000
_log = logging.getLogger(__name__)
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}
_ABOUT = """
Submissions are scored at once: `PUT /v1/submissions` with the zip as body answers with the result.
Errors are `application/problem+json` (RFC 9457) and list every problem of a refused submission.
"""


def make_app(settings: Settings) -> FastAPI:
    """Make the app of a board; it is read-only without a judge.

    The app releases its resources when its lifespan ends.

    Raises:
        ConfigError: If another process serves the store, or the database cannot be used.
    """
    routes = [*api.routes, *admin.routes, *root.routes]
    check_routes(routes)
    service = Service(settings)

    @asynccontextmanager
    async def _lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="now-leaderboard",
        version=__version__,
        description=_ABOUT,
        lifespan=_lifespan,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.router.routes.extend(routes)
    app.state.service = service
    handle_errors(app)
    app.exception_handler(ConfigError)(_mistaken)
    app.add_middleware(Guard, meters=service.meters)
    return app


async def _mistaken(_request: Request, error: Exception) -> Response:
    return problem_response(422, str(error))


def serve(settings: Settings, host: str, port: int) -> None:
    """Serve until interrupted; uploads being received or scored are finished first.

    Raises:
        ConfigError: If another process serves the store, or the database cannot be used.
    """
    app = make_app(settings)
    _log_to_stderr()
    if settings.judge is not None and host not in _LOOPBACK:
        _log.warning("listening on %s: put TLS before it, tokens travel in the clear", host)
    mode = "accepts submissions" if settings.judge else "read-only"
    sys.stderr.write(f"http://{host}:{port}/ ({mode}); stop with Ctrl-C\n")
    uvicorn.run(
        app,
        host=host,
        port=port,
        http=Connection,
        log_level="warning",
        access_log=False,
        limit_concurrency=CONNECTIONS,
        server_header=False,
    )


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    LOG.propagate = False
