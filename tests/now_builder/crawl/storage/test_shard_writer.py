"""The journal of a shard: a kill loses the pages in flight and no others."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from now_builder.crawl.storage import shard_writer as crawl_shard
from now_builder.crawl.storage.shard_writer import (
    OpenShard,
    open_path,
    open_shards,
)
from now_builder.errors import CrawlError
from now_builder.formats.shard import (
    Capture,
    CaptureRow,
    Element,
    complete_shards,
    read_captures,
    read_rows,
)

ELEMENT = Element(
    (0.0, 1.5, 20.0, 30.0), "a", "link", "中文 😀",
    text_box=(1.0, 2.0, 3.0, 4.0), parent=-1, interactive=True,
)  # fmt: skip


def row(place: int, status: str = "ok", **fields: object) -> CaptureRow:
    key = f"00003_{place:04d}"
    return CaptureRow(
        key, f"http://a.test/{place}", f"http://a.test/{place}", "a.test", status, **fields
    )


def capture(place: int) -> Capture:
    return Capture(f"00003_{place:04d}", b"\x89PNG\r\n\x1a\n" + bytes(20) + bytes([place]),
                   b"<html>\xd6\xd0" * place, [ELEMENT])  # fmt: skip


def finish(shard: OpenShard) -> None:
    shard.finish([shard.rows[key] for key in sorted(shard.rows)])


def fill(captures: Path, places: Sequence[int]) -> OpenShard:
    shard = OpenShard(captures, 3)
    for place in places:
        failed = place % 3 == 2
        status = "failed" if failed else "ok"
        shard.add(row(place, status, caption=f"标题 {place}"), None if failed else capture(place))
    return shard


def test_a_finished_shard_contains_all_pages_and_its_folder_is_removed(tmp_path: Path) -> None:
    shard = fill(tmp_path, (4, 0, 2, 6, 1, 5, 3))
    rows = [shard.rows[key] for key in sorted(shard.rows)]
    shard.finish(rows)
    assert read_rows(tmp_path) == rows
    assert list(read_captures(tmp_path)) == [capture(place) for place in (0, 1, 3, 4, 6)]
    assert not open_shards(tmp_path)


def test_a_truncated_journal_loses_only_pages_in_flight(tmp_path: Path) -> None:
    for cut in range(1, 400, 57):
        folder = tmp_path / str(cut)
        folder.mkdir()
        fill(folder, range(5))
        journal = open_path(folder, 3) / "journal.jsonl"
        content = journal.read_bytes()
        journal.write_bytes(content[:-cut])
        again = OpenShard(folder, 3)
        last = content.splitlines(keepends=True)[-1]
        assert len(again.rows) == (4 if cut <= len(last) else 3)
        for place in range(len(again.rows), 5):
            failed = place % 3 == 2
            again.add(row(place, "failed" if failed else "ok", caption=f"标题 {place}"),
                      None if failed else capture(place))  # fmt: skip
        whole = OpenShard(folder, 3)
        finish(whole)
        assert list(read_captures(folder)) == [capture(place) for place in (0, 1, 3, 4)]


def test_members_without_a_journal_line_are_overwritten_and_a_zeroed_tail_is_removed(
    tmp_path: Path,
) -> None:
    """Some file systems leave such data after a power cut."""
    fill(tmp_path, range(2))
    for name, torn in (("members.bin", b"\0" * 5000), ("journal.jsonl", b"\0" * 300 + b"\n")):
        with (open_path(tmp_path, 3) / name).open("ab") as file:
            file.write(torn)
    OpenShard(tmp_path, 3).add(row(3), capture(3))
    finish(OpenShard(tmp_path, 3))
    assert list(read_captures(tmp_path)) == [capture(place) for place in (0, 1, 3)]


def test_a_lone_surrogate_in_a_row_does_not_prevent_finishing_a_shard(
    tmp_path: Path,
) -> None:
    OpenShard(tmp_path, 3).add(row(0, "failed", error_message="a \ud800 b 😀"), None)
    again = OpenShard(tmp_path, 3)
    again.add(row(1, "failed", caption="\udc00"), None)
    finish(again)
    first, second = read_rows(tmp_path)
    assert (first.error_message, second.caption) == ("a \ufffd b 😀", "\ufffd")


def test_a_disk_that_fills_up_within_a_line_loses_no_stored_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first page to fail leaves a partial line, and another page is added after it."""
    shard = fill(tmp_path, range(2))
    append = crawl_shard._append

    def full(path: Path, start: int | None, content: bytes) -> None:
        if path.name == "journal.jsonl":
            append(path, start, content[:40])
            raise OSError(28, "No space left on device")
        append(path, start, content)

    monkeypatch.setattr(crawl_shard, "_append", full)
    for place in (2, 3):
        with pytest.raises(CrawlError, match="No space left"):
            shard.add(row(place), capture(place))
    monkeypatch.undo()
    shard.add(row(4), capture(4))
    again = OpenShard(tmp_path, 3)
    assert {"00003_0000", "00003_0001"} <= set(again.rows)
    for place in (2, 3, 4):
        again.add(row(place), capture(place))
    finish(again)
    assert list(read_captures(tmp_path)) == [capture(place) for place in range(5)]


def test_a_reopened_shard_keeps_pages_that_did_not_fail(tmp_path: Path) -> None:
    finish(fill(tmp_path, range(6)))
    again = OpenShard.reopen(tmp_path, 3)
    assert sorted(again.rows) == ["00003_0000", "00003_0001", "00003_0003", "00003_0004"]
    assert complete_shards(tmp_path) == [3]
    for place in (2, 5):
        again.add(row(place), capture(place))
    finish(again)
    assert list(read_captures(tmp_path)) == [capture(place) for place in range(6)]
