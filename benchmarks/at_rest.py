"""How many screenshots are taken too early: each page is looked at again five seconds later.

Printed: pages, how many were at rest, the share of those whose later picture has 30 % more ink (and
their URLs), and what a page takes in seconds and in CPU seconds of all processes, without the wait.

    python -m benchmarks.at_rest urls.txt --resolve '*.test:127.0.0.1:8800' --pages 500
"""

import argparse
import asyncio
import io
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from PIL import Image

from now_builder.crawl.browser import pool
from now_builder.crawl.browser.tab import Tab
from now_builder.crawl.browser.visit import VisitResult
from now_builder.crawl.run import crawl
from now_builder.crawl.settings import CrawlSettings
from now_builder.crawl.timings import read_timings
from now_builder.formats.ink import ink_shares
from now_builder.formats.shard import read_rows

LATER_S = 5.0
MORE, LEAST = 1.3, 0.005
"""A picture has more ink if it has so many times as much, and so much of the screen."""


@contextmanager
def looked_at_again(inks: dict[str, float]) -> Iterator[None]:
    """Within it, each page is looked at twice; the shares of ink are noted by final URL."""

    class Patient(Tab):
        async def _capture(self, loaded: bool, until: float) -> VisitResult | None:  # noqa: FBT001
            result = await super()._capture(loaded, until)
            if result is not None:
                with self._record.timer.step("later"):
                    await asyncio.sleep(LATER_S)
                    picture = Image.open(io.BytesIO(await self._screenshot()))
                    inks[self._record.final_url or ""] = ink_shares(picture, result.elements)[0]
            return result

    pool.Tab = Patient  # type: ignore[attr-defined]
    try:
        yield
    finally:
        pool.Tab = Tab  # type: ignore[attr-defined]


def cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("urls", type=Path)
    parser.add_argument("--resolve", action="append", default=[])
    parser.add_argument("--pages", type=int, default=500)
    parser.add_argument("--concurrency", type=int, default=6)
    parser.add_argument(
        "--once", action="store_true", help="time the pages only, do not look again"
    )
    options = parser.parse_args()
    with options.urls.open(encoding="utf-8") as lines, tempfile.TemporaryDirectory() as name:
        chosen = Path(name, "urls.txt")
        chosen.write_text("".join(islice(lines, options.pages)), encoding="utf-8")
        settings = CrawlSettings(
            allow_private=True, resolve=options.resolve, concurrency=options.concurrency
        )
        inks: dict[str, float] = {}
        begun, used = time.monotonic(), cpu_s()
        if options.once:
            crawl(chosen, Path(name, "captures"), settings)
        else:
            with looked_at_again(inks):
                crawl(chosen, Path(name, "captures"), settings)
        wall, used = time.monotonic() - begun, cpu_s() - used
        rows = [row for row in read_rows(Path(name, "captures")) if row.status == "ok"]
    seconds = [row.elapsed_s - read_timings(row.timings).get("later", 0.0) for row in rows]
    early = [
        row
        for row in rows
        if (later := inks.get(row.final_url or "", 0.0)) > MORE * (row.ink or 0.0)
        and later - (row.ink or 0.0) > LEAST
    ]
    settled = sum(row.load_state == "settled" for row in rows)
    print(f"pages {len(rows)}, settled {settled}, taken too early {len(early)}", end=" ")
    print(f"({100 * len(early) / len(rows):.2f} %)")
    print(
        f"seconds a page {statistics.mean(seconds):.3f} (median {statistics.median(seconds):.3f})"
    )
    print(f"CPU seconds a page {used / len(rows):.3f}, seconds in all {wall:.1f}")
    for row in early:
        print(row.url, row.load_state, row.ink, inks[row.final_url or ""])


if __name__ == "__main__":
    main()
