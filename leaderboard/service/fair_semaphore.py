"""A gate that lets so many threads through at a time, in the order in which they came."""

import threading
from collections import deque
from types import TracebackType


class Turns:
    """A semaphore that is fair: a lock or a pool of the libraries lets whoever runs push in.

    Args:
        places: How many may be inside at a time.
        patience: Seconds after which one who waits is sent away.
    """

    def __init__(self, places: int, patience: float) -> None:
        self._free = places
        self._patience = patience
        self._waiting: deque[threading.Lock] = deque()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            if self._free > 0:
                self._free -= 1
                return
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        if turn.acquire(timeout=self._patience):
            return
        with self._lock:
            if turn in self._waiting:
                self._waiting.remove(turn)
                raise TimeoutError(f"no turn within {self._patience:g} s")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._free += 1
