"""CPU seconds of ``--help`` of every command: what a user waits for before any work is done.

python benchmarks/startup.py --repeat 5
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from typer.main import get_command

PROGRAMS = {
    "now-builder": "now_builder.cli",
    "pc2-baseline": "pc2_baseline.cli",
    "now-leaderboard": "leaderboard.cli",
}
MOST = 0.35


def words(command: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words that call a command, and each of those below it."""
    yield before
    for name, below in getattr(command, "commands", {}).items():
        yield from words(below, (*before, name))


def cpu_seconds(code: str, arguments: tuple[str, ...]) -> float:
    """Return user and system time of a Python process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-c", code, *arguments]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    print(f"median of {repeat}; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    plain = statistics.median(cpu_seconds("import typer", ()) for _ in range(repeat))
    print(f"{plain:7.3f} s  import typer")
    found: dict[str, float] = {}
    for program, module in PROGRAMS.items():
        code = f"from {module} import main; main()"
        for line in words(get_command(import_module(module).app)):
            taken = [cpu_seconds(code, (*line, "--help")) for _ in range(repeat)]
            name = " ".join((program, *line))
            found[name] = statistics.median(taken)
            print(f"{found[name]:7.3f} s  {name}", flush=True)
    slowest = max(found, key=found.__getitem__)
    print(f"slowest: {slowest}, {found[slowest]:.3f} s; at most {MOST} s are wanted on idle cores")


if __name__ == "__main__":
    main()
