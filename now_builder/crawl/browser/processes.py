"""The processes of a crawl: Playwright's driver, and the browsers with their memory."""

import asyncio
from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from typing import Any

import psutil
from playwright.async_api import Playwright, async_playwright

_STOP_S = 10.0
"""Time for a driver to stop by itself, and for the end of one that was killed."""

_MB = 1 << 20
_GONE_S = 5.0


class DriverError(OSError):
    """Playwright's driver does not start, as a rule for lack of a library."""


class Driver:
    """A running driver and its process, which Playwright does not name."""

    def __init__(self, playwright: Playwright, processes: set[psutil.Process]) -> None:
        self.playwright = playwright
        self._processes = processes

    @classmethod
    async def start(cls) -> "Driver":
        """Start a driver; kill it if the start fails or is cancelled.

        Raises:
            DriverError: If it does not start.
        """
        before, tasks = _drivers(), asyncio.all_tasks()
        try:
            playwright = await async_playwright().start()
        except BaseException as error:
            _kill(_drivers() - before)
            await _await_playwright(asyncio.all_tasks() - tasks)
            if isinstance(error, Exception):
                raise DriverError(str(error)) from error
            raise
        return cls(playwright, _drivers() - before)

    async def stop(self) -> None:
        """Stop the driver; kill it if it does not stop, or if the wait is cancelled."""
        stopping = asyncio.ensure_future(self.playwright.stop())
        try:
            await asyncio.wait([stopping], timeout=_STOP_S)
        finally:
            if not stopping.done():
                _kill(self._processes)
                await asyncio.wait([stopping], timeout=_STOP_S)
            if stopping.done() and not stopping.cancelled():
                stopping.exception()  # retrieved, or asyncio would report it


async def _await_playwright(tasks: set[asyncio.Task[Any]]) -> None:
    """Wait for Playwright's tasks; the last one waits for the driver's process.

    If the event loop ended before, asyncio would warn of a process that nobody waited for.
    """
    own = [task for task in tasks if "playwright" in repr(task)]
    if own:
        await asyncio.wait(own, timeout=_STOP_S)


def _drivers() -> set[psutil.Process]:
    """Return the children of this process that are drivers."""
    drivers = set[psutil.Process]()
    with suppress(psutil.Error):
        for child in psutil.Process().children():
            with suppress(psutil.Error):
                if "run-driver" in child.cmdline():
                    drivers.add(child)
    return drivers


def _kill(processes: set[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.kill()


def limit_memory(roots: Collection[int], process_mb: int) -> dict[int, float]:
    """Kill processes that are too large, and return the memory of each browser, in MB.

    Mostly a process is that of one page, which then has crashed. Memory that processes share counts
    in each of them. ``roots`` are the ids of the browsers, descendants of this process.
    """
    held: dict[int, float] = defaultdict(float)
    above = dict[int, int]()
    family = list[psutil.Process]()
    with suppress(psutil.Error):
        family = psutil.Process().children(recursive=True)
    for process in family:
        with suppress(psutil.Error):
            above[process.pid] = process.ppid()
    for process in family:
        root = _root(process.pid, above, roots)
        with suppress(psutil.Error):
            if root is not None:
                megabytes = process.memory_info().rss / _MB
                if megabytes > process_mb:
                    process.kill()
                held[root] += megabytes
    return dict(held)


def _root(pid: int, above: dict[int, int], roots: Collection[int]) -> int | None:
    while pid not in roots:
        if pid not in above:
            return None
        pid = above[pid]
    return pid


def end_process(root: psutil.Process) -> None:
    """Kill a browser and its descendants, unless its id now belongs to another process."""
    with suppress(psutil.Error):
        family = [*root.children(recursive=True), root]
        for process in family:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(family, timeout=_GONE_S)
