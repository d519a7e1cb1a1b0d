"""Requests for a page's documents, and the responses to them, from DevTools events."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from now_builder.formats.shard import Exchange


class Exchanges:
    """Exchanges of the main frame, in order; none if not to ``keep``."""

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep
        self._noted: list[tuple[str, Exchange]] = []

    def note(self, event: dict[str, Any], *, whole: bool) -> None:
        """Note a ``Fetch.requestPaused`` at the response stage, its body ``whole`` or not."""
        if not self._keep:
            return
        request = event["request"]
        exchange = Exchange(
            url=request["url"].partition("#")[0],
            at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            method=request["method"],
            request=tuple(
                (name, str(value))
                for name, value in request["headers"].items()
                if name.lower() != "cookie"  # reported as it would be now, not as it was sent
            ),
            status=event["responseStatusCode"],
            reason=event.get("responseStatusText", ""),
            answer=tuple(
                (header["name"], line)
                for header in event.get("responseHeaders", ())
                for line in header["value"].split("\n")
            ),
            cut=not whole,
        )
        self._noted.append((event.get("networkId", ""), exchange))

    def chain_to(self, document: str) -> tuple[Exchange, ...]:
        """Return the exchanges that led to a loader's document, its own last."""
        places = [place for place, (name, _) in enumerate(self._noted) if name == document]
        if not places:
            return ()
        *before, last = (exchange for _, exchange in self._noted[: places[-1] + 1])
        return (*(replace(exchange, cut=True) for exchange in before), last)
