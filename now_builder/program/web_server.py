"""Serve many hosts on 127.0.0.1 over HTTP/1.1; the Host header names the site."""

import gzip
import signal
import sys
import time
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from now_builder.errors import NowError
from now_builder.formats.io import write_text
from now_builder.program.loopback import QuietServer

_ENDLESS_PAUSE_S = 0.1

Manner = Literal["whole", "truncated", "endless", "silent"]


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP response and how to send it.

    Attributes:
        headers: Headers other than ``Content-Type``.
        delay_s: Seconds before the first byte.
        manner: ``truncated`` breaks off, ``endless`` never ends, ``silent`` never starts.
        compress: Whether gzip is allowed.
    """

    status: int
    content_type: str | None = None
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    delay_s: float = 0.0
    manner: Manner = "whole"
    compress: bool = False


@runtime_checkable
class Answers(Protocol):
    """Answers of all hosts."""

    def of(self, host: str, target: str) -> Answer:
        """Answer a request, by its Host header and its path and query as sent."""


def serve(answers: Answers, what: str, port: int, ready_file: Path | None = None) -> None:
    """Serve until SIGINT or SIGTERM; print the name of the content, ``what``, and the address."""
    with _listen(answers, port) as server:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        address = "{}:{}".format(*server.server_address[:2])
        sys.stdout.write(f"serving {what} on {address}\n")
        sys.stdout.flush()
        with suppress(KeyboardInterrupt):
            if ready_file is not None:
                write_text(ready_file, address)
            server.serve_forever()


def serving(answers: Answers) -> AbstractContextManager[str]:
    """Serve from a thread of this process; the context is ``ADDRESS:PORT``."""
    return _listen(answers, 0).running()


def _listen(answers: Answers, port: int) -> QuietServer:
    handler = type("Handler", (_Handler,), {"answers": answers})
    try:
        return QuietServer(("127.0.0.1", port), handler)
    except OSError as error:
        raise NowError(f"--port {port}: cannot listen on 127.0.0.1 ({error.strerror})") from None


class _Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection in its own thread."""

    answers: Answers
    protocol_version = "HTTP/1.1"
    timeout = 60
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Answer a request; omit the body for HEAD."""
        answer = self.answers.of(*_place(self.path, self.headers.get("Host", "")))
        time.sleep(answer.delay_s)
        self.close_connection |= answer.manner != "whole"
        if answer.manner == "silent":
            self.connection.settimeout(None)
            self.rfile.read()  # returns when the client gives up
            return
        compress = answer.compress and "gzip" in self.headers.get("Accept-Encoding", "")
        content = answer.body
        if compress:
            content = gzip.compress(content, compresslevel=5, mtime=0)  # no time: reproducible
        lengths = {"whole": len(content), "truncated": len(content) * 5 // 4}
        body = content if self.command == "GET" else b""
        self._send(answer, lengths.get(answer.manner), body, compress=compress)
        while body and answer.manner == "endless":
            time.sleep(_ENDLESS_PAUSE_S)
            self.wfile.write(b"<p>...</p>\n" * 400)

    do_HEAD = do_GET  # noqa: N815

    def send_error(self, code: int, *_: Any) -> None:
        """Reply to malformed or unsupported requests with an empty body."""
        self.close_connection = True
        self._send(Answer(405 if code == HTTPStatus.NOT_IMPLEMENTED else code), 0, b"")

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def _send(
        self, answer: Answer, length: int | None, body: bytes, *, compress: bool = False
    ) -> None:
        lines = [f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}"]
        if answer.content_type is not None:
            lines.append(f"Content-Type: {answer.content_type}")
        if length is not None and answer.status != HTTPStatus.NO_CONTENT:
            lines.append(f"Content-Length: {length}")
        if compress:
            lines.append("Content-Encoding: gzip")
        lines += [f"{name}: {value}" for name, value in answer.headers]
        lines.append(f"Connection: {'close' if self.close_connection else 'keep-alive'}")
        self.wfile.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body)


def _place(target: str, host: str) -> tuple[str, str]:
    """Return host and path of a request's target, which may be in the form sent to a proxy."""
    if target.lower().startswith("http://"):
        host, slash, path = target[7:].partition("/")
        return host, slash + path
    return host, target.partition("#")[0]
