"""The board's HTTP server."""

import logging
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import uvicorn
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from leaderboard.client import is_loopback
from leaderboard.service.access import check_routes
from leaderboard.service.api import api, root
from leaderboard.service.guard import LOG, Connection, Guard
from leaderboard.service.problems import handle_errors, problem_response
from leaderboard.service.running import Service, Settings
from now_builder import __version__
from now_builder.errors import ConfigError

CONNECTIONS = 1000
_log = logging.getLogger(__name__)
_ABOUT = """
Submissions are scored at once: `PUT /v1/submissions` with the zip as body answers with the result.
Errors are `application/problem+json` (RFC 9457) and list every problem of a refused submission.
"""


def make_app(settings: Settings) -> FastAPI:
    """Make the app of a board; it is read-only without a judge.

    The app releases its resources when its lifespan ends.
    """
    routes = [*api.routes, *root.routes]
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
    """Serve until interrupted; uploads being received or scored are finished first."""
    with _bound(host, port) as listener:
        app = make_app(settings)
        _log_to_stderr()
        if settings.judge is not None and not is_loopback(host):
            _log.warning("listening on %s: put TLS before it, tokens travel in the clear", host)
        mode = "accepts submissions" if settings.judge else "read-only"
        place = f"[{host}]" if ":" in host else host
        address = f"http://{place}:{listener.getsockname()[1]}/ ({mode})"
        config = uvicorn.Config(
            app,
            http=Connection,
            log_level="warning",
            access_log=False,
            limit_concurrency=CONNECTIONS,
            server_header=False,
        )
        with suppress(KeyboardInterrupt):
            _Server(config, address).run(sockets=[listener])


class _Server(uvicorn.Server):
    """A server that announces its address once it answers there."""

    def __init__(self, config: uvicorn.Config, address: str) -> None:
        super().__init__(config)
        self._address = address

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then print the address."""
        await super().startup(sockets)
        if self.started:
            sys.stderr.write(f"{self._address}; stop with Ctrl-C\n")


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:  # a name that is none is one too
        why = str(error.strerror).partition(" (while")[0]
        problem = f"cannot listen there ({why}); another --host or --port"
        raise ConfigError(f"{host}:{port}: {problem}") from None


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    LOG.propagate = False
