"""The site as it stands: read and rendered once for each state of the store."""

import threading
import time
from dataclasses import dataclass
from pathlib import Path

from leaderboard.page import render_site
from leaderboard.store import Entry, read_results

Page = tuple[bytes, str]
# Clocks of file systems tick: a folder touched just now may be touched again unnoticed.
_SETTLED_SECONDS = 0.1
_MEDIA_TYPES = {"html": "text/html; charset=utf-8", "json": "application/json"}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One state of the store.

    Attributes:
        version: Differs for each state.
        entries: By name.
        site: Pages by path.
    """

    version: tuple[int, ...]
    entries: dict[str, Entry]
    site: dict[str, str]


class Pages:
    """Gives pages and entries of a store, which other processes may write to as well.

    Args:
        store: Folder of results.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
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
            version = self._version()
            if self._snapshot is None or self._snapshot.version != version:
                entries = read_results([self._store])
                named = {entry.name: entry for entry in entries}
                self._snapshot = Snapshot(version, named, render_site(entries))
            return self._snapshot

    def _version(self) -> tuple[int, ...]:
        """Tell states apart by the times of the folders: what is filed is renamed into them."""
        folders = [self._store, *sorted(self._store.glob("[!.p]*/"))]
        times = tuple(folder.stat().st_mtime_ns for folder in folders)
        settled = time.time_ns() - max(times) > _SETTLED_SECONDS * 1e9
        return times if settled else (*times, time.time_ns())
