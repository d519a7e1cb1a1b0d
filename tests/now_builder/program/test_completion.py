"""A shell completes commands and their options although commands are built lazily."""

import os
import subprocess
import sys

COMPLETE = "from pc2_baseline.cli import main; main()"


def test_a_shell_completes_commands_and_options():
    words = "pc2-baseline train --se"
    done = subprocess.run(
        [sys.executable, "-c", COMPLETE],
        capture_output=True, text=True, check=False,
        env={**os.environ, "_PC2_BASELINE_COMPLETE": "complete_bash",
             "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "--set" in done.stdout.split()
