"""Measure the memory of the browsers, and kill a process that holds too much."""

from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress

import psutil

_MB = 1 << 20
_GONE_S = 5.0


def limit_memory(roots: Collection[int], process_mb: int) -> dict[int, float]:
    """Kill processes that are too large, and return the memory of each browser, in MB.

    Mostly a process is that of one page, which then has crashed. Memory that processes share counts
    in each of them. ``roots`` are the ids of the browsers, descendants of this process.
    """
    held: dict[int, float] = defaultdict(float)
    above = dict[int, int]()
    family = list[psutil.Process]()
    with suppress(psutil.Error):
        family = psutil.Process().children(recursive=True)
    for process in family:
        with suppress(psutil.Error):
            above[process.pid] = process.ppid()
    for process in family:
        root = _root(process.pid, above, roots)
        with suppress(psutil.Error):
            if root is not None:
                megabytes = process.memory_info().rss / _MB
                if megabytes > process_mb:
                    process.kill()
                held[root] += megabytes
    return dict(held)


def _root(pid: int, above: dict[int, int], roots: Collection[int]) -> int | None:
    while pid not in roots:
        if pid not in above:
            return None
        pid = above[pid]
    return pid


def end_process(root: psutil.Process) -> None:
    """Kill a browser and its descendants, unless its id now belongs to another process."""
    with suppress(psutil.Error):
        family = [*root.children(recursive=True), root]
        for process in family:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(family, timeout=_GONE_S)
