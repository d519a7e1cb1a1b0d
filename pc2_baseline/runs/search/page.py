"""Search as a page for one person: words or a picture in, pages with their screenshots out."""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from email.parser import BytesParser
from email.policy import HTTP
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qs

from now_builder.errors import NowError
from now_builder.formats.screenshots import Screenshot, some_screenshots
from now_builder.formats.shard import image_kind
from now_builder.program.html import template_environment
from now_builder.program.loopback import LoopbackHandler, listening
from now_builder.program.missing_package import describe_missing
from pc2_baseline.runs.examples import data_url
from pc2_baseline.runs.search.searcher import Found, Searcher

MOST_BYTES = 20 * 2**20
"""Bytes of a request at most, a picture in it."""
_MOST_WORDS = 1000
_MOST_PARTS = 8
_OPENING, _EXAMPLES = 12, 3


@dataclass(frozen=True, slots=True)
class Answer:
    """Pages found, or a problem, and the picture of the query as a data URL."""

    found: Found | None = None
    problem: str | None = None
    picture: str | None = None


@dataclass(slots=True)
class SearchPage:
    """A search that is served, with the screenshots of its pages by key and the number to list."""

    searcher: Searcher
    screenshots: Mapping[str, Screenshot]
    count: int
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def by_words(self, words: str) -> Answer:
        """Search for words."""
        if len(words) > _MOST_WORDS:
            return Answer(problem=f"{len(words)} characters, expected at most {_MOST_WORDS}")
        try:
            with self._lock:
                return Answer(self.searcher.by_words(words, self.count))
        except NowError as error:
            return Answer(problem=str(error))

    def by_picture(self, content: bytes, name: str) -> Answer:
        """Search for a picture."""
        if not content:
            return Answer(problem="no picture was chosen")
        try:
            with self._lock:
                found = self.searcher.by_picture(content, name, self.count)
                return Answer(found, picture=data_url(content, name))
        except NowError as error:
            return Answer(problem=str(error))
        except ModuleNotFoundError as error:
            problem = describe_missing(error, ["pc2-baseline", "search"])
            if problem is None:
                raise
            return Answer(problem=problem)

    def render(self, answer: Answer, words: str = "") -> bytes:
        """Return the page."""
        template = template_environment("pc2_baseline.runs").get_template("search.html.j2")
        pages = self.searcher.pages
        first = [] if answer.found or answer.problem else pages
        text = template.render(
            answer=answer,
            words=words,
            split=pages[0].split,
            pages=len(pages),
            languages={page.key: page.lang for page in pages} if answer.found else {},
            screenshots=self.screenshots,
            opening=[page for page in first if page.key in self.screenshots][:_OPENING],
            examples=first[:: len(pages) // _EXAMPLES or 1][:_EXAMPLES],
        )
        return text.encode()


@contextmanager
def serving(searcher: Searcher, captures: Path | None, count: int, port: int) -> Iterator[str]:
    """Serve a search on 127.0.0.1 while the context is open; yield the page's URL.

    Without captures the page has no pictures; port 0 picks a free one.

    Raises:
        FormatError: If the captures have no screenshot of any page.
        ConfigError: If the port is taken.
    """
    screenshots = some_screenshots(captures, searcher.pages) if captures else {}
    page = SearchPage(searcher, screenshots, count)
    with listening(SearchHandler, port, page=page) as url:
        yield url


def serve(
    searcher: Searcher, captures: Path | None, count: int, port: int, say: Callable[[str], None]
) -> None:
    """Serve a search until interrupted; the arguments are those of :func:`serving`."""
    with serving(searcher, captures, count, port) as url:
        say(f"Search here: {url}\nCtrl-C ends.")
        sys.stdout.flush()
        threading.Event().wait()


class SearchHandler(LoopbackHandler):
    """Answer a browser."""

    page: SearchPage
    referrer_policy = "same-origin"  # without a referrer a form's origin is null

    def do_GET(self) -> None:  # noqa: N802 - the base's name
        """Answer with the page, searched for words if there are any, or a screenshot."""
        path = self.inner_path()
        folder, _, key = (path or "").partition("/")
        if path == "":
            query = parse_qs(self.path.partition("?")[2])  # a request line has 64 KiB at most
            words = " ".join(query.get("words", [])).strip()
            self._show(self.page.by_words(words) if words else Answer(), words)
        elif folder == "pictures" and key in self.page.screenshots:
            self._show_screenshot(self.page.screenshots[key])
        else:
            self.refuse(HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:  # noqa: N802 - the base's name
        """Take a picture and answer with the page."""
        if self.inner_path() != "":
            self.refuse(HTTPStatus.NOT_FOUND)
            return
        if self.is_from_elsewhere():
            self.refuse(HTTPStatus.FORBIDDEN)
            return
        body = self.read_body(MOST_BYTES)
        if body is None:
            self.discard_body()
            problem = f"the picture is too large, expected at most {MOST_BYTES // 2**20} MiB"
            self._show(Answer(problem=problem))
            return
        part = file_of(self.headers.get("Content-Type", ""), body)
        if part is None:
            self.refuse(HTTPStatus.BAD_REQUEST)
            return
        self._show(self.page.by_picture(*part))

    def _show(self, answer: Answer, words: str = "") -> None:
        status = HTTPStatus.BAD_REQUEST if answer.problem else HTTPStatus.OK
        self.answer(status, "text/html; charset=utf-8", self.page.render(answer, words))

    def _show_screenshot(self, screenshot: Screenshot) -> None:
        try:
            content = screenshot.read()
        except NowError:
            self.refuse(HTTPStatus.INTERNAL_SERVER_ERROR)
            return
        self.answer(HTTPStatus.OK, f"image/{image_kind(content)}", content, "max-age=3600")


def file_of(content_type: str, body: bytes) -> tuple[bytes, str] | None:
    """Return content and name of the field ``picture`` of a form, ``None`` if there is none."""
    kind = _head(f"Content-Type: {content_type}".encode("latin-1", "replace"))
    edge = b"\r\n--" + (kind.get_boundary() or "").encode("ascii", "replace")
    for part in (b"\r\n" + body).split(edge, _MOST_PARTS)[1:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        about = _head(head.lstrip())
        if about.get_param("name", header="Content-Disposition") == "picture":
            name = (about.get_filename() or "the picture").encode("utf-8", "surrogateescape")
            return content, name.decode("utf-8", "replace")[:200]
    return None


def _head(lines: bytes) -> Message:
    return BytesParser(policy=HTTP).parsebytes(lines + b"\r\n\r\n", headersonly=True)
