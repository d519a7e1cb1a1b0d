"""Schedule pages in the order of the shards, with a rate limit for each public host."""

import asyncio
import heapq
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from now_builder.formats.shard import Planned


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
    """Hands out pages within the rate limit of each public host.

    Args:
        pages: Pages to visit.
        delay_s: Seconds between two visits to a public host.
        limit: Pages in flight on a public host.
        is_local: Whether a host is mapped or private, so that no rate limit applies.
    """

    def __init__(
        self,
        pages: Iterable[Planned],
        delay_s: float,
        limit: int,
        is_local: Callable[[str], bool],
    ) -> None:
        self._delay_s = delay_s
        self._limit = limit
        self.is_local = is_local
        self._hosts: dict[str, _Host] = {}
        self._ready: list[tuple[str, str]] = []
        self._waiting: list[tuple[float, str]] = []
        self._changed = asyncio.Event()
        self._left = 0
        for page in pages:
            host = self._hosts.setdefault(page.site, _Host(page.site))
            host.pages.append(page)
            self._left += 1
        for host in self._hosts.values():
            self._queue(host)

    async def take(self) -> Planned | None:
        """Return the next page as soon as one may be visited; ``None`` when all are handed out."""
        while self._left:
            self._wake()
            if self._ready:
                return self._pop()
            self._changed.clear()
            pause = self._waiting[0][0] - time.monotonic() if self._waiting else None
            try:
                await asyncio.wait_for(self._changed.wait(), pause)
            except TimeoutError:
                continue
        self._changed.set()
        return None

    def done(self, page: Planned) -> None:
        """Mark a page as finished, so that its host is free again."""
        host = self._hosts[page.site]
        host.in_flight -= 1
        self._queue(host)
        self._changed.set()

    def give_back(self, page: Planned, pause_s: float) -> None:
        """Take a page back, to be handed out again after a pause of its host, also a local one."""
        host = self._hosts[page.site]
        host.in_flight -= 1
        host.pages.appendleft(page)
        self._left += 1
        self._put_off(host, time.monotonic() + pause_s)

    def slow_down(self, site: str, delay_s: float) -> None:
        """Raise the delay between visits to what a host asks for, from the last visit on.

        A host without pages, to which one of another host leads, needs none.
        """
        host = self._hosts.get(site)
        if host is not None and delay_s > host.delay_s:
            host.delay_s = delay_s
            if not self.is_local(site):
                self._put_off(host, host.visited + delay_s)

    def _put_off(self, host: _Host, due: float) -> None:
        """Let a host wait until some time at least, also if its next page is queued already."""
        host.not_before = max(host.not_before, due)
        self._ready = [(key, name) for key, name in self._ready if name != host.name]
        self._waiting = [(at, name) for at, name in self._waiting if name != host.name]
        heapq.heapify(self._ready)
        heapq.heapify(self._waiting)
        host.queued = False
        self._queue(host)
        self._changed.set()

    def _pop(self) -> Planned:
        _, name = heapq.heappop(self._ready)
        host = self._hosts[name]
        host.queued = False
        page = host.pages.popleft()
        host.in_flight += 1
        self._left -= 1
        host.visited = time.monotonic()
        if not self.is_local(name):
            host.not_before = host.visited + max(self._delay_s, host.delay_s)
        self._queue(host)
        self._changed.set()
        return page

    def _queue(self, host: _Host) -> None:
        if host.queued or not host.pages:
            return
        if self.is_local(host.name) and host.not_before <= time.monotonic():
            host.queued = True
            heapq.heappush(self._ready, (host.pages[0].key, host.name))
        elif self.is_local(host.name) or host.in_flight < self._limit:
            host.queued = True
            heapq.heappush(self._waiting, (host.not_before, host.name))

    def _wake(self) -> None:
        now = time.monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            _, name = heapq.heappop(self._waiting)
            heapq.heappush(self._ready, (self._hosts[name].pages[0].key, name))
