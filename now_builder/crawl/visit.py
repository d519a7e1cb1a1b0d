"""The state of a visit to a page: its row, filled in step by step, and the error that ends it."""

from dataclasses import dataclass, field, replace
from typing import Any

from PIL import Image

from now_builder.formats.shard import Capture, CaptureRow, Element

BUSY = frozenset({"http_429", "http_503"})
"""Error codes of hosts that ask to retry later."""

TRANSIENT = frozenset({"net_error", "renderer_crashed", "browser_crashed"})
"""Error codes after which a retry may succeed."""

REFUSED = frozenset(
    {"private_address", "robots", "robots_unreachable", "quota", "never", "only", "opt_out"}
)
"""Error codes of pages that were deliberately not visited."""

POSTPONED = "postponed"
"""Error code of a page that leads to a host whose delay is not over; the message is the host. The
page is visited later, so no row has this code."""

_LONGEST_MESSAGE = 500
"""Maximum number of characters of an error message in a row."""


class PageError(Exception):
    """Raised if a page, or a URL that it requests, must not or cannot be loaded.

    Attributes:
        code: Error code, such as ``timeout``.
        message: Details for a human reader.
        retry_after_s: Seconds that a busy site asks to wait.
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
        body: Content after content decoding.
        complete: Whether the body is complete.
        headers: Header values by lower-case name.
    """

    url: str
    body: bytes
    complete: bool
    headers: dict[str, list[str]]


_NO_DOCUMENT = Document("", b"", complete=False, headers={})


@dataclass(slots=True)
class Visit:
    """One visit to a page: its row and, once the page has settled, its first screen.

    Attributes:
        row: Row of the page; final at the end of the visit.
        hosts: Hosts whose delay this page has waited for.
        tdm_file: Rule of ``tdmrep.json`` that reserves a URL, by URL.
        error: Reason why there is no capture.
        capture: Content to store; set last.
        document: Last main document.
        charset: Encoding that the browser used for the document, in lower case.
        metas: Name and content of each ``<meta>`` with a description or an opt-out in the live DOM.
        elements: DOM elements on the first screen.
        overlays: Rules that hid overlays.
        screenshot: PNG of 720 x 1280 px.
        picture: Decoded screenshot.
        ink: Shares of the picture and of its middle that are not empty.
        settled: Whether the page loaded completely and stopped changing.
    """

    row: CaptureRow
    hosts: set[str] = field(default_factory=set)
    tdm_file: dict[str, str] = field(default_factory=dict)
    error: PageError | None = None
    capture: Capture | None = None
    document: Document = _NO_DOCUMENT
    charset: str = ""
    metas: list[tuple[str, str]] = field(default_factory=list)
    elements: list[Element] = field(default_factory=list)
    overlays: list[str] = field(default_factory=list)
    screenshot: bytes = b""
    picture: Image.Image = field(default_factory=Image.Image)
    ink: tuple[float, float] = (0.0, 0.0)
    settled: bool = False

    def update(self, **columns: Any) -> None:
        """Set columns of the row."""
        self.row = replace(self.row, **columns)

    def fail(self, error: PageError) -> None:
        """Turn the row into one of a page without a capture."""
        self.error = error
        status = "refused" if error.code in REFUSED else "failed"
        message = error.message[:_LONGEST_MESSAGE] or None
        self.update(status=status, error=error.code, error_message=message)
