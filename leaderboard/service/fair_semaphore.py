"""A semaphore that serves waiting threads in the order in which they came."""

import threading
from collections import deque


class FairSemaphore:
    """A first-in, first-out semaphore; those of ``threading`` and of connection pools are not fair.

    After ``timeout`` seconds of waiting for a permit it raises :class:`TimeoutError`.
    """

    def __init__(self, permits: int, timeout: float) -> None:
        self._free = permits
        self._timeout = timeout
        self._waiting: deque[threading.Lock] = deque()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            if self._free > 0:
                self._free -= 1
                return
            permit = threading.Lock()
            permit.acquire()
            self._waiting.append(permit)
        if permit.acquire(timeout=self._timeout):
            return
        with self._lock:
            if permit in self._waiting:
                self._waiting.remove(permit)
                raise TimeoutError(f"no permit within {self._timeout:g} s")

    def __exit__(self, *_error: object) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._free += 1
