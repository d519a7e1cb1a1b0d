"""The record of a visit to a page, and its result or error."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from PIL import Image

from now_builder.formats.shard import Element


@runtime_checkable
class Ask(Protocol):
    """Asks whether a page may lead to a URL."""

    async def __call__(self, url: str, *, frame: bool = False) -> None:
        """Raise a VisitError if a URL, in a ``frame`` or not, must not be requested."""


BUSY = frozenset({"http_429", "http_503"})
"""Errors of hosts that ask to come back later."""

TRANSIENT = frozenset({"net_error", "renderer_crashed", "browser_crashed"})
"""Errors that may not happen again."""

REFUSED = frozenset(
    {"private_address", "robots", "robots_unreachable", "quota", "never", "only", "opt_out"}
)
"""Errors of pages that were not visited on purpose."""


@dataclass(slots=True)
class VisitRecord:
    """Progress of a visit, which the row of a failure has, too.

    ``redirects`` lack the final URL; ``robots`` is the reason of the decision by robots.txt;
    ``hosts`` had their pauses; ``tdm_file`` has the rule of ``tdmrep.json`` that reserves a URL.
    """

    redirects: list[str] = field(default_factory=list)
    final_url: str | None = None
    http_status: int | None = None
    content_type: str | None = None
    robots: str | None = None
    hosts: set[str] = field(default_factory=set)
    tdm_file: dict[str, str] = field(default_factory=dict)

    def columns(self) -> dict[str, Any]:
        """Return the record as columns of the page's row."""
        kept = ("redirects", "final_url", "http_status", "content_type", "robots")
        return {name: getattr(self, name) for name in kept}


@dataclass(frozen=True, slots=True)
class VisitResult:
    """A page as the browser loaded it.

    Attributes:
        url: URL of the main document, as it was requested.
        html: bytes of the main document as served, content encodings undone.
        screenshot: PNG of 720 x 1280 px.
        picture: the screenshot, decoded.
        ink: shares of the picture and of its middle that are not empty.
        settled: whether the page was complete and came to rest.
        metas: name and content of each ``<meta>`` with a description or an opt-out in the live DOM.
        charset: encoding in which the browser read the document, in lower case.
        headers: values of the headers of the main document, by name in lower case.
        overlays: rules by which overlays were hidden.
    """

    url: str
    html: bytes
    screenshot: bytes
    picture: Image.Image
    ink: tuple[float, float]
    elements: list[Element]
    settled: bool
    metas: list[tuple[str, str]]
    charset: str
    headers: dict[str, list[str]]
    overlays: list[str] = field(default_factory=list)


class VisitError(Exception):
    """A visit without a result; ``error`` is its class of reasons, such as ``timeout``."""

    def __init__(self, error: str, message: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(f"{error}: {message}")
        self.error = error
        self.message = message
        self.retry_after_s = retry_after_s


def refuse(said: Mapping[str, str], obeyed: frozenset[str]) -> None:
    """Raise a VisitError if any of the opt-outs of a page, given with their places, is obeyed."""
    refusals = [f"{name}: {said[name]}" for name in sorted(said.keys() & obeyed)]
    if refusals:
        raise VisitError("opt_out", "; ".join(refusals))


class PutOff(VisitError):  # noqa: N818 - no error: the page is visited later
    """A page leads to a host that is to be left alone until its pause is over."""

    def __init__(self, site: str) -> None:
        super().__init__("put_off", f"{site} is left alone for now")
        self.site = site
