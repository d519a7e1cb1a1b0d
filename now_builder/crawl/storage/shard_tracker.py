"""Track which pages of the shards are done and which shards can be finished."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path

from now_builder.crawl.storage.shard_writer import OpenShard, open_shards
from now_builder.formats.shard import (
    Capture,
    CaptureRow,
    Planned,
    complete_shards,
    read_columns,
    read_rows,
)

_COPIED = (
    "error", "final_url", "http_status", "charset", "charset_source", "title", "caption",
    "caption_source", "candidates", "lang", "lang_declared", "tool",
)  # fmt: skip
"""Columns that a duplicate's row copies from the first page with the same URL."""


class ShardTracker:
    """Tracks which pages are done, and finishes each shard that has the rows of all pages.

    From other shards, only the rows of repeated URLs are read.

    Attributes:
        pending: Pages to visit; with ``retry_failed``, including failed pages.
        total: Number of URLs in the shards to crawl.
    """

    def __init__(
        self, captures: Path, plan: Sequence[Planned], shards: Iterable[int], *,
        retry_failed: bool,
    ) -> None:  # fmt: skip
        self._captures = captures
        self._plan = plan
        numbers = frozenset(shards)
        self._duplicate_of = {
            key: first for key, first in find_duplicates(plan).items() if int(key[:5]) in numbers
        }
        self._lines: dict[int, list[Planned]] = defaultdict(list)
        for line in plan:
            if line.shard in numbers:
                self._lines[line.shard].append(line)
        complete = set(complete_shards(captures))
        unfinished = set(open_shards(captures)) & numbers
        to_retry = self._to_retry(complete) if retry_failed else set()
        self._shards = {
            number: OpenShard.reopen(captures, number)
            if number in complete and number not in unfinished
            else OpenShard(captures, number)
            for number in self._lines
            if number not in complete or number in unfinished | to_retry
        }
        for shard in self._shards.values() if retry_failed else ():
            for key in [key for key, row in shard.rows.items() if row.status == "failed"]:
                del shard.rows[key]
        self._firsts: dict[str, CaptureRow] = {}
        self._read_firsts(complete)
        self.pending = [
            line
            for number, shard in sorted(self._shards.items())
            for line in self._lines[number]
            if line.key not in shard.rows and line.key not in self._duplicate_of
        ]
        self._needs: dict[int, set[str]] = defaultdict(set)
        for key, first in self._duplicate_of.items():
            self._needs[int(key[:5])].add(first)
        self._left = Counter(line.shard for line in self.pending)
        self.total = sum(map(len, self._lines.values()))

    @property
    def pages(self) -> int:
        """Number of different URLs in the shards to crawl."""
        return self.total - len(self._duplicate_of)

    @property
    def kept(self) -> int:
        """Number of pages that have a row."""
        left = (
            line.shard in self._shards and line.key not in self._shards[line.shard].rows
            for line in self.pending
        )
        return self.pages - sum(left)

    def ranks(self) -> dict[str, int]:
        """Number the pages of each site in the order of the plan."""
        counters: dict[str, Iterator[int]] = defaultdict(count)
        repeated = find_duplicates(self._plan)
        firsts = (line for line in self._plan if line.key not in repeated)
        return {line.key: next(counters[line.site]) for line in firsts}

    def add(self, line: Planned, row: CaptureRow, capture: Capture | None) -> None:
        """Store the row and the capture of a page."""
        self._shards[line.shard].add(row, capture)

    def added(self, line: Planned, row: CaptureRow) -> bool:
        """Count a stored page; return whether a shard may be ready to be finished."""
        self._left[line.shard] -= 1
        if line.key in self._first_keys:
            self._firsts[line.key] = row
        return not self._left[line.shard] or line.key in self._first_keys

    def finish_ready(self) -> None:
        """Finish the shards that have the rows of all their pages."""
        ready = [
            number
            for number in self._shards
            if not self._left[number] and self._needs[number] <= self._firsts.keys()
        ]
        for number in ready:
            shard = self._shards.pop(number)
            shard.finish([self._row(shard, line) for line in self._lines[number]])

    def _to_retry(self, complete: set[int]) -> set[int]:
        """Return the finished shards with failed pages, or with duplicates of failed pages."""
        failed = set()
        for number in complete & self._lines.keys():
            rows = read_columns(self._captures, number, ("key", "status"))
            failed |= {row["key"] for row in rows if row["status"] == "failed"}
        failed |= {key for key, first in self._duplicate_of.items() if first in failed}
        return {int(key[:5]) for key in failed} & complete

    def _read_firsts(self, complete: set[int]) -> None:
        """Read the existing rows of pages whose URL is repeated."""
        self._first_keys = frozenset(self._duplicate_of.values())
        for number in {int(key[:5]) for key in self._first_keys}:
            if number in self._shards:
                rows = list(self._shards[number].rows.values())
            elif number in complete:
                rows = read_rows(self._captures, number)
            else:
                continue
            self._firsts |= {row.key: row for row in rows if row.key in self._first_keys}

    def _row(self, shard: OpenShard, line: Planned) -> CaptureRow:
        first_key = self._duplicate_of.get(line.key)
        if first_key is None:
            return shard.rows[line.key]
        first = self._firsts[first_key]
        copied = {name: getattr(first, name) for name in _COPIED}
        return CaptureRow(
            line.key, line.url, line.url_canonical, line.site, "duplicate",
            duplicate_of=first_key, **copied,
        )  # fmt: skip


def find_duplicates(plan: Iterable[Planned]) -> dict[str, str]:
    """Map the key of each repeated URL to the key of the first URL with the same canonical form."""
    first: dict[str, str] = {}
    repeated = {}
    for line in plan:
        key = first.setdefault(line.url_canonical, line.key)
        if key != line.key:
            repeated[line.key] = key
    return repeated
