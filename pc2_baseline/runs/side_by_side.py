"""Tasks in processes of their own, some side by side; they end with the one that started them."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

_GRACE = 10.0  # seconds from SIGTERM to SIGKILL
_LOOK = 0.05

Environment = Mapping[str, str]
"""Additional environment variables of a slot, which runs one process at a time."""


@dataclass(frozen=True, slots=True)
class Task:
    """One process: its name in messages, the line on its standard input, the file of its output."""

    name: str
    message: str
    log: Path


@dataclass(frozen=True, slots=True)
class Ended:
    """A task that has ended, why it failed if it did, and counts of the tasks that are left."""

    name: str
    failure: str | None
    running: int
    waiting: int


@dataclass(slots=True)
class _Running:
    """A task that runs, and what of its log was read."""

    task: Task
    slot: Environment
    process: subprocess.Popen[bytes]
    log: TextIO
    rest: str = ""

    def new_lines(self) -> list[str]:
        """Return the lines that were added to the log since the last call."""
        *lines, self.rest = (self.rest + self.log.read()).split("\n")
        return lines


def side_by_side(
    command: Sequence[str],
    tasks: Sequence[Task],
    slots: Sequence[Environment],
    on_line: Callable[[str, str], None] | None = None,
) -> Generator[Ended]:
    """Run a command once for each task, in order, each slot one at a time; yield each that ends.

    ``on_line`` gets the name of a task and each line that is added to its log.

    When the iterator is closed, or an exception such as ``KeyboardInterrupt`` passes through it,
    all processes are ended before it goes on. If this process is killed, they end by
    :func:`end_with_parent`.
    """
    waiting, free = deque(tasks), list(slots)
    busy: dict[str, _Running] = {}
    try:
        while waiting or busy:
            while waiting and free:
                task, slot = waiting.popleft(), free.pop(0)
                process = _start(command, task, slot)
                log = task.log.open(encoding="utf-8", errors="replace")
                busy[task.name] = _Running(task, slot, process, log)
            for name, run in list(busy.items()):
                ended = run.process.poll() is not None  # before its last lines are read
                for line in run.new_lines():
                    if on_line is not None:
                        on_line(name, line)
                if ended:
                    busy.pop(name).log.close()
                    free.append(run.slot)
                    failure = _failure(run.process, run.task.log)
                    yield Ended(name, failure, len(busy), len(waiting))
            time.sleep(_LOOK)
    finally:
        for run in busy.values():
            run.log.close()
        _stop([run.process for run in busy.values()])


def end_with_parent() -> str:
    """Read this process's message, and end it as soon as the process that started it has ended.

    That closes the pipe to standard input, which no other process holds.
    """
    message = sys.stdin.buffer.readline().decode()

    def watch() -> None:
        while os.read(0, 1):  # past the buffer, whose lock would outlive the interpreter
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    return message


def peak_memory() -> int:
    """Return the largest resident size of this process so far, in bytes.

    On Linux, ``getrusage`` includes memory that the parent held before the process began.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return 1024 * int(line.split()[1])
    from resource import RUSAGE_SELF, getrusage

    return getrusage(RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _start(command: Sequence[str], task: Task, slot: Environment) -> subprocess.Popen[bytes]:
    task.log.parent.mkdir(parents=True, exist_ok=True)
    with task.log.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            # unbuffered, so that the last line of the log is the last that was printed
            env={**os.environ, "PYTHONUNBUFFERED": "1", **slot},
            start_new_session=True,  # Ctrl-C of a terminal is for this process alone
        )
    if process.stdin is not None:
        with suppress(BrokenPipeError):  # it has ended at once; its log says why
            process.stdin.write(f"{task.message}\n".encode())
            process.stdin.flush()
    return process


def _failure(process: subprocess.Popen[bytes], log: Path) -> str | None:
    """Return why a process failed: the last line that it printed, or the signal that ended it."""
    _close(process)
    if process.returncode == 0:
        return None
    if process.returncode < 0:
        why = ", perhaps out of memory" if process.returncode == -signal.SIGKILL else ""
        return f"ended by signal {-process.returncode}{why}; {log}"
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), f"exit code; {log}")
    return last.removeprefix("error: ").strip()


def _close(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with suppress(BrokenPipeError):
            process.stdin.close()


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    last = time.monotonic() + _GRACE
    for process in processes:
        try:
            process.wait(max(0.0, last - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _close(process)
