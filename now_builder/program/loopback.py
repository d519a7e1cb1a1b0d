"""Pages for one person at this machine: a server on 127.0.0.1, behind a path nobody can guess."""

import re
import secrets
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hmac import compare_digest
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class LoopbackHandler(BaseHTTPRequestHandler):
    """Answers requests; a subclass has ``do_GET`` and ``do_POST``.

    Attributes:
        root: The secret path, with a slash at both ends; set by :func:`listening`.
    """

    root: str
    server_version = "noise-of-web"
    sys_version = ""
    timeout = 60

    def inner_path(self) -> str | None:
        """Return the path behind the secret, ``None`` if the request lacks the secret."""
        path = self.path.partition("?")[0].encode()
        root = self.root.encode()
        known = compare_digest(path[: len(root)], root)
        return path[len(root) :].decode("latin-1") if known else None

    def read_body(self, most: int) -> bytes | None:
        """Read the request's body; ``None``, unread, if its size is unknown or above ``most``."""
        length = self.headers.get("Content-Length", "")
        known = re.fullmatch("[0-9]{1,15}", length) is not None and int(length) <= most
        return self.rfile.read(int(length)) if known else None

    def is_from_elsewhere(self) -> bool:
        """Whether a page of another origin sent the request."""
        return self.headers.get("Origin") not in {None, f"http://{self.headers.get('Host')}"}

    def refuse(self, status: HTTPStatus) -> None:
        """Answer with a status and its name."""
        self.answer(status, "text/plain; charset=utf-8", status.phrase.encode())

    def answer(
        self, status: HTTPStatus, kind: str, content: bytes, caching: str = "no-store"
    ) -> None:
        """Answer with content that no other page may frame or load."""
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(content))),
            ("Cache-Control", caching),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
            ("Referrer-Policy", "no-referrer"),  # no other site may learn the path
            ("Cross-Origin-Resource-Policy", "same-origin"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Log nothing: the terminal shows the URL and no more."""


class QuietServer(ThreadingHTTPServer):
    """A server that ends with its process, and is silent where a browser hangs up."""

    daemon_threads = True
    request_queue_size = 1024

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print what went wrong, but for a connection that was closed, or that stands still."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


@contextmanager
def listening(handler: type[LoopbackHandler], **attributes: Any) -> Iterator[str]:
    """Serve while the context is open; yield the URL, whose path nobody can guess."""
    root = f"/{secrets.token_urlsafe(24)}/"
    own = type("Handler", (handler,), {**attributes, "root": root})
    server = QuietServer(("127.0.0.1", 0), own)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}{root}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
