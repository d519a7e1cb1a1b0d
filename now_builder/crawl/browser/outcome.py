"""What a visit to a page ends in: what was seen, or why nothing was."""

from dataclasses import dataclass, field, fields
from typing import Any

from now_builder.crawl.timings import Steps
from now_builder.formats.shard import Element, Exchange

BUSY = frozenset({"http_429", "http_503"})
"""Answers that ask to come back later."""

TRANSIENT = frozenset({"net_error", "renderer_crashed", "browser_crashed"})
"""Errors that a further attempt may mend."""

REFUSED = frozenset(
    {
        "private_address",
        "robots",
        "robots_unreachable",
        "quota",
        "never",
        "opt_out",
        "no_description",
    }
)
"""Errors that say: not visited on purpose."""


@dataclass(slots=True)
class Trail:
    """How far a visit got; filled as it goes on, so that a failure can tell.

    Attributes:
        redirects: The URLs on the way, the final one not among them.
        robots: What the decision to visit rests on.
        steps: How long each took.
    """

    redirects: list[str] = field(default_factory=list)
    final_url: str | None = None
    http_status: int | None = None
    content_type: str | None = None
    robots: str | None = None
    steps: Steps = field(default_factory=Steps)

    def columns(self) -> dict[str, Any]:
        """Give it as columns of the row."""
        known = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "steps"}
        return known | {"timings": self.steps.to_json()}


@dataclass(frozen=True, slots=True)
class Seen:
    """A page as it was captured.

    Attributes:
        html: Main document as served, content encodings undone, undecoded.
        screenshot: PNG, 720 x 1280 px.
        settled: Whether it was complete and came to rest.
        scripted: Descriptions by name in the live DOM.
        robots_tags: Values of ``X-Robots-Tag``; ``tdm``: of ``TDM-Reservation``.
        exchanges: How the main document was asked for and answered.
        overlays: Rules by which something was hidden.
    """

    html: bytes
    screenshot: bytes
    elements: list[Element]
    settled: bool
    scripted: list[str]
    robots_tags: list[str] = field(default_factory=list)
    tdm: str | None = None
    exchanges: tuple[Exchange, ...] = ()
    overlays: list[str] = field(default_factory=list)


class VisitError(Exception):
    """A visit that gave nothing.

    Args:
        error: Reason class.
        message: For people.
        retry_after_s: When the site asks to come back.
    """

    def __init__(self, error: str, message: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(f"{error}: {message}")
        self.error = error
        self.message = message
        self.retry_after_s = retry_after_s
