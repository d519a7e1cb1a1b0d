"""The order of pages: shard by shard, with delays for public hosts and none for local ones."""

import asyncio
import itertools
import time
from contextlib import suppress

import pytest

from now_builder.crawl.politeness.scheduler import Scheduler
from now_builder.formats.shard import Planned


def lines(*sites: str) -> list[Planned]:
    return [
        Planned(f"00000_{place:04d}", 0, f"http://{site}/{place}", f"http://{site}/{place}", site)
        for place, site in enumerate(sites)
    ]


def visit_all(scheduler: Scheduler, workers: int, visit_s: float) -> list[tuple[float, str]]:
    begun: list[tuple[float, str]] = []

    async def work() -> None:
        while (line := await scheduler.take()) is not None:
            begun.append((time.monotonic(), line.key))
            await asyncio.sleep(visit_s)
            scheduler.done(line)

    async def run() -> None:
        async with asyncio.timeout(20):
            await asyncio.gather(*(work() for _ in range(workers)))

    asyncio.run(run())
    return begun


def test_pages_of_a_local_host_are_visited_by_all_workers_in_the_order_of_keys() -> None:
    scheduler = Scheduler(lines(*["a.test"] * 12), 5.0, lambda _: True)
    scheduler.slow_down("a.test", 5.0)
    begun = visit_all(scheduler, 4, 0.02)
    assert [key for _, key in begun] == [line.key for line in lines(*["a.test"] * 12)]
    assert begun[-1][0] - begun[0][0] < 1


def test_a_public_host_is_visited_with_delays_and_one_page_at_a_time() -> None:
    begun = sorted(visit_all(Scheduler(lines(*["a.org"] * 4), 0.0, lambda _: False), 4, 0.1))
    assert all(later[0] - at[0] >= 0.09 for at, later in itertools.pairwise(begun))
    scheduler = Scheduler(lines("a.org", "a.org", "a.org", "b.org"), 0.2, lambda _: False)
    begun = visit_all(scheduler, 3, 0.01)
    times = [at for at, key in sorted(begun, key=lambda pair: pair[1])]
    assert times[1] - times[0] >= 0.19
    assert times[2] - times[1] >= 0.19
    assert times[3] - times[0] < 0.1  # another host does not wait


def test_a_crawl_delay_learned_at_the_first_page_counts_from_that_page_on() -> None:
    """robots.txt is read when a host's first page is visited; the second may be queued by then."""
    scheduler = Scheduler(lines("a.org", "a.org", "a.org"), 0.01, lambda _: False)

    async def run() -> list[float]:
        times = []
        while (line := await scheduler.take()) is not None:
            times.append(time.monotonic())
            await asyncio.sleep(0.03)
            scheduler.slow_down(line.site, 0.3)
            scheduler.done(line)
        return times

    times = asyncio.run(run())
    assert all(later - earlier >= 0.29 for earlier, later in itertools.pairwise(times))


@pytest.mark.parametrize(
    ("other", "busy", "order"), [("b.test", None, [2, 0, 1]), ("busy.test", "busy.test", [1, 0, 2])]
)
def test_a_page_that_is_given_back_comes_again_after_the_pause_of_its_host_or_a_busy_one(
    other: str, busy: str | None, order: list[int]
) -> None:
    scheduler = Scheduler(lines("a.test", "a.test", other), 0.0, lambda _: True)

    async def run() -> list[tuple[str, float]]:
        first = await scheduler.take()
        assert first is not None
        started = time.monotonic()
        scheduler.give_back(first, 0.4, busy)
        taken = []
        while (line := await scheduler.take()) is not None:
            taken.append((line.key, time.monotonic() - started))
            scheduler.done(line)
        return taken

    taken = asyncio.run(run())
    assert [key for key, _ in taken] == [f"00000_{place:04d}" for place in order]
    assert taken[0][1] < 0.3
    assert 0.4 <= taken[1][1] < 2


def test_a_page_that_is_given_back_takes_part_in_the_limit_once() -> None:
    scheduler = Scheduler(lines(*["a.org"] * 6), 0.0, lambda _: False)

    async def run() -> int:
        page = await scheduler.take()
        assert page is not None
        scheduler.give_back(page, 0.0)
        begun = 0
        with suppress(TimeoutError):
            while await asyncio.wait_for(scheduler.take(), 0.2) is not None:
                begun += 1
        return begun

    assert asyncio.run(run()) == 1


def test_a_page_that_leads_to_another_host_is_a_visit_there() -> None:
    scheduler = Scheduler(lines("a.org", "b.org", "b.org"), 0.3, lambda _: False)

    async def run() -> list[float]:
        first, second = await scheduler.take(), await scheduler.take()
        assert first is not None
        assert second is not None
        times = [time.monotonic()]
        scheduler.done(second)
        pause_s = scheduler.turn(first, "b.org")
        assert pause_s is not None
        assert 0.2 < pause_s <= 0.3
        times.append(times[0] + pause_s)
        scheduler.done(first)
        assert await scheduler.take() is not None
        return [*times, time.monotonic()]

    times = asyncio.run(run())
    assert times[2] - times[1] >= 0.25


def test_a_page_waits_in_the_turn_of_a_host_whose_pause_is_long_and_but_once() -> None:
    """Two hosts, each with a long pause: a page that waited for both of them would never end."""
    scheduler = Scheduler(lines("a.org", "b.org", "b.org"), 0.0, lambda _: False)

    async def run() -> list[tuple[str, float]]:
        for site in ("a.org", "b.org"):
            scheduler.slow_down(site, 2.5)
        leads, second = await scheduler.take(), await scheduler.take()
        assert leads is not None
        assert second is not None
        started = time.monotonic()
        assert scheduler.turn(leads, "b.org") is None
        scheduler.give_back(leads, 0.0, "b.org")
        assert scheduler.queue_of(leads) == "b.org"
        scheduler.done(second)
        begun = []
        while (line := await scheduler.take()) is not None:
            begun.append((line.key, time.monotonic() - started))
            if line is leads:
                scheduler.slow_down("a.org", 99.0)
                assert scheduler.turn(line, "a.org") is not None
            scheduler.done(line)
        return begun

    begun = asyncio.run(run())
    assert [key for key, _ in begun] == ["00000_0000", "00000_0002"]
    assert begun[0][1] >= 2.4
    assert begun[1][1] >= 4.9
