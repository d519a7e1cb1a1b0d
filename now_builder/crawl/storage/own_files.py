"""Recognize the files of a crawl by their whole names; remove these and no others."""

import re
import shutil
from collections.abc import Collection
from pathlib import Path

from now_builder.formats.shard import plan_path, read_plan

_FINAL = r"(?:parquet|tar)"
_SHARD = re.compile(rf"(\d{{5}})\.(?:{_FINAL}|open)", re.ASCII)
_LEFT = re.compile(
    rf"(\d{{5}})\.open\.(?:new|drop)|\.(\d{{5}})\.{_FINAL}(?:\.\d+){{0,2}}\.tmp", re.ASCII
)
_PLAN_LEFT = re.compile(r"\.(?:plan\.parquet|split\.toml)(?:\.\d+){0,2}\.tmp", re.ASCII)


def shard_of(name: str) -> int | None:
    """Return the shard of a file or folder; ``None`` if it is of no shard."""
    match = _SHARD.fullmatch(name)
    return int(match[1]) if match else None


def sweep(captures: Path, shards: Collection[int]) -> None:
    """Remove half-written files of killed runs, of shards that no other process works on."""
    for path in list(captures.iterdir()):
        match = _LEFT.fullmatch(path.name)
        if match and int(match[1] or match[2]) in shards:
            _remove(path)


def sweep_plan(captures: Path) -> None:
    """Remove half-written files of plan and split of killed runs."""
    for path in list(captures.iterdir()):
        if _PLAN_LEFT.fullmatch(path.name):
            _remove(path)


def start_over(captures: Path) -> None:
    """Remove the shards that the plan lists, the rows first; then the split and, last, the plan.

    A kill on the way leaves the plan, which lists the rest.
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
