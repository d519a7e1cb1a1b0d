"""Manage the processes of a crawl: Playwright's driver and the browsers."""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any

import psutil
from playwright.async_api import Playwright, async_playwright

_STOP_S = 10.0
"""Timeout in seconds for a driver to stop, and for its end after it was killed."""

_MB = 1 << 20
_GONE_S = 5.0


class DriverError(OSError):
    """Playwright's driver does not start, usually because a library is missing."""


class Driver:
    """A running driver and its process, which Playwright does not expose."""

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
        """Stop the driver; kill it if it does not stop in time, or if this is cancelled."""
        stopping = asyncio.ensure_future(self.playwright.stop())
        try:
            await asyncio.wait([stopping], timeout=_STOP_S)
        finally:
            if not stopping.done():
                _kill(self._processes)
                await asyncio.wait([stopping], timeout=_STOP_S)
            if stopping.done() and not stopping.cancelled():
                stopping.exception()  # mark it as retrieved, or asyncio would report it


async def _await_playwright(tasks: set[asyncio.Task[Any]]) -> None:
    """Wait for Playwright's tasks; the last one waits for the driver's process.

    If the event loop ended earlier, asyncio would warn about that process.
    """
    pending = [task for task in tasks if "playwright" in repr(task)]
    if pending:
        await asyncio.wait(pending, timeout=_STOP_S)


def _drivers() -> set[psutil.Process]:
    """Return the drivers among the children of this process."""
    drivers = set[psutil.Process]()
    with suppress(psutil.Error):
        for child in psutil.Process().children():
            with suppress(psutil.Error):
                if "run-driver" in child.cmdline():
                    drivers.add(child)
    return drivers


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.kill()


def limit_memory(browsers: Collection[int], process_mb: int) -> dict[int, float]:
    """Kill descendants that use too much memory; return the memory of each browser in MB.

    A large process mostly belongs to one page, which then counts as crashed. Shared memory is
    counted for each process. ``browsers`` are process ids of descendants of this process.
    """
    memory_mb: dict[int, float] = defaultdict(float)
    browser_of: dict[int, int | None] = {pid: pid for pid in browsers}
    descendants = list[psutil.Process]()
    with suppress(psutil.Error):
        descendants = psutil.Process().children(recursive=True)
    for process in descendants:  # each parent comes before its children
        with suppress(psutil.Error):
            parent = browser_of.get(process.ppid())
            if (browser := browser_of.setdefault(process.pid, parent)) is not None:
                megabytes = process.memory_info().rss / _MB
                if megabytes > process_mb:
                    process.kill()
                memory_mb[browser] += megabytes
    return dict(memory_mb)


def end_process(root: psutil.Process) -> None:
    """Kill a browser and its descendants, unless another process has its id by now."""
    with suppress(psutil.Error):
        processes = [*root.children(recursive=True), root]
        _kill(processes)
        psutil.wait_procs(processes, timeout=_GONE_S)
