"""Report the status of a crawl from its files, during the crawl or afterwards."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from heapq import nlargest
from pathlib import Path
from typing import Any

from now_builder.crawl.storage.folder import is_locked
from now_builder.crawl.storage.shard_writer import rows_so_far
from now_builder.formats.shard import read_columns, read_plan, rows_path

_LATEST, _RECENT = 1000, timedelta(minutes=10)
_COLUMNS = ("status", "error", "caption", "lang", "load_state", "elapsed_s", "fetched_at")


@dataclass(slots=True)
class CrawlStatus:
    """Counts of a crawl so far.

    Attributes:
        finished: Number of shards with final files.
        statuses: Number of rows by status, including unfinished shards.
        langs: Number of captured pages by language.
        captions: Number of captured pages with a description.
        partial: Number of captured pages that did not settle.
        seconds: Sum of the times of all visits.
        pages_per_s: Rate of the latest visits (at most 1,000, within ten minutes); ``None`` if
            there are too few.
    """

    pages: int
    shards: int
    finished: int
    statuses: Counter[str]
    errors: Counter[str]
    langs: Counter[str]
    captions: int
    partial: int
    seconds: float
    running: bool
    pages_per_s: float | None

    @property
    def to_do(self) -> int:
        """Number of pages without a row; duplicates get theirs when their shard is finished."""
        return self.pages - self.statuses.total()

    @property
    def left_s(self) -> float | None:
        """Remaining seconds at the current rate; ``None`` if unknown."""
        if not self.to_do:
            return 0.0
        return self.to_do / self.pages_per_s if self.running and self.pages_per_s else None

    @property
    def state(self) -> str:
        """State of the crawl in words."""
        if self.running:
            return "running"
        return "not running; run the same command again to resume" if self.to_do else "finished"

    def __str__(self) -> str:
        done = self.statuses.total()
        left = "unknown" if self.left_s is None else str(timedelta(seconds=round(self.left_s)))
        rows = [
            ("URLs", f"{self.pages}; {done} done, {self.to_do} to do"),
            ("shards", f"{self.shards}; {self.finished} finished"),
            ("crawl", self.state),
            ("rate", f"{self.pages_per_s:.2f} pages/s" if self.pages_per_s else "unknown"),
            ("time left", left if self.to_do else "none"),
            ("status", _counts(self.statuses)),
            ("errors", _counts(self.errors) if self.errors else "no page failed"),
            ("captions", f"{self.captions} of {self.statuses['ok']} pages captured"),
            ("not settled", str(self.partial)),
            ("languages", _counts(self.langs, most=8)),
            ("per page", f"{self.seconds / max(done, 1):.2f} s on average"),
        ]
        return "\n".join(f"{name:<14} {text}" for name, text in rows)


def crawl_status(captures: Path) -> CrawlStatus:
    """Count the rows of a captures folder, without changing it.

    Raises:
        FormatError: If it contains no crawl, or a finished shard is damaged.
    """
    plan = read_plan(captures)
    shards = sorted({line.shard for line in plan})
    finished, rows = 0, list[dict[str, Any]]()
    for number in shards:
        # Journal first: a crawl that finishes the shard now writes the rows before it removes it.
        shard_rows = [asdict(row) for row in rows_so_far(captures, number)]
        if rows_path(captures, number).exists():
            finished += 1
            shard_rows = read_columns(captures, number, _COLUMNS)
        rows += [{name: row[name] for name in _COLUMNS} for row in shard_rows]
    ok = [row for row in rows if row["status"] == "ok"]
    return CrawlStatus(
        pages=len(plan),
        shards=len(shards),
        finished=finished,
        statuses=Counter(row["status"] for row in rows),
        errors=Counter(row["error"] for row in rows if row["error"] is not None),
        langs=Counter(row["lang"] or "unknown" for row in ok),
        captions=sum(row["caption"] is not None for row in ok),
        partial=sum(row["load_state"] == "partial" for row in ok),
        seconds=sum((row["elapsed_s"] for row in rows), 0.0),
        running=is_locked(captures),
        pages_per_s=_rate([row["fetched_at"] for row in rows if row["fetched_at"] is not None]),
    )


def _rate(start_times: Sequence[str]) -> float | None:
    """Return the number of visits started per second, by the latest of them."""
    times = [datetime.fromisoformat(time) for time in nlargest(_LATEST, start_times)]
    recent = [time for time in times if times[0] - time <= _RECENT]
    seconds = (recent[0] - recent[-1]).total_seconds() if recent else 0.0
    return (len(recent) - 1) / seconds if seconds else None


def _counts(counts: Counter[str], most: int | None = None) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common(most)) or "none"
