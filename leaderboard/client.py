"""Client of a board over HTTP: submit, status, withdraw, quota."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from now_builder.errors import ConfigError, NowError
from now_builder.program.retry_after import retry_after_s

TOKEN_VARIABLE = "NOW_LEADERBOARD_TOKEN"  # noqa: S105 - a name, not a secret
TRIES = 6
_STRANGER = "(not a board of now-leaderboard?)"
_AGAIN = {502, 503, 504}
_CHUNK = 2**16
# A full queue of a small server is scored within this time.
_TIMEOUT = httpx.Timeout(300.0, connect=10.0)

Progress = Callable[[int], object]


class BoardError(NowError):
    """A board that cannot be reached, or an error response with a line for each problem."""

    def __init__(
        self, message: str, status: int | None = None, problems: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.status = status
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Filed:
    """An accepted submission, new if this upload created it.

    Attributes:
        turn: which file of how many it is in an open blind round; else empty.
    """

    name: str
    page: str
    new: bool
    result: dict[str, Any]
    turn: str = ""


def read_token(path: Path | None) -> str:
    """Read the token from a file, or from the environment if no file is named.

    Raises:
        ConfigError: If there is none.
    """
    if path is None:
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
        if not token:
            raise ConfigError(f"{TOKEN_VARIABLE} is not set, and no --token-file is given")
        return token
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--token-file {path}: cannot be read ({error})") from None


class BoardClient:
    """Client of the board at a URL; the token is never sent to another host.

    Raises:
        ConfigError: If the URL or the token is malformed, or the token would travel in the clear:
            by ``http`` to another machine.
    """

    def __init__(self, url: str, token: str, pause: Callable[[float], object] = time.sleep) -> None:
        if not _is_address(url):
            raise ConfigError(f"--url: found {url!r:.200}, expected http(s)://host")
        if not token.isascii() or not token.isprintable() or " " in token:
            raise ConfigError("token: found characters that no token has, expected plain ASCII")
        parts = urlsplit(url)
        if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            raise ConfigError(
                f"--url: found {url:.200}, which sends the token in the clear,"
                " expected https://, or this machine (as through ssh -L)"
            )
        self._url = url.rstrip("/")
        self._pause = pause
        self._http = httpx.Client(
            headers={"Authorization": f"Bearer {token}"}, timeout=_TIMEOUT, follow_redirects=False
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def submit(self, path: Path, progress: Progress | None = None) -> Filed:
        """Upload a submission; the same file sent twice is one entry, so retries are safe.

        ``progress`` is called with the number of bytes sent, from 0 again at each try.

        Raises:
            BoardError: If the board refuses it, with every problem, or cannot be reached.
        """
        size = _size(path)

        def send() -> httpx.Response:
            return self._http.put(
                f"{self._url}/v1/submissions",
                headers={"Content-Length": str(size), "Content-Type": "application/zip"},
                content=_pieces(path, progress),
            )

        answer = self._answer(send)
        location = answer.headers.get("Location", "")
        name = location.rpartition("/")[2]
        result = _object(answer, self._url)
        if not name:
            raise BoardError(f"{self._url}: no Location of an entry {_STRANGER}")
        turn, page = answer.headers.get("Round-File", ""), f"{self._url}/entries/{name}.html"
        return Filed(name, page, answer.status_code == 201, result, printable(turn))

    def me(self) -> dict[str, Any]:
        """Return the token's owner, its scopes and the rest of the quotas."""
        return self._tree("GET", "/v1/me")

    def mine(self) -> list[dict[str, Any]]:
        """List the entries of the token's owner."""
        found = self._tree("GET", "/v1/submissions").get("submissions")
        if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
            raise BoardError(f"{self._url}: no list of submissions {_STRANGER}")
        return found

    def entry(self, name: str) -> dict[str, Any]:
        """Return the description of an entry."""
        return self._tree("GET", f"/v1/entries/{quote(name, safe='')}")

    def withdraw(self, name: str, reason: str) -> dict[str, Any]:
        """Withdraw an entry; a tombstone stays."""
        path = f"/v1/entries/{quote(name, safe='')}/withdraw"
        return self._tree("POST", path, {"reason": reason})

    def _tree(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        answer = self._answer(lambda: self._http.request(method, self._url + path, json=body))
        return _object(answer, self._url)

    def _answer(self, send: Callable[[], httpx.Response]) -> httpx.Response:
        """Send until there is a response, with exponential backoff."""
        problem = ""
        for attempt in range(TRIES):
            wait = 2.0**attempt
            try:
                answer = send()
            except httpx.TransportError as error:
                problem = f"{self._url}: cannot be reached ({type(error).__name__}: {error})"
            except (httpx.DecodingError, httpx.InvalidURL) as error:
                raise BoardError(f"{self._url}: {printable(str(error))} {_STRANGER}") from None
            else:
                if answer.status_code not in _AGAIN:
                    return _checked(answer, self._url)
                problem = f"{self._url}: not available ({answer.status_code})"
                wait = max(wait, retry_after_s(answer.headers.get("Retry-After")) or 0.0)
            if attempt + 1 < TRIES:
                self._pause(min(wait, 60.0))
        raise BoardError(f"{problem}; {TRIES} tries")


@contextmanager
def reading(url: str) -> Iterator[None]:
    """Turn errors of reading a response into a ``BoardError``: another site may lack any field."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        found = printable(f"{type(error).__name__}: {error}")
        raise BoardError(f"{url}: no answer of a board ({found:.100}) {_STRANGER}") from None


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, where traffic cannot be intercepted."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _is_address(url: str) -> bool:
    """Return whether a connection can be made to a URL."""
    try:
        parts, host = urlsplit(url), httpx.URL(url).host
        _ = parts.port
    except (ValueError, httpx.InvalidURL):  # the former of a port, of brackets, of a host's name
        return False
    return parts.scheme in {"http", "https"} and bool(host) and url.isprintable() and " " not in url


def _object(answer: httpx.Response, url: str) -> dict[str, Any]:
    """Read a response that must be a JSON object."""
    try:
        tree = answer.json()
    except ValueError:
        tree = None
    if not isinstance(tree, dict):
        raise BoardError(f"{url}: a response without an object of JSON {_STRANGER}")
    return tree


def _checked(answer: httpx.Response, url: str) -> httpx.Response:
    if answer.is_success:
        return answer
    try:
        tree = answer.json()
        problems = tuple(_line(item) for item in tree.get("problems", ()))
        detail = printable(str(tree["detail"]))
    except (ValueError, KeyError, AttributeError, TypeError):
        problems, detail = (), f"{answer.reason_phrase or 'no'} {_STRANGER}"
    detail = "; ".join(problems) or detail
    raise BoardError(f"{url}: {answer.status_code}: {detail}", answer.status_code, problems)


def _line(item: Mapping[str, object]) -> str:
    text = {key: str(item.get(key, "?")) for key in ("field", "found", "expected", "code", "mend")}
    line = "{field}: found {found}, expected {expected} [{code}]".format_map(text)
    return printable(f"{line}; {text['mend']}" if text["mend"] else line)


def printable(text: str) -> str:
    """Replace unprintable characters, which could control a terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _size(path: Path) -> int:
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_size
    except OSError as error:
        raise BoardError(f"{path}: cannot be read ({error.strerror})") from None


def _pieces(path: Path, progress: Progress | None) -> Iterator[bytes]:
    sent = 0
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            yield piece
            sent += len(piece)
            if progress:
                progress(sent)
