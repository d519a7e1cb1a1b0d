"""Playwright's driver: the program between this one and the browsers, ended whatever happens."""

import asyncio
from contextlib import suppress
from typing import Any

import psutil
from playwright.async_api import Playwright, async_playwright

_STOP_S = 10.0
"""Time for a driver to stop by itself, and for the end of one that was killed."""


class DriverError(OSError):
    """Playwright's driver does not start: a library that it needs is not there, as a rule."""


class Driver:
    """A running driver and its process, which Playwright does not name."""

    def __init__(self, playwright: Playwright, processes: set[psutil.Process]) -> None:
        self.playwright = playwright
        self._processes = processes

    @classmethod
    async def start(cls) -> "Driver":
        """Start a driver; one that fails half-way, or is not waited for, is killed.

        Raises:
            DriverError: If it does not start.
        """
        before, tasks = _drivers(), asyncio.all_tasks()
        try:
            playwright = await async_playwright().start()
        except BaseException as error:
            _kill(_drivers() - before)
            await _end_of(asyncio.all_tasks() - tasks)
            if isinstance(error, Exception):
                raise DriverError(str(error)) from error
            raise
        return cls(playwright, _drivers() - before)

    async def stop(self) -> None:
        """Stop the driver; kill it if it does not, or if nobody has the time to wait."""
        stopping = asyncio.ensure_future(self.playwright.stop())
        try:
            await asyncio.wait([stopping], timeout=_STOP_S)
        finally:
            if not stopping.done():
                _kill(self._processes)
                await asyncio.wait([stopping], timeout=_STOP_S)
            if stopping.done() and not stopping.cancelled():
                stopping.exception()  # looked at; there is nothing left to do about it


async def _end_of(tasks: set[asyncio.Task[Any]]) -> None:
    """Wait for those of Playwright's tasks; the last one sees the end of the driver's process.

    Without that the process would be one that nobody waited for, if the event loop ends now.
    """
    own = [task for task in tasks if "playwright" in _code_of(task)]
    if own:
        await asyncio.wait(own, timeout=_STOP_S)


def _code_of(task: asyncio.Task[Any]) -> str:
    """Return the file of a task's coroutine."""
    code = getattr(task.get_coro(), "cr_code", None)
    return str(getattr(code, "co_filename", ""))


def _drivers() -> set[psutil.Process]:
    """Return the children of this process that are drivers."""
    found = set[psutil.Process]()
    with suppress(psutil.Error):
        for child in psutil.Process().children():
            with suppress(psutil.Error):
                if "run-driver" in child.cmdline():
                    found.add(child)
    return found


def _kill(processes: set[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.kill()
