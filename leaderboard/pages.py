"""The site as it stands: read and rendered once for each state of the store."""

import threading
import time
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

from leaderboard.page import render_site
from leaderboard.store import PRIVATE, RESULTS, Entry, disclose_due, read_store

Page = tuple[bytes, str]
# Clocks of file systems tick: a folder touched just now may be touched again unnoticed.
_SETTLED_SECONDS = 0.1
_MEDIA_TYPES = {"html": "text/html; charset=utf-8", "json": "application/json"}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One state of the store.

    Attributes:
        version: Differs for each state.
        entries: By name, withdrawn ones among them.
        site: Pages by path.
    """

    version: tuple[int, ...]
    entries: dict[str, Entry]
    site: dict[str, str]

    def live(self) -> list[Entry]:
        """Give the entries that are on the board."""
        return [entry for entry in self.entries.values() if entry.withdrawal is None]


class Pages:
    """Gives pages and entries of a store, which other processes may write to as well.

    Args:
        store: Folder of results.
        discloses: Whether to publish, at the first request of a day, who is behind the anonymous
            entries whose date has come.
    """

    def __init__(self, store: Path, *, discloses: bool = False) -> None:
        self._store = store
        self._disclosed: date | None = None if discloses else date.max
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None

    def get(self, path: str) -> Page | None:
        """Give a page's bytes and media type, or None."""
        text = self.snapshot().site.get(path)
        if text is None:
            return None
        return text.encode(), _MEDIA_TYPES[path.rpartition(".")[2]]

    def snapshot(self) -> Snapshot:
        """Give the store's state, read again if it has changed."""
        with self._lock:
            self._disclose(datetime.now(UTC).date())
            version = self._version()
            if self._snapshot is None or self._snapshot.version != version:
                entries = read_store(self._store) if (self._store / RESULTS).is_dir() else []
                named = {entry.name: entry for entry in entries}
                site = render_site([entry for entry in entries if entry.withdrawal is None])
                self._snapshot = Snapshot(version, named, site)
            return self._snapshot

    def _disclose(self, today: date) -> None:
        if self._disclosed is None or self._disclosed < today:
            disclose_due(self._store, today)
            self._disclosed = today

    def _version(self) -> tuple[int, ...]:
        """Tell states apart by the times of the folders: what is filed is renamed into them."""
        folders = [path for path in self._store.glob("[a-z]*/") if path.name != PRIVATE]
        times = sorted(folder.stat().st_mtime_ns for folder in [self._store, *folders])
        settled = time.time_ns() - times[-1] > _SETTLED_SECONDS * 1e9
        return tuple(times) if settled else (*times, time.time_ns())
