"""Rate and time left of a crawl, from the times in its rows."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from now_builder.crawl.status import crawl_status
from now_builder.crawl.storage.folder import lock_shards
from now_builder.crawl.storage.shard_writer import OpenShard
from now_builder.errors import FormatError
from now_builder.formats.shard import CaptureRow, Planned, rows_path, write_plan

BEGUN = datetime(2026, 1, 1, tzinfo=UTC)


def visit(captures: Path, seconds: list[float], pages: int) -> None:
    """Plan a shard of some pages; the first ones were visited at these times."""
    keys = [f"00000_{place:04d}" for place in range(pages)]
    urls = [f"http://a.test/{place}" for place in range(pages)]
    plan = [Planned(key, 0, url, url, "a.test", 0) for key, url in zip(keys, urls, strict=True)]
    write_plan(captures, plan)
    shard = OpenShard(captures, 0)
    for line, at in zip(plan, seconds, strict=False):
        fetched = (BEGUN + timedelta(seconds=at)).isoformat(timespec="milliseconds")
        row = CaptureRow(line.key, line.url, line.url, line.site, "failed", "x", fetched_at=fetched)
        shard.add(row, None)


def test_rate_and_time_left_are_of_the_last_ten_minutes(tmp_path: Path) -> None:
    """One page a day ago; then 11 in 5 s, which is 2 a second; of 100 there are 88 to do: 44 s."""
    visit(tmp_path, [0.0, *(86_400 + 0.5 * place for place in reversed(range(11)))], 100)
    stopped = crawl_status(tmp_path)
    assert (stopped.pages_per_s, stopped.left_s) == (pytest.approx(2.0), None)
    stopped.running = True
    assert stopped.left_s == pytest.approx(44.0)
    assert "2.00 pages/s" in str(stopped)
    assert "time left      0:00:44" in str(stopped)
    assert "crawl          running\n" in str(stopped)


def test_the_rate_is_unknown_with_too_few_rows_and_no_time_is_left_at_the_end(
    tmp_path: Path,
) -> None:
    for place, seconds in enumerate([[], [3.0], [3.0, 3.0]]):
        captures = tmp_path / str(place)
        captures.mkdir()
        visit(captures, seconds, 4)
        with lock_shards(captures, [0]):
            status = crawl_status(captures)
        assert (status.pages_per_s, status.left_s) == (None, None)
        assert "time left      unknown" in str(status)
    visit(tmp_path, [0.0, 1.0], 2)
    assert crawl_status(tmp_path).left_s == 0.0
    assert "crawl          finished\n" in str(crawl_status(tmp_path))
    rows_path(tmp_path, 0).write_bytes(b"PAR1")
    with pytest.raises(FormatError, match=r"00000\.parquet: .*; delete 00000\.tar and 00000\."):
        crawl_status(tmp_path)
    with pytest.raises(FormatError, match=r"nowhere: no plan\.parquet in it"):
        crawl_status(tmp_path / "nowhere")


@pytest.mark.usefixtures("no_locks")
def test_without_locks_no_crawl_is_running_and_none_is_held_up(tmp_path: Path) -> None:
    visit(tmp_path, [0.0], 2)
    with lock_shards(tmp_path, [0]), lock_shards(tmp_path, [0]):
        assert not crawl_status(tmp_path).running
