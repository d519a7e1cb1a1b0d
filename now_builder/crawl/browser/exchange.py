"""How the browser asked for a page's documents, and how it was answered."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from now_builder.formats.shard import Exchange


class Exchanges:
    """The documents that the main frame was answered with, in order."""

    def __init__(self) -> None:
        self._told: list[tuple[str, Exchange]] = []

    def note(self, event: dict[str, Any], *, whole: bool) -> None:
        """Take in what the browser tells of an answer.

        Args:
            event: ``Fetch.requestPaused`` at the stage of the response.
            whole: Whether its body was read to the end.
        """
        request = event["request"]
        exchange = Exchange(
            url=request["url"].partition("#")[0],
            at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            method=request["method"],
            request=tuple(
                (name, str(value))
                for name, value in request["headers"].items()
                if name.lower() != "cookie"  # told as it would be now, not as it was sent
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
        self._told.append((event.get("networkId", ""), exchange))

    def way_to(self, document: str) -> tuple[Exchange, ...]:
        """Give what led to a document, itself last; the bodies on the way are not kept.

        Args:
            document: The id of its request, which is its loader's.
        """
        places = [place for place, (name, _) in enumerate(self._told) if name == document]
        if not places:
            return ()
        *before, last = (exchange for _, exchange in self._told[: places[-1] + 1])
        return (*(replace(exchange, cut=True) for exchange in before), last)
