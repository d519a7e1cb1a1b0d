"""Print one line when a signal or a full disk stops a command: kept files and the next command."""

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FrameType
from typing import Any

from now_builder.errors import NowError, Stopped

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class CommandStopped(BaseException):
    """A stopped command; not a KeyboardInterrupt, which libraries handle in their own way.

    Args:
        line: Line to print.
        code: Exit code: 128 plus the number of the signal.
    """

    def __init__(self, line: str, code: int) -> None:
        super().__init__(line)
        self.code = code


def stoppable(function: Callable[..., None], kept: str | None) -> Callable[..., None]:
    """Return a command that, if stopped, names the kept files and the command that resumes it."""

    @wraps(function)
    def command(*arguments: Any, **options: Any) -> None:
        signals: list[int] = []
        try:
            with _sigterm_as_ctrl_c(signals):
                function(*arguments, **options)
        except KeyboardInterrupt as stop:
            work = stop.kept if isinstance(stop, Stopped) else kept
            number = stop.number if isinstance(stop, Stopped) else [*signals, signal.SIGINT][0]
            raise CommandStopped(stop_message(work), 128 + number) from None
        except NowError:
            raise
        except Exception as error:
            is_full = isinstance(error, OSError) and error.errno in _FULL
            # Some libraries raise an error of their own with the system's message.
            if not is_full and "No space left on device" not in str(error):
                raise
            problem = " ".join(str(error).split())
            if isinstance(error, OSError) and error.filename is not None:
                problem = f"{error.filename}: cannot be written ({error.strerror})"
            next_step = _next_step(kept, "free some space and run")
            raise NowError(f"{problem}; {next_step}") from None

    return command


def stop_message(kept: str | None) -> str:
    """Return the line for a stopped command."""
    return f"stopped: {_next_step(kept)}"


def _next_step(kept: str | None, run: str = "run") -> str:
    if not kept:
        return f"no file is left half-written; {run} the same command again"
    without = " without --force" if "--force" in sys.argv else ""
    return f"{kept}; {run} the same command again{without} to resume"


@contextmanager
def _sigterm_as_ctrl_c(signals: list[int]) -> Iterator[None]:
    """Handle SIGTERM like SIGINT, and append it to ``signals``.

    In a forked process, such as a worker, SIGTERM keeps its default action.
    """
    owner = os.getpid()

    def handle(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        signals.append(number)
        interrupt = signal.getsignal(signal.SIGINT)
        if callable(interrupt):
            interrupt(signal.SIGINT, frame)
        else:  # SIGINT is ignored, as for background processes of a script
            raise KeyboardInterrupt

    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
