"""A visit to a page: its row, which grows on the way, and the error that may end it."""

from dataclasses import dataclass, field, replace
from typing import Any

from PIL import Image

from now_builder.formats.shard import Capture, CaptureRow, Element

BUSY = frozenset({"http_429", "http_503"})
"""Errors of hosts that ask to come back later."""

TRANSIENT = frozenset({"net_error", "renderer_crashed", "browser_crashed"})
"""Errors that may not happen again."""

REFUSED = frozenset(
    {"private_address", "robots", "robots_unreachable", "quota", "never", "only", "opt_out"}
)
"""Errors of pages that were not visited on purpose."""

PUT_OFF = "put_off"
"""Error of a page that leads to a host in its pause; the message is the host. It makes no row."""

_MESSAGE = 500
"""Maximum length of an error message in a row."""


class PageError(Exception):
    """A page, or something that it asks for, cannot be had.

    Attributes:
        code: Reason in one word, such as ``timeout``.
        message: Details for people.
        retry_after_s: Pause in seconds that a busy site asks for.
    """

    def __init__(self, code: str, message: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Document:
    """A main document as served.

    Attributes:
        body: Content with content encodings undone.
        whole: Whether all of it arrived.
        headers: Values of the headers by name in lower case.
    """

    url: str
    body: bytes
    whole: bool
    headers: dict[str, list[str]]


_NOTHING = Document("", b"", whole=False, headers={})


@dataclass(slots=True)
class Visit:
    """One visit to a page: the row so far, and the first screen once the page is at rest.

    Attributes:
        row: Row of the page; final when the visit is over.
        hosts: Hosts whose pause this page has waited for.
        tdm_file: Rules of ``tdmrep.json`` that reserve a URL, by URL.
        error: Reason why there is no capture.
        capture: What is stored of the page; set last.
        document: The last main document.
        charset: Encoding in which the browser read the document, in lower case.
        metas: Name and content of each ``<meta>`` with a description or an opt-out in the live DOM.
        elements: DOM elements on the first screen.
        overlays: Rules by which overlays were hidden.
        screenshot: PNG of 720 x 1280 px.
        picture: The screenshot, decoded.
        ink: Shares of the picture and of its middle that are not empty.
        settled: Whether the page was complete and came to rest.
    """

    row: CaptureRow
    hosts: set[str] = field(default_factory=set)
    tdm_file: dict[str, str] = field(default_factory=dict)
    error: PageError | None = None
    capture: Capture | None = None
    document: Document = _NOTHING
    charset: str = ""
    metas: list[tuple[str, str]] = field(default_factory=list)
    elements: list[Element] = field(default_factory=list)
    overlays: list[str] = field(default_factory=list)
    screenshot: bytes = b""
    picture: Image.Image = field(default_factory=Image.Image)
    ink: tuple[float, float] = (0.0, 0.0)
    settled: bool = False

    def note(self, **columns: Any) -> None:
        """Set columns of the row."""
        self.row = replace(self.row, **columns)

    def fail(self, error: PageError) -> None:
        """Make the row that of a page without a capture."""
        self.error = error
        status = "refused" if error.code in REFUSED else "failed"
        message = error.message[:_MESSAGE] or None
        self.note(status=status, error=error.code, error_message=message)
