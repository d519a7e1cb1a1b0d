"""Serve pages to one person on this machine: a server on 127.0.0.1 with a secret path."""

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
    """Answers requests; a subclass defines ``do_GET`` and ``do_POST``.

    Attributes:
        root: Secret path, with a slash at both ends; set by :func:`listening`.
    """

    root: str
    server_version = "noise-of-web"
    sys_version = ""
    timeout = 60

    def inner_path(self) -> str | None:
        """Return the path after the secret; ``None`` if the request lacks the secret."""
        path = self.path.partition("?")[0].encode()
        root = self.root.encode()
        is_secret = compare_digest(path[: len(root)], root)
        return path[len(root) :].decode("latin-1") if is_secret else None

    def read_body(self, most: int) -> bytes | None:
        """Read the request's body; ``None``, unread, if its size is unknown or above ``most``."""
        length = self.headers.get("Content-Length", "")
        is_readable = re.fullmatch("[0-9]{1,15}", length) is not None and int(length) <= most
        return self.rfile.read(int(length)) if is_readable else None

    def is_from_elsewhere(self) -> bool:
        """Whether a page of another origin sent the request."""
        return self.headers.get("Origin") not in {None, f"http://{self.headers.get('Host')}"}

    def refuse(self, status: HTTPStatus) -> None:
        """Answer with an error status and its phrase."""
        self.answer(status, "text/plain; charset=utf-8", status.phrase.encode())

    def answer(
        self, status: HTTPStatus, kind: str, content: bytes, caching: str = "no-store"
    ) -> None:
        """Answer with content that pages of other sites may neither frame nor load."""
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(content))),
            ("Cache-Control", caching),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
            ("Referrer-Policy", "no-referrer"),  # the path is secret
            ("Cross-Origin-Resource-Policy", "same-origin"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - name of the base class
        """Log nothing: the terminal shows the URL only."""


class QuietServer(ThreadingHTTPServer):
    """A server that ends with its process and does not report browsers that hang up."""

    daemon_threads = True
    request_queue_size = 1024

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print an error, unless a connection was closed or timed out."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    @contextmanager
    def running(self) -> Iterator[str]:
        """Serve from a thread while the context is open, then close; yield ``ADDRESS:PORT``."""
        with self:
            thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
            thread.start()
            try:
                yield "{}:{}".format(*self.server_address[:2])
            finally:
                self.shutdown()
                thread.join()


@contextmanager
def listening(handler: type[LoopbackHandler], **attributes: Any) -> Iterator[str]:
    """Serve while the context is open; yield the URL with its secret path."""
    root = f"/{secrets.token_urlsafe(24)}/"
    served = type("Handler", (handler,), {**attributes, "root": root})
    with QuietServer(("127.0.0.1", 0), served).running() as address:
        yield f"http://{address}{root}"
