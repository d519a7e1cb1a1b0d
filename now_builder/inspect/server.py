"""The audit's server: on loopback, behind a secret path, one verdict at a time."""

import json
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hmac import compare_digest
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from now_builder.errors import ConfigError, NowError
from now_builder.formats.release import Pair
from now_builder.formats.shard import Place, image_kind, read_place
from now_builder.formats.verdicts import VERDICTS, Judged, VerdictFile, one_line
from now_builder.inspect.pairs import language_of

_BODY = 16 * 2**10
"""Bytes of a request at most."""


@dataclass(slots=True)
class Audit:
    """An audit that is going on; ``page`` renders its page as things stand."""

    sample: Mapping[str, Pair]
    places: Mapping[str, Place]
    verdicts: VerdictFile
    judge: str
    page: Callable[[], str]
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def render(self) -> str:
        """Return the page."""
        with self._lock:
            return self.page()

    def judged(self, request: Mapping[str, Any]) -> dict[str, Any] | None:
        """Store a verdict on a pair of the sample that has none, and return what is done then."""
        with self._lock:
            pair = self.sample.get(str(request.get("key")))
            verdict = next((word for word in VERDICTS if word == request.get("matched")), None)
            if pair is None or verdict is None or pair.key in self._done():
                return None
            seconds = request.get("seconds")
            looked = seconds if isinstance(seconds, int | float) else 0.0
            self.verdicts.append(
                Judged(
                    pair.key, pair.url, pair.split, language_of(pair) or "", verdict, self.judge,
                    datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                    round(float(looked), 1) if 0 <= looked < 86_400 else 0.0,
                    one_line(str(request.get("note", ""))),
                )
            )  # fmt: skip
            return {"done": self._done()}

    def undone(self) -> dict[str, Any]:
        """Take the last verdict back, if it was on this sample; give it and what is done then."""
        with self._lock:
            last = self.verdicts.judged[-1] if self.verdicts.judged else None
            if last is not None and last.key in self.sample:
                self.verdicts.undo()
            return {
                "done": self._done(),
                "key": last.key if last else None,
                "note": last.note if last else "",
            }

    def _done(self) -> list[str]:
        return [verdict.key for verdict in self.verdicts.judged]


@contextmanager
def listening(audit: Audit, port: int) -> Iterator[str]:
    """Serve an audit while the context is open; give the URL, whose path nobody can guess.

    Raises:
        ConfigError: If the port is taken.
    """
    root = f"/{secrets.token_urlsafe(24)}/"
    handler = type("Handler", (_Handler,), {"audit": audit, "root": root})
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError as error:
        raise ConfigError(f"--port {port}: {error.strerror}; another, or 0 for any") from None
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}{root}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    audit: Audit
    root: str
    server_version = "now-builder"
    sys_version = ""
    timeout = 60

    def do_GET(self) -> None:
        """Answer with the page or a picture."""
        path = self._path()
        folder, _, key = (path or "").partition("/")
        if path == "":
            self._answer(HTTPStatus.OK, "text/html; charset=utf-8", self.audit.render().encode())
        elif folder == "pictures" and key in self.audit.places:
            picture = read_place(self.audit.places[key])
            self._answer(HTTPStatus.OK, f"image/{image_kind(picture)}", picture, "max-age=3600")
        else:
            self._refuse(HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        """Take a verdict, or one back."""
        path = self._path()
        if path not in {"verdict", "undo"}:
            self._refuse(HTTPStatus.NOT_FOUND)
            return
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()) or int(length) > _BODY:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            return
        body = self.rfile.read(int(length))
        origin = self.headers.get("Origin")
        kind = self.headers.get("Content-Type", "").partition(";")[0].strip()
        if kind != "application/json" or origin not in {None, f"http://{self.headers.get('Host')}"}:
            self._refuse(HTTPStatus.FORBIDDEN)
            return
        request = _object(body)
        if request is None:
            self._refuse(HTTPStatus.BAD_REQUEST)
            return
        try:
            answer = self.audit.undone() if path == "undo" else self.audit.judged(request)
        except (NowError, OSError) as error:
            text = f"{error}.".encode()
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", text)
            return
        status = HTTPStatus.OK if answer is not None else HTTPStatus.CONFLICT
        self._answer(status, "application/json", json.dumps(answer).encode())

    def _path(self) -> str | None:
        """Return the path behind the secret, ``None`` if the request lacks the secret."""
        path = self.path.partition("?")[0].encode()
        root = self.root.encode()
        known = compare_digest(path[: len(root)], root)
        return path[len(root) :].decode("latin-1") if known else None

    def _refuse(self, status: HTTPStatus) -> None:
        self._answer(status, "text/plain; charset=utf-8", status.phrase.encode())

    def _answer(
        self, status: HTTPStatus, kind: str, content: bytes, caching: str = "no-store"
    ) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(content))),
            ("Cache-Control", caching),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Log nothing: a judge's terminal shows the URL and no more."""


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
