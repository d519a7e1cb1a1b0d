"""Where finished shards are kept: a folder here, or any place that fsspec knows."""

import hashlib
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, runtime_checkable

from now_builder.crawl.storage.shard_writer import open_path
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.shard import complete_shards, members_path, plan_path, rows_path

_PLAN = ("split.toml", "plan.parquet")
_MEMBERS = (".tar", ".warc.gz", ".cdxj")
_ROWS = ".parquet"


@runtime_checkable
class Depot(Protocol):
    """A captures folder, and how its files get into and out of the one that is worked in.

    Attributes:
        folder: The folder to work in: open shards, journals, locks.
    """

    folder: Path

    def fetch_plan(self) -> None:
        """Bring plan and split."""

    def store_plan(self) -> None:
        """Take plan and split; the plan last."""

    def complete(self) -> set[int]:
        """List the shards that are complete."""

    def fetch_rows(self, shards: Collection[int]) -> None:
        """Bring the rows of those of some shards that are complete."""

    def fetch_members(self, shards: Collection[int]) -> None:
        """Bring what rows do not hold."""

    def store(self, shards: Collection[int]) -> None:
        """Take finished shards; the rows, which make each complete, last."""

    def clear(self) -> None:
        """Drop plan, split and shards."""


class Here:
    """A folder on this machine, or one that all machines share: nothing is to be moved.

    Args:
        folder: Made where it does not exist.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def fetch_plan(self) -> None:
        """Nothing to do."""

    def store_plan(self) -> None:
        """Nothing to do."""

    def complete(self) -> set[int]:
        """List the shards whose rows exist."""
        return set(complete_shards(self.folder))

    def fetch_rows(self, shards: Collection[int]) -> None:
        """Nothing to do."""

    def fetch_members(self, shards: Collection[int]) -> None:
        """Nothing to do."""

    def store(self, shards: Collection[int]) -> None:
        """Nothing to do."""

    def clear(self) -> None:
        """Nothing to do: the folder that is worked in is the one to clear."""


class There:
    """A place that fsspec knows, such as ``s3://bucket/captures``, and a folder to work in.

    Shards in the making stay in the folder, so that a lost machine costs these alone. A finished
    one is copied, its rows last; they are one object, which appears whole or not at all.

    Args:
        url: Of the place.
        scratch: Folder to work in, kept between runs; by default one in the user's cache.
    """

    def __init__(self, url: str, scratch: Path | None) -> None:
        try:
            import fsspec  # noqa: PLC0415 - only those who store elsewhere need it
        except ImportError:
            raise ConfigError(f"{url}: needs fsspec; pip install 'noise-of-web[cluster]'") from None
        self.url = url.rstrip("/")
        try:
            self._files, self._root = fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise ConfigError(f"{url}: {error}; pip install 'noise-of-web[cluster]'") from None
        self.folder = scratch or _scratch(self.url)
        self.folder.mkdir(parents=True, exist_ok=True)

    def fetch_plan(self) -> None:
        """Bring plan and split, in place of any that are here."""
        there = self._exists(_PLAN[-1])
        for name in _PLAN:
            if there:
                self._fetch(name)
            else:
                (self.folder / name).unlink(missing_ok=True)

    def store_plan(self) -> None:
        """Take plan and split; the plan last."""
        for name in _PLAN:
            self._store(name)

    def complete(self) -> set[int]:
        """List the shards whose rows exist there."""
        with self._said():
            self._files.invalidate_cache()
            names = self._files.find(self._root, maxdepth=1)  # nothing there is no error
        stems = [name.rpartition("/")[2].removesuffix(_ROWS) for name in names]
        return {int(stem) for stem in stems if stem.isascii() and stem.isdigit()}

    def fetch_rows(self, shards: Collection[int]) -> None:
        """Bring the rows of those of some shards that are complete; first take what is unsent."""
        self.store([shard for shard in shards if self._is_unsent(shard)])
        complete = self.complete()
        for shard in shards:
            rows_path(self.folder, shard).unlink(missing_ok=True)
            if shard in complete:
                self._fetch(f"{shard:05d}{_ROWS}")

    def fetch_members(self, shards: Collection[int]) -> None:
        """Bring what rows do not hold."""
        for shard in shards:
            for ending in _MEMBERS:
                if self._exists(f"{shard:05d}{ending}"):
                    self._fetch(f"{shard:05d}{ending}")

    def store(self, shards: Collection[int]) -> None:
        """Take finished shards, the rows last, and drop here what is large."""
        for shard in shards:
            names = [f"{shard:05d}{ending}" for ending in _MEMBERS]
            names = [name for name in names if (self.folder / name).exists()]
            for name in [*names, f"{shard:05d}{_ROWS}"]:
                self._store(name)
            for name in names:
                (self.folder / name).unlink()

    def clear(self) -> None:
        """Drop plan, split and shards there, the rows first."""
        shards = self.complete()
        names = [f"{shard:05d}{_ROWS}" for shard in shards]
        names += [f"{shard:05d}{ending}" for shard in shards for ending in _MEMBERS]
        for name in [*names, *reversed(_PLAN)]:
            if self._exists(name):
                with self._said():
                    self._files.rm_file(f"{self._root}/{name}")

    def _is_unsent(self, shard: int) -> bool:
        """Whether a shard was finished here but not taken: its members go once it is."""
        return (
            members_path(self.folder, shard).exists()
            and rows_path(self.folder, shard).exists()
            and not open_path(self.folder, shard).exists()
        )

    def _exists(self, name: str) -> bool:
        with self._said():
            self._files.invalidate_cache()
            return bool(self._files.exists(f"{self._root}/{name}"))

    def _fetch(self, name: str) -> None:
        with self._said():
            temporary = self.folder / f".{name}.{os.getpid()}.tmp"
            self._files.get_file(f"{self._root}/{name}", str(temporary))
            temporary.replace(self.folder / name)

    def _store(self, name: str) -> None:
        """Copy a file under its own name at once: for a store of objects, or by rename."""
        with self._said():
            path = f"{self._root}/{name}"
            if not _is_folder(self._files):
                self._files.put_file(str(self.folder / name), path)
                return
            temporary = f"{self._root}/.{name}.tmp"
            self._files.makedirs(self._root, exist_ok=True)
            self._files.put_file(str(self.folder / name), temporary)
            self._files.mv(temporary, path)

    @contextmanager
    def _said(self) -> Iterator[None]:
        """Say where it was when the place does not answer as it should."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - each kind of place has errors of its own
            raise FormatError(self.url, f"{type(error).__name__}: {error}") from None


def depot(captures: Path | str, scratch: Path | None = None) -> Depot:
    """Give the depot of a captures folder: a path, or a URL that fsspec knows.

    Raises:
        ConfigError: If nothing here can reach such a URL.
    """
    text = str(captures)
    return There(text, scratch) if is_elsewhere(text) else Here(Path(text))


def is_elsewhere(captures: Path | str) -> bool:
    """Whether captures are named by a URL, not by a path."""
    return "://" in str(captures)


@contextmanager
def rows_of(captures: Path | str) -> Iterator[Path]:
    """Give a folder with the plan and the rows of all complete shards, wherever they are."""
    if not is_elsewhere(captures):
        yield Path(captures)
        return
    with TemporaryDirectory() as folder:
        there = There(str(captures), Path(folder))
        there.fetch_plan()
        if not plan_path(there.folder).exists():
            raise FormatError(captures, "holds no plan.parquet; `now-builder crawl` makes it")
        there.fetch_rows(there.complete())
        yield there.folder


def _is_folder(files: Any) -> bool:
    """Whether a place shows files while they are being written, as disks do."""
    protocol = files.protocol if isinstance(files.protocol, tuple) else (files.protocol,)
    return bool({"file", "local", "sftp", "ssh", "smb", "hdfs", "arrow_hdfs"} & set(protocol))


def _scratch(url: str) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "noise-of-web" / hashlib.sha256(url.encode()).hexdigest()[:16]
