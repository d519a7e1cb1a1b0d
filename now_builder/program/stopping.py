"""End a command that a signal or a full disk stops with one line: kept files, next command."""

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

NOTHING_TORN = "no file is left half-written"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class CommandStopped(BaseException):
    """A command that was stopped; no library takes it for its own KeyboardInterrupt.

    Args:
        line: Line to print.
        code: Exit code: 128 and the number of the signal.
    """

    def __init__(self, line: str, code: int) -> None:
        super().__init__(line)
        self.code = code


def stoppable(function: Callable[..., None], kept: str | None) -> Callable[..., None]:
    """Return a command that, when stopped, names the kept files and how to go on."""

    @wraps(function)
    def command(*arguments: Any, **options: Any) -> None:
        signals: list[int] = []
        try:
            with _sigterm_as_ctrl_c(signals):
                function(*arguments, **options)
        except KeyboardInterrupt as stop:
            told = stop.kept if isinstance(stop, Stopped) else kept
            number = stop.number if isinstance(stop, Stopped) else [*signals, signal.SIGINT][0]
            raise CommandStopped(how_to_go_on(told), 128 + number) from None
        except NowError:
            raise
        except Exception as error:
            full = isinstance(error, OSError) and error.errno in _FULL
            if not full and "No space left on device" not in str(
                error
            ):  # some say it in words only
                raise
            words = " ".join(str(error).split())
            if isinstance(error, OSError) and error.filename is not None:
                words = f"{error.filename}: cannot be written ({error.strerror})"
            raise NowError(f"{words}; when there is room: {_again(kept)}") from None

    return command


def how_to_go_on(kept: str | None) -> str:
    """Return the line for a stopped command."""
    return f"stopped: {_again(kept)}"


def _again(kept: str | None) -> str:
    command = "run the same command again"
    if "--force" in sys.argv:
        command += " without --force" if kept else ""
    return f"{kept or NOTHING_TORN}; {command}{' to go on' if kept else ''}"


@contextmanager
def _sigterm_as_ctrl_c(signals: list[int]) -> Iterator[None]:
    """Handle SIGTERM as SIGINT is handled at that moment, and note it in ``signals``.

    A process forked meanwhile, such as a worker, ends by SIGTERM as if nothing had been changed.
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
        else:  # Ctrl-C is ignored, as in the background of a script
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
