"""Playwright's driver ends with what needs it, also when it does not answer."""

import asyncio
import gc
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from now_builder.crawl.browser import driver as module
from now_builder.crawl.browser.driver import Driver, DriverError

pytestmark = [pytest.mark.browser]


def drivers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "run-driver" in child.cmdline()]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No process is left, nor one that asyncio has not seen ending (a warning, which fails)."""
    before = drivers()
    yield
    assert drivers() == before
    gc.collect()


def test_a_driver_stops() -> None:
    async def use() -> int:
        driver = await Driver.start()
        running = len(drivers())
        await driver.stop()
        return running

    assert asyncio.run(use()) == 1


def test_a_driver_that_does_not_answer_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STOP_S", 0.5)

    async def use() -> None:
        driver = await Driver.start()
        (process,) = drivers()
        process.send_signal(signal.SIGSTOP)
        await driver.stop()
        assert not process.is_running()

    asyncio.run(use())


def test_a_driver_ends_though_nobody_waits_for_it() -> None:
    async def use() -> None:
        driver = await Driver.start()
        (process,) = drivers()
        process.send_signal(signal.SIGSTOP)
        stopping = asyncio.create_task(driver.stop())
        await asyncio.sleep(0.05)
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        assert not process.is_running()

    asyncio.run(use())


def test_a_driver_killed_before_its_end_is_no_error() -> None:
    async def use() -> None:
        driver = await Driver.start()
        drivers()[0].kill()
        await driver.stop()

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


def test_a_driver_that_cannot_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAYWRIGHT_NODEJS_PATH", "/bin/false")
    with pytest.raises(DriverError):
        asyncio.run(Driver.start())
