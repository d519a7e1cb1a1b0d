"""Schedule pages in the order of the shards, with a rate limit per public host."""

import asyncio
import heapq
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from now_builder.formats.shard import Planned

_SHORT_S = 2.0
"""Maximum seconds that a page waits within its worker; for longer pauses it is given back."""


@dataclass(slots=True)
class _Host:
    name: str
    pages: deque[Planned] = field(default_factory=deque)
    in_flight: int = 0
    visited: float = float("-inf")
    not_before: float = 0.0
    delay_s: float = 0.0
    queued: bool = False


class Scheduler:
    """Hands out pages within the rate limit of each public host, one page of a host at a time.

    Args:
        pages: Pages to visit.
        delay_s: Seconds between visits to a public host.
        is_local: Returns whether a host is mapped or private; it has no rate limit.
    """

    def __init__(
        self, pages: Iterable[Planned], delay_s: float, is_local: Callable[[str], bool]
    ) -> None:
        self._delay_s = delay_s
        self.is_local = is_local
        self._hosts: dict[str, _Host] = {}
        self._led_to: dict[str, list[str]] = {}
        self._ready: list[tuple[str, str]] = []
        self._waiting: list[tuple[float, str]] = []
        self._changed = asyncio.Event()
        self._left = 0
        for page in pages:
            self._host(page.site).pages.append(page)
            self._left += 1
        for host in self._hosts.values():
            self._queue(host)

    async def take(self) -> Planned | None:
        """Wait for a page that may be visited now and return it; ``None`` if no page is left."""
        while self._left:
            self._wake()
            if (page := self._pop()) is not None:
                return page
            self._changed.clear()
            pause = self._waiting[0][0] - time.monotonic() if self._waiting else None
            try:
                await asyncio.wait_for(self._changed.wait(), pause)
            except TimeoutError:
                continue
        self._changed.set()
        return None

    def done(self, page: Planned) -> None:
        """Mark a page as finished; its host may be visited again."""
        self._free(page)
        self._led_to.pop(page.key, None)

    def give_back(self, page: Planned, pause_s: float, site: str | None = None) -> None:
        """Queue a page again, to be handed out after a pause of a host, even a local one.

        The host is ``site``, to which the page leads, or by default the host of the page's queue.
        """
        self._free(page)
        site = site or self.queue_of(page)
        if site != self.queue_of(page):
            self._led_to.setdefault(page.key, []).append(site)
        host = self._host(site)
        host.pages.appendleft(page)
        self._left += 1
        host.not_before = max(host.not_before, time.monotonic() + pause_s)
        self._queue(host)

    def turn(self, page: Planned, site: str) -> float | None:
        """Reserve a visit to another host to which a page leads; return the seconds until then.

        Returns ``None`` if the page must be given back because the pause is too long. A page is
        given back only once for the same host.
        """
        host = self._host(site)
        now = time.monotonic()
        pause_s = max(0.0, host.not_before - now)
        if pause_s > _SHORT_S:
            if site != page.site and site not in self._led_to.get(page.key, ()):
                return None
            pause_s = _SHORT_S
        self._visit(host, now + pause_s)
        return pause_s

    def queue_of(self, page: Planned) -> str:
        """Return the host in whose queue a page is: its own, or one to which it leads."""
        return self._led_to.get(page.key, [page.site])[-1]

    def slow_down(self, site: str, delay_s: float) -> None:
        """Raise the delay between visits to a host as it asks, counted from the last visit."""
        host = self._host(site)
        if delay_s > host.delay_s:
            host.delay_s = delay_s
            if not self.is_local(site):
                host.not_before = max(host.not_before, host.visited + delay_s)

    def _host(self, site: str) -> _Host:
        if site not in self._hosts:
            self._hosts[site] = _Host(site)
        return self._hosts[site]

    def _free(self, page: Planned) -> None:
        host = self._hosts[self.queue_of(page)]
        host.in_flight -= 1
        self._queue(host)
        self._changed.set()

    def _visit(self, host: _Host, at: float) -> None:
        host.visited = max(host.visited, at)
        if not self.is_local(host.name):
            due = host.visited + max(self._delay_s, host.delay_s)
            host.not_before = max(host.not_before, due)

    def _pop(self) -> Planned | None:
        """Return a page of a ready host; ``None`` if no host is ready."""
        while self._ready:
            _, name = heapq.heappop(self._ready)
            host = self._hosts[name]
            host.queued = False
            if host.not_before > time.monotonic():  # delayed since it was queued
                self._queue(host)
                continue
            page = host.pages.popleft()
            host.in_flight += 1
            self._left -= 1
            self._visit(host, time.monotonic())
            self._queue(host)
            return page
        return None

    def _queue(self, host: _Host) -> None:
        if host.queued or not host.pages:
            return
        if self.is_local(host.name) and host.not_before <= time.monotonic():
            host.queued = True
            heapq.heappush(self._ready, (host.pages[0].key, host.name))
        elif self.is_local(host.name) or not host.in_flight:
            host.queued = True
            heapq.heappush(self._waiting, (host.not_before, host.name))
        self._changed.set()

    def _wake(self) -> None:
        now = time.monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            _, name = heapq.heappop(self._waiting)
            heapq.heappush(self._ready, (self._hosts[name].pages[0].key, name))
