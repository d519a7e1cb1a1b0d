"""A server of many hosts on 127.0.0.1 by HTTP/1.1; the Host header names the site."""

import asyncio
import contextlib
import gzip
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from now_builder.errors import NowError
from now_builder.formats.io import write_text

_HEAD_LIMIT = 32_768
_IDLE_S = 60.0
_ENDLESS_PAUSE_S = 0.1
_BACKLOG = 1024

Manner = Literal["whole", "truncated", "endless", "silent"]


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP response and how it is sent.

    Attributes:
        headers: Headers besides ``Content-Type``.
        delay_s: Seconds before the first byte.
        manner: ``truncated`` breaks off, ``endless`` never ends, ``silent`` never begins.
        compress: Whether it may be sent with gzip.
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
    """What the hosts answer."""

    def of(self, host: str, target: str) -> Answer:
        """Answer a request: its Host header, and its path and query as they were sent."""


def serve(answers: Answers, what: str, port: int, ready_file: Path | None = None) -> None:
    """Serve until interrupted or terminated; say ``what`` is served, and where."""
    listener = _listen(port)
    address = "{}:{}".format(*listener.getsockname()[:2])
    sys.stdout.write(f"serving {what} on {address}\n")
    sys.stdout.flush()
    if ready_file is not None:
        write_text(ready_file, address)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_until_stopped(answers, listener))


@contextmanager
def serving(answers: Answers) -> Iterator[str]:
    """Serve from a thread of this process; yield ``ADDRESS:PORT``."""
    listener = _listen(0)
    address = "{}:{}".format(*listener.getsockname()[:2])
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    def run() -> None:
        with contextlib.closing(loop):
            loop.run_until_complete(_serve(answers, listener, stop))

    thread = threading.Thread(target=run, name="web server", daemon=True)
    thread.start()
    try:
        yield address
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", port), backlog=_BACKLOG)
    except OSError as error:
        raise NowError(f"--port {port}: cannot listen on 127.0.0.1 ({error.strerror})") from None


async def _until_stopped(answers: Answers, listener: socket.socket) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await _serve(answers, listener, stop)


async def _serve(answers: Answers, listener: socket.socket, stop: asyncio.Event) -> None:
    """Serve until ``stop`` is set, then drop all open connections."""
    tasks: set[asyncio.Task[None]] = set()
    server = await asyncio.start_server(
        partial(_accept, answers, tasks), sock=listener, limit=_HEAD_LIMIT
    )
    await stop.wait()
    server.close()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _accept(
    answers: Answers,
    tasks: set[asyncio.Task[None]],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    task = asyncio.current_task()
    if task is not None:
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    try:
        while await _exchange(answers, reader, writer):
            pass
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
        pass  # the other side went away, sent nothing for long, or too much
    except asyncio.CancelledError:
        pass  # the server is closing; asyncio's streams would report this as an error
    finally:
        writer.close()


async def _exchange(
    answers: Answers, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bool:
    """Read a request and answer it; return whether the connection can take another."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _IDLE_S)
    lines = head.decode("latin-1").split("\r\n")
    parts = lines[0].split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        writer.write(_head(Answer(400), 0, keep=False))
        await writer.drain()
        return False
    method, target, version = parts
    pairs = (line.partition(":") for line in lines[1:] if ":" in line)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    host, target = _place(target, headers.get("host", ""))
    if headers.get("content-length", "0").isdigit():
        await reader.readexactly(min(int(headers.get("content-length", "0")), _HEAD_LIMIT))
    keep = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
    answer = Answer(405) if method not in {"GET", "HEAD"} else answers.of(host, target)
    if answer.delay_s:
        await asyncio.sleep(answer.delay_s)
    if answer.manner == "silent":
        await reader.read()  # returns when the other side gives up
        return False
    compress = answer.compress and "gzip" in headers.get("accept-encoding", "")
    return await _send(writer, answer, keep=keep, compress=compress, body=method == "GET")


async def _send(
    writer: asyncio.StreamWriter, answer: Answer, *, keep: bool, compress: bool, body: bool
) -> bool:
    content = answer.body
    if compress:  # the same bytes give the same bytes
        content = gzip.compress(content, compresslevel=5, mtime=0)
    if answer.manner == "endless":
        writer.write(_head(answer, None, keep=False) + (content if body else b""))
        while body:
            writer.write(b"<p>...</p>\n" * 400)
            await writer.drain()
            await asyncio.sleep(_ENDLESS_PAUSE_S)
        return False
    whole = answer.manner == "whole"
    length = len(content) if whole else len(content) * 5 // 4
    writer.write(_head(answer, length, keep=keep and whole, compress=compress))
    if body:
        writer.write(content)
    await writer.drain()
    return keep and whole


def _head(answer: Answer, length: int | None, *, keep: bool, compress: bool = False) -> bytes:
    lines = [f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}"]
    if answer.content_type is not None:
        lines.append(f"Content-Type: {answer.content_type}")
    if length is not None and answer.status != HTTPStatus.NO_CONTENT:
        lines.append(f"Content-Length: {length}")
    if compress:
        lines.append("Content-Encoding: gzip")
    lines += [f"{name}: {value}" for name, value in answer.headers]
    lines.append(f"Connection: {'keep-alive' if keep else 'close'}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _place(target: str, host: str) -> tuple[str, str]:
    """Split a request's target, as sent to a server or to a proxy, into host and path."""
    if target.lower().startswith("http://"):
        host, slash, path = target[7:].partition("/")
        return host, slash + path
    return host, target.partition("#")[0]
