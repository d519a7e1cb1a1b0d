"""Keep finished shards in a local folder, or in any file system that fsspec knows."""

import hashlib
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from now_builder.crawl.storage.own_files import shard_of
from now_builder.crawl.storage.shard_writer import open_path
from now_builder.errors import ConfigError, CrawlError, FormatError
from now_builder.formats.io import user_cache
from now_builder.formats.shard import (
    complete_shards,
    members_path,
    plan_path,
    read_plan,
    rows_path,
    rows_shard,
)
from now_builder.program.missing_package import install_extra

_PLAN = ("split.toml", "plan.parquet")
_MEMBERS = (".tar", ".warc.gz", ".cdxj")
_ROWS = ".parquet"


class ShardStorage:
    """A captures folder on this machine or a network file system, in which a crawl works directly.

    Subclasses keep captures elsewhere, and copy files to and from a working folder for open shards,
    journals and locks.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def fetch_plan(self) -> None:
        """Copy plan and split into the working folder."""

    def store_plan(self) -> None:
        """Store plan and split, the plan last."""

    def names(self) -> set[str]:
        """Return the names of all files here, ours or not."""
        return {path.name for path in self.folder.iterdir()}

    def complete_shards(self) -> set[int]:
        """Return the numbers of the shards whose rows are stored."""
        return set(complete_shards(self.folder))

    def fetch_rows(self, shards: Collection[int]) -> None:
        """Copy the rows of those of the shards that are complete into the working folder."""

    def fetch_members(self, shards: Collection[int]) -> None:
        """Copy the tars and WARCs of some shards into the working folder."""

    def store(self, shards: Collection[int]) -> None:
        """Store finished shards; the rows, which make each complete, last."""

    def clear(self) -> None:
        """Delete plan, split and the plan's shards outside the working folder."""


class RemoteStorage(ShardStorage):
    """A file system that fsspec knows, such as ``s3://bucket/captures``, and a working folder.

    Open shards stay in the working folder, which is kept between runs, so that a lost machine costs
    these alone. A finished shard is copied, its rows last: one object appears whole or not at all.

    Raises:
        ConfigError: If fsspec, or its package for such URLs, is not installed.
    """

    def __init__(self, url: str, scratch: Path | None) -> None:
        import fsspec

        self.url = url.rstrip("/")
        try:
            self._files, self._root = fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise ConfigError(f"{url}: {error}; {install_extra('cluster')}") from None
        name = hashlib.sha256(self.url.encode()).hexdigest()[:16]
        super().__init__(scratch or user_cache() / name)

    def fetch_plan(self) -> None:
        """Copy plan and split into the working folder, in place of any there.

        Raises:
            CrawlError: If the working folder holds shards without a plan in the storage.
        """
        there = _PLAN[-1] in self._stored()
        if not there and any(shard_of(name) is not None for name in super().names()):
            raise CrawlError(
                f"{self.folder}: holds shards of a crawl that {self.url} has no plan of; "
                "start over with --force, or give another --scratch"
            )
        for name in _PLAN:
            if there:
                self._fetch(name)
            else:
                (self.folder / name).unlink(missing_ok=True)

    def store_plan(self) -> None:
        """Store plan and split, the plan last."""
        for name in _PLAN:
            self._store(name)

    def names(self) -> set[str]:
        """Return the names of all files here and in the storage, ours or not."""
        return super().names() | set(self._stored())

    def complete_shards(self) -> set[int]:
        """Return the numbers of the shards whose rows are stored."""
        shards = map(rows_shard, self._stored())
        return {shard for shard in shards if shard is not None}

    def fetch_rows(self, shards: Collection[int]) -> None:
        """Copy the rows of complete shards here, after storing those finished here alone."""
        self.store([shard for shard in shards if self._is_unsent(shard)])
        complete = self.complete_shards()
        for shard in shards:
            rows_path(self.folder, shard).unlink(missing_ok=True)
            if shard in complete:
                self._fetch(f"{shard:05d}{_ROWS}")

    def fetch_members(self, shards: Collection[int]) -> None:
        """Copy the tars and WARCs of some shards into the working folder."""
        names = {f"{shard:05d}{ending}" for shard in shards for ending in _MEMBERS}
        for name in sorted(names.intersection(self._stored())):
            self._fetch(name)

    def store(self, shards: Collection[int]) -> None:
        """Store finished shards, the rows last; delete the large files from the working folder."""
        for shard in shards:
            names = [f"{shard:05d}{ending}" for ending in _MEMBERS]
            names = [name for name in names if (self.folder / name).exists()]
            for name in [*names, f"{shard:05d}{_ROWS}"]:
                self._store(name)
            for name in names:
                (self.folder / name).unlink()

    def clear(self) -> None:
        """Delete from the storage the plan's shards, the rows first, and the plan last."""
        stored = self._stored()
        if _PLAN[-1] not in stored:
            return
        self.fetch_plan()
        shards = {line.shard for line in read_plan(self.folder)}
        names = [name for name in stored if shard_of(name) in shards]
        names.sort(key=lambda name: not name.endswith(_ROWS))
        for name in [*names, *(name for name in _PLAN if name in stored)]:
            with self._errors_explained():
                self._files.rm_file(f"{self._root}/{name}")

    def _is_unsent(self, shard: int) -> bool:
        """Whether a shard was finished here but not stored: its members are deleted once it is."""
        return (
            members_path(self.folder, shard).exists()
            and rows_path(self.folder, shard).exists()
            and not open_path(self.folder, shard).exists()
        )

    def _stored(self) -> list[str]:
        with self._errors_explained():
            self._files.invalidate_cache()
            names = self._files.find(self._root, maxdepth=1)  # nothing there is no error
        return [name.rpartition("/")[2] for name in names]

    def _fetch(self, name: str) -> None:
        with self._errors_explained():
            temporary = self.folder / f".{name}.{os.getpid()}.tmp"
            self._files.get_file(f"{self._root}/{name}", str(temporary))
            temporary.replace(self.folder / name)

    def _store(self, name: str) -> None:
        """Copy a file so that it appears whole: as one object, or by rename."""
        with self._errors_explained():
            path = f"{self._root}/{name}"
            if not _shows_partial_files(self._files):
                self._files.put_file(str(self.folder / name), path)
                return
            temporary = f"{self._root}/.{name}.tmp"
            self._files.makedirs(self._root, exist_ok=True)
            self._files.put_file(str(self.folder / name), temporary)
            self._files.mv(temporary, path)

    @contextmanager
    def _errors_explained(self) -> Iterator[None]:
        """Raise every error of the file system as a FormatError that names the URL."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - each file system has errors of its own
            raise FormatError(self.url, f"{type(error).__name__}: {error}") from None


def open_storage(captures: Path | str, scratch: Path | None = None) -> ShardStorage:
    """Return the storage of a captures folder, given by path or by a URL that fsspec knows."""
    if is_remote(captures):
        return RemoteStorage(str(captures), scratch)
    return ShardStorage(Path(captures))


def is_remote(captures: Path | str) -> bool:
    """Whether captures are named by a URL, not by a path."""
    return "://" in str(captures)


@contextmanager
def local_rows(captures: Path | str) -> Iterator[Path]:
    """Yield a folder with the plan and the rows of all complete shards, fetched where needed."""
    if not is_remote(captures):
        yield Path(captures)
        return
    with TemporaryDirectory() as folder:
        storage = RemoteStorage(str(captures), Path(folder))
        storage.fetch_plan()
        if not plan_path(storage.folder).exists():
            raise FormatError(captures, "holds no plan.parquet; `now-builder crawl` makes it")
        storage.fetch_rows(storage.complete_shards())
        yield storage.folder


def _shows_partial_files(files: Any) -> bool:
    """Whether a file system shows files while they are being written, as disks do."""
    protocol = files.protocol if isinstance(files.protocol, tuple) else (files.protocol,)
    return bool({"file", "local", "sftp", "ssh", "smb", "hdfs", "arrow_hdfs"} & set(protocol))
