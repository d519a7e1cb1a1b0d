"""Playwright's driver ends with the crawl, even if it does not answer."""

import asyncio
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import psutil
import pytest

from now_builder.crawl.browser import processes as module
from now_builder.crawl.browser.processes import Driver, DriverError

pytestmark = [pytest.mark.browser]


def drivers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "run-driver" in child.cmdline()]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Check that no process is left, and that asyncio warns of none."""
    before = drivers()
    yield
    assert drivers() == before
    gc.collect()


def test_a_driver_stops() -> None:
    """It is no error if the driver was killed before."""

    async def use() -> int:
        driver = await Driver.start()
        running = len(drivers())
        await driver.stop()
        driver = await Driver.start()
        drivers()[0].kill()
        await driver.stop()
        return running

    assert asyncio.run(use()) == 1


@pytest.mark.parametrize("waits", [True, False])
def test_a_driver_that_does_not_answer_is_killed_though_nobody_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, *, waits: bool
) -> None:
    monkeypatch.setattr(module, "_STOP_S", 0.5 if waits else 10.0)

    async def use() -> None:
        driver = await Driver.start()
        (process,) = drivers()
        process.send_signal(signal.SIGSTOP)
        stopping = asyncio.create_task(driver.stop())
        if not waits:
            await asyncio.sleep(0.05)
            stopping.cancel()
        with nullcontext() if waits else pytest.raises(asyncio.CancelledError):
            await stopping
        assert not process.is_running()

    asyncio.run(use())


def test_a_driver_that_hangs_at_its_start_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = tmp_path / "node"
    node.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(100)\n")
    node.chmod(0o755)
    monkeypatch.setenv("PLAYWRIGHT_NODEJS_PATH", str(node))

    async def use() -> list[psutil.Process]:
        before = psutil.Process().children()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await Driver.start()
        await asyncio.sleep(0.2)
        return [child for child in psutil.Process().children() if child not in before]

    assert asyncio.run(use()) == []


def test_a_driver_that_cannot_start_says_so_and_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its end is noticed late, as on a busy machine, before the event loop ends."""
    monkeypatch.setenv("PLAYWRIGHT_NODEJS_PATH", "/bin/false")
    wait, seen = os.waitpid, threading.Event()

    def late(pid: int, options: int) -> tuple[int, int]:
        ended = wait(pid, options)
        time.sleep(0.3)
        seen.set()
        return ended

    monkeypatch.setattr(os, "waitpid", late)
    with pytest.raises(DriverError):
        asyncio.run(Driver.start())
    assert seen.wait(5)
    time.sleep(0.1)
    assert "is closed" not in caplog.text
