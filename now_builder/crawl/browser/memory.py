"""How much memory the browsers hold; a process that holds too much is ended."""

from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress

import psutil

_MB = 1 << 20
_GONE_S = 5.0


def limit_memory(roots: Collection[int], process_mb: int) -> dict[int, float]:
    """Give the memory of each browser, in MB, after ending what is too large in it.

    What is ended is one process: that of a page in most cases, which then has crashed. Memory that
    processes share counts in each of them.

    Args:
        roots: Process ids of the browsers: children, near or far, of this process.
        process_mb: Most that one process of theirs may hold.
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
    """End a browser and all that it started, if any of it is still there.

    Args:
        root: The browser; where its id is another process's by now, nothing happens.
    """
    with suppress(psutil.Error):
        family = [*root.children(recursive=True), root]
        for process in family:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(family, timeout=_GONE_S)
