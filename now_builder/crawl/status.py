"""Status of a crawl, from its files alone, while it runs or after."""

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
        finished: shards that have their final files.
        statuses: rows by status, in shards finished or not.
        langs: captured pages by language.
        captions: captured pages that have a description.
        partial: captured pages that never came to rest.
        seconds: time spent on pages, all workers together.
        pages_per_s: rate of the latest visits, at most 1,000 within ten minutes; ``None`` if too
            few are known.
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
        """Pages without a row; duplicates get theirs when their shard is finished."""
        return self.pages - self.statuses.total()

    @property
    def left_s(self) -> float | None:
        """Seconds that the pages to do will take at the present rate; ``None`` if not known."""
        if not self.to_do:
            return 0.0
        return self.to_do / self.pages_per_s if self.running and self.pages_per_s else None

    @property
    def state(self) -> str:
        """Whether a command is crawling, in words."""
        if self.running:
            return "running"
        return "not running; the same command resumes it" if self.to_do else "finished"

    def __str__(self) -> str:
        done = self.statuses.total()
        left = "not known" if self.left_s is None else str(timedelta(seconds=round(self.left_s)))
        rows = [
            ("URLs", f"{self.pages}; {done} done, {self.to_do} to do"),
            ("shards", f"{self.shards}; {self.finished} finished"),
            ("crawl", self.state),
            ("rate", f"{self.pages_per_s:.2f} pages/s" if self.pages_per_s else "not known"),
            ("time left", left if self.to_do else "none"),
            ("status", _counts(self.statuses)),
            ("errors", _counts(self.errors) if self.errors else "no page failed"),
            ("captions", f"{self.captions} of {self.statuses['ok']} pages captured"),
            ("never at rest", str(self.partial)),
            ("languages", _counts(self.langs, most=8)),
            ("a page", f"{self.seconds / max(done, 1):.2f} s on average"),
        ]
        return "\n".join(f"{name:<14} {text}" for name, text in rows)


def crawl_status(captures: Path) -> CrawlStatus:
    """Count the rows of a captures folder, without changing it.

    Raises:
        FormatError: If it holds no crawl, or a finished shard is torn.
    """
    plan = read_plan(captures)
    shards = sorted({line.shard for line in plan})
    finished, rows = 0, list[dict[str, Any]]()
    for number in shards:
        # In this order: a shard finished meanwhile has its rows before its journal goes.
        found = [asdict(row) for row in rows_so_far(captures, number)]
        if rows_path(captures, number).exists():
            finished += 1
            found = read_columns(captures, number, _COLUMNS)
        rows += [{name: row[name] for name in _COLUMNS} for row in found]
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


def _rate(began: Sequence[str]) -> float | None:
    """Return the rate of the latest visits from the times at which they began."""
    times = [datetime.fromisoformat(time) for time in nlargest(_LATEST, began)]
    recent = [time for time in times if times[0] - time <= _RECENT]
    seconds = (recent[0] - recent[-1]).total_seconds() if recent else 0.0
    return (len(recent) - 1) / seconds if seconds else None


def _counts(counts: Counter[str], most: int | None = None) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common(most)) or "none"
