"""Commands run in this process: torch takes seconds to import."""

import contextlib
import io
import re
import sys
from dataclasses import dataclass

import pytest

from pc2_baseline.cli import main


@dataclass
class Done:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


def run(program, name, *arguments):
    """Run a program's main function with arguments."""
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setattr(sys, "argv", [name, *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            program()
    return Done(ended.value.code, out.getvalue(), err.getvalue())


def call(*arguments):
    """Run a command of pc2-baseline."""
    return run(main, "pc2-baseline", *arguments)


def failed(done, pattern):
    """Check that a command ended in one line of error."""
    assert done.returncode == 1, (done.returncode, done.stderr)
    assert re.search(pattern, done.stderr), done.stderr
    assert done.stderr.strip().count("\n") == 0
    assert done.stdout == ""
