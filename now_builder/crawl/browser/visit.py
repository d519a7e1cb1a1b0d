"""The record of a visit to a page, and its result or error."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, fields
from typing import Any

from PIL import Image

from now_builder.crawl.timings import StepTimer
from now_builder.formats.shard import Element, Exchange

Ask = Callable[[str], Awaitable[None]]
"""Raises a VisitError if robots.txt disallows a URL, or its host is not to be reached."""

BUSY = frozenset({"http_429", "http_503"})
"""Answers that ask to come back later."""

TRANSIENT = frozenset({"net_error", "renderer_crashed", "browser_crashed"})
"""Errors that a further attempt may mend."""

REFUSED = frozenset(
    {"private_address", "robots", "robots_unreachable", "quota", "never", "opt_out",
     "no_description"}
)  # fmt: skip
"""Errors of pages that were not visited on purpose."""


@dataclass(slots=True)
class VisitRecord:
    """How far a visit got; filled as it goes on, so that the row of a failure has it, too.

    ``redirects`` lack the final URL; ``robots`` is the reason of the decision by robots.txt.
    """

    redirects: list[str] = field(default_factory=list)
    final_url: str | None = None
    http_status: int | None = None
    content_type: str | None = None
    robots: str | None = None
    timer: StepTimer = field(default_factory=StepTimer)

    def columns(self) -> dict[str, Any]:
        """Return the record as columns of the page's row."""
        known = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "timer"}
        return known | {"timings": self.timer.to_json()}


@dataclass(frozen=True, slots=True)
class VisitResult:
    """A page as the browser loaded it.

    Attributes:
        html: bytes of the main document as served, content encodings undone.
        screenshot: PNG of 720 x 1280 px.
        picture: the same, decoded.
        ink: shares of it and of its middle on which there is something to see.
        settled: whether the page was complete and came to rest.
        scripted: contents of ``<meta name=description>`` in the live DOM.
        charset: encoding in which the browser read the document, in lower case.
        exchanges: requests and responses that led to the main document; empty without a WARC.
        overlays: rules by which overlays were hidden.
    """

    html: bytes
    screenshot: bytes
    picture: Image.Image
    ink: tuple[float, float]
    elements: list[Element]
    settled: bool
    scripted: list[str]
    charset: str
    robots_tags: list[str] = field(default_factory=list)
    tdm: str | None = None
    exchanges: tuple[Exchange, ...] = ()
    overlays: list[str] = field(default_factory=list)


class VisitError(Exception):
    """A visit without a result, for a class of reasons such as ``timeout``."""

    def __init__(self, error: str, message: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(f"{error}: {message}")
        self.error = error
        self.message = message
        self.retry_after_s = retry_after_s
