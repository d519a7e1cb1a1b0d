"""A shell completes commands and their options, though commands are made late."""

import os
import subprocess
import sys

import pytest

COMPLETE = "from {module}.cli import main; main()"


@pytest.mark.parametrize(
    ("program", "words", "wanted"),
    [
        ("now-builder", "now-builder simweb m", "make"),
        ("pc2-baseline", "pc2-baseline train --se", "--seeds"),
    ],
)
def test_a_shell_completes_commands_and_options(program, words, wanted):
    module = {"now-leaderboard": "leaderboard"}.get(program, program.replace("-", "_"))
    done = subprocess.run(
        [sys.executable, "-c", COMPLETE.format(module=module)],
        capture_output=True, text=True, check=False,
        env={**os.environ, f"_{program.replace('-', '_').upper()}_COMPLETE": "complete_bash",
             "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert wanted in done.stdout.split()
