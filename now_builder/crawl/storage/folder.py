"""Lock shards of a captures folder, and remove files that the crawl has written there."""

import fcntl
import re
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from now_builder.errors import CrawlError
from now_builder.formats.io import locking
from now_builder.formats.shard import plan_path, read_plan

ALL_SHARDS = range(1 << 20)
"""Range that contains all shards of any plan."""

_LOCK = ".lock"
_WAIT_S = 0.2


@contextmanager
def lock_shards(folder: Path, shards: Collection[int], wait_s: float = 0.0) -> Iterator[None]:
    """Lock shards while the context is open; each shard is one byte of the folder's lock file.

    Raises:
        CrawlError: If another process still has a lock after ``wait_s`` seconds.
    """
    deadline = time.monotonic() + wait_s
    with (folder / _LOCK).open("a") as file:
        for start, count in _runs(shards):
            while True:
                try:
                    with locking(folder / _LOCK):
                        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, count, start)
                    break
                except OSError:
                    if time.monotonic() >= deadline:
                        raise CrawlError(f"{folder}: another crawl is using this folder") from None
                    time.sleep(_WAIT_S)
        yield


def is_locked(folder: Path) -> bool:
    """Return whether a process has locked any shard."""
    try:
        file = (folder / _LOCK).open("rb")
    except OSError:
        return False
    with file:
        try:
            with locking(folder / _LOCK):
                fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _runs(shards: Collection[int]) -> list[tuple[int, int]]:
    """Join consecutive numbers into pairs of first number and count."""
    runs: list[tuple[int, int]] = []
    for shard in sorted(shards):
        if runs and sum(runs[-1]) == shard:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((shard, 1))
    return runs


_FINAL = r"(?:parquet|tar)"
_SHARD = re.compile(rf"(\d{{5}})\.(?:{_FINAL}|open)", re.ASCII)
_PARTIAL = re.compile(
    rf"(\d{{5}})\.open\.(?:new|drop)|\.(\d{{5}})\.{_FINAL}(?:\.\d+){{0,2}}\.tmp", re.ASCII
)
_PARTIAL_PLAN = re.compile(r"\.(?:plan\.parquet|split\.toml)(?:\.\d+){0,2}\.tmp", re.ASCII)


def shard_of(name: str) -> int | None:
    """Return the shard of a file or folder; ``None`` for other names."""
    match = _SHARD.fullmatch(name)
    return int(match[1]) if match else None


def sweep(captures: Path, shards: Collection[int]) -> None:
    """Remove partial files of killed runs; the caller must have locked the shards."""
    for path in list(captures.iterdir()):
        match = _PARTIAL.fullmatch(path.name)
        if match and int(match[1] or match[2]) in shards:
            _remove(path)


def sweep_plan(captures: Path) -> None:
    """Remove partial files of plan and split that killed runs have left."""
    for path in list(captures.iterdir()):
        if _PARTIAL_PLAN.fullmatch(path.name):
            _remove(path)


def start_over(captures: Path) -> None:
    """Remove the shards in the plan, rows first; then the split and, last, the plan.

    If it is killed, the plan still lists the remaining shards.
    """
    if not plan_path(captures).exists():
        return
    shards = {line.shard for line in read_plan(captures)}
    paths = [path for path in captures.iterdir() if shard_of(path.name) in shards]
    for path in sorted(paths, key=lambda path: path.suffix != ".parquet"):
        _remove(path)
    sweep(captures, shards)
    (captures / "split.toml").unlink(missing_ok=True)
    plan_path(captures).unlink()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
