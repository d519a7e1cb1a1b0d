"""The wheel with one extra alone does what the extra promises, in a bare environment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIGHT = ("none", "hub", "package", "tokenize")


@pytest.mark.release
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("extra", LIGHT)
def test_an_extra_alone_does_what_it_promises(extra):
    done = subprocess.run(
        [ROOT / "scripts" / "extras.sh", extra], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHON": sys.executable},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith(f"{extra}: does what it promises")
