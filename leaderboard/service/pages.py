"""Pages of a live store, read and rendered once for each state."""

import fnmatch
import os
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from leaderboard.board.board_cache import BoardCache
from leaderboard.site.pages import Site
from leaderboard.store.dataset import read_reports
from leaderboard.store.entries import PRIVATE, RESULTS, Entry, read_entry, read_result
from leaderboard.store.proof import key_of, prove
from leaderboard.store.signatures import SIGNATURES, read_chain

Rendered = tuple[bytes, str]
# File systems' timestamps are coarse: a second change of a folder may not alter its time.
_SETTLED_SECONDS = 0.1
NAME_LENGTH = 12
_PAGES = 128


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state of the store.

    Attributes:
        key: name of the judge's key; None without one.
    """

    version: tuple[int, ...]
    entries: dict[str, Entry]
    key: str | None = None


class Pages:
    """Pages and entries of a store that other processes may write to."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._rendering = threading.Lock()
        self._snapshot = Snapshot((), {})
        self._site: tuple[Snapshot, Site] | None = None
        self._cache = BoardCache()
        self._page = lru_cache(_PAGES)(_render)
        self._raw: dict[str, Entry] = {}
        self._said: dict[str, tuple[str, ...]] = {}

    def get(self, path: str) -> Rendered | None:
        """Return a page's bytes and media type; None if there is no such page."""
        return self._page(self.state()[1], path)

    def state(self) -> tuple[Snapshot, Site]:
        """Return the store's state and its site."""
        snapshot = self.snapshot()
        with self._rendering:
            if self._site is None or self._site[0] is not snapshot:
                if self._site is not None and self._site[0].entries.keys() - snapshot.entries:
                    self._cache = BoardCache()  # forget the entries that are gone
                self._page.cache_clear()
                today, reports = datetime.now(UTC).date(), read_reports(self._store)
                entries = snapshot.entries.values()
                site = Site(entries, today, reports, snapshot.key, cache=self._cache)
                self._site = snapshot, site
            return self._site

    def snapshot(self) -> Snapshot:
        """Return the store's state, read again if it has changed."""
        with self._lock:
            version = self._version()
            if self._snapshot.version != version:
                self._snapshot = self._read(version)
            return self._snapshot

    def _version(self) -> tuple[int, ...]:
        """Identify a state by the folders' modification times: files are renamed into them."""
        folders = [path for path in self._store.glob("[a-z]*/") if path.name != PRIVATE]
        times = sorted(folder.stat().st_mtime_ns for folder in [self._store, *folders])
        settled = time.time_ns() - times[-1] > _SETTLED_SECONDS * 1e9
        return tuple(times) if settled else (*times, time.time_ns())

    def _read(self, version: tuple[int, ...]) -> Snapshot:
        """Read the entries that are new or have new records."""
        said: dict[str, list[str]] = defaultdict(list)
        for folder in self._store.glob("[a-z]*/"):
            if folder.name not in {PRIVATE, RESULTS, SIGNATURES}:
                for file in fnmatch.filter(_names(folder), "[0-9a-f]*.json"):
                    said[file[:NAME_LENGTH]].append(f"{folder.name}/{file}")
        old, entries = self._raw, {}
        results = self._store / RESULTS
        for file in fnmatch.filter(_names(results), "[!.]*.json"):
            name = file.removesuffix(".json").rpartition("-")[2]
            now = tuple(sorted(said[name]))
            if name not in old or self._said.get(name) != now:
                entries[name] = read_entry(self._store, read_result(results / file))
                self._said[name] = now
            else:
                entries[name] = old[name]
        chain = read_chain(self._store)
        proved = prove(self._store, entries.values(), frozenset(entries.keys() & old), chain)
        self._raw = entries
        ordered = sorted(proved, key=lambda entry: entry.name)
        return Snapshot(version, {entry.name: entry for entry in ordered}, key_of(chain))


def _names(folder: Path) -> list[str]:
    """List a folder, sorted; a missing one is empty. As text: a store has thousands of files."""
    return sorted(os.listdir(folder)) if folder.is_dir() else []  # noqa: PTH208


def _render(site: Site, path: str) -> Rendered | None:
    page = site.get(path)
    return None if page is None else (page[0].encode(), page[1])
