"""Programs that kill themselves at a rename, as a power cut would end them."""

import subprocess
import sys

_PRELUDE = """
import os, pathlib, signal, sys
rename, left = pathlib.Path.replace, [int(sys.argv.pop(1))]
def replace(self, target):
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(self, target)
pathlib.Path.replace = replace
"""


def run_until_rename(
    point: int, program: str, *arguments: object
) -> subprocess.CompletedProcess[bytes]:
    """Run Python text that is killed just before its ``point``-th rename, counted from 1."""
    command = [sys.executable, "-c", _PRELUDE + program, str(point), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, check=False)
