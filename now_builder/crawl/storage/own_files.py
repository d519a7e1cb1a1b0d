"""Recognize the files of a crawl by their whole names; start over and sweep without any other."""

import re
import shutil
from collections.abc import Collection
from pathlib import Path

from now_builder.formats.shard import plan_path, read_plan

_FINAL = r"(?:parquet|tar|warc\.gz|cdxj)"
_SHARD = re.compile(rf"(\d{{5}})\.(?:{_FINAL}|open)", re.ASCII)
_LEFT = re.compile(
    rf"(\d{{5}})\.open\.(?:new|drop)|\.(\d{{5}})\.{_FINAL}(?:\.\d+){{0,2}}\.tmp", re.ASCII
)
_PLAN_LEFT = re.compile(r"\.(?:plan\.parquet|split\.toml)(?:\.\d+){0,2}\.tmp", re.ASCII)


def shard_of(name: str) -> int | None:
    """Return the shard that has a file or folder of this name; ``None`` if none can have."""
    found = _SHARD.fullmatch(name)
    return int(found[1]) if found else None


def sweep(captures: Path, shards: Collection[int]) -> None:
    """Remove what killed runs left half-written of shards that no other process works on."""
    for path in list(captures.iterdir()):
        found = _LEFT.fullmatch(path.name)
        if found and int(found[1] or found[2]) in shards:
            _remove(path)


def sweep_plan(captures: Path) -> None:
    """Remove what killed runs left half-written of plan and split."""
    for path in list(captures.iterdir()):
        if _PLAN_LEFT.fullmatch(path.name):
            _remove(path)


def start_over(captures: Path) -> None:
    """Remove the shards that the plan lists, the rows first; then the split and, last, the plan.

    A kill on the way leaves a plan that says what else is to be removed.

    Raises:
        FormatError: If there is a plan that cannot be read.
    """
    if not plan_path(captures).exists():
        return
    shards = {line.shard for line in read_plan(captures)}
    ours = [path for path in captures.iterdir() if shard_of(path.name) in shards]
    for path in sorted(ours, key=lambda path: path.suffix != ".parquet"):
        _remove(path)
    sweep(captures, shards)
    (captures / "split.toml").unlink(missing_ok=True)
    plan_path(captures).unlink()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
