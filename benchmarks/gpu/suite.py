"""Part 1: the tests that are for a device, run by pytest on it."""

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

from benchmarks.gpu.machine import ROOT, Check

NAME = "test_gpu.py"
"""Of the files that hold them, beside the tests of the same package."""


def run(check: Check) -> None:
    """Run them, and write down each with its outcome.

    Raises:
        RuntimeError: If one failed, or none passed.
    """
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob(NAME))
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "junit.xml"
        command = [
            sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-W", "default",
            "-p", "no:cacheprovider", "-p", "pytest_timeout", f"--junitxml={told}",
            f"--basetemp={Path(folder) / 'tests'}", *files,
        ]  # fmt: skip
        environment = {
            **os.environ,
            "NOW_TEST_DEVICE": str(check.device),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # whatever else the machine has
        }
        done = subprocess.run(
            command, cwd=ROOT, env=environment, timeout=max(check.left_s, 1), check=False
        )
        if not told.exists():
            raise RuntimeError(f"pytest exited {done.returncode} before it ran a test")
        cases = list(ET.parse(told).getroot().iter("testcase"))  # noqa: S314 - pytest wrote it
    rows: list[list[str | float]] = [
        [_outcome(case), case.get("name", ""), float(case.get("time", 0)), _why(case)]
        for case in cases
    ]
    for kind in ("passed", "failed", "skipped"):
        check.add(f"tests {kind}", sum(row[0] == kind for row in rows), "tests")
    check.table("Tests", ["outcome", "test", "seconds", "why"], sorted(rows, key=lambda r: r[0]))
    if done.returncode or not any(row[0] == "passed" for row in rows):
        failed = [str(row[1]) for row in rows if row[0] == "failed"]
        raise RuntimeError(f"pytest exited {done.returncode}; failed: {', '.join(failed) or '-'}")


def _outcome(case: ET.Element) -> str:
    if case.find("skipped") is not None:
        return "skipped"
    broken = case.find("failure") is not None or case.find("error") is not None
    return "failed" if broken else "passed"


def _why(case: ET.Element) -> str:
    told = (case.find(kind) for kind in ("failure", "error", "skipped"))
    return next((str(one.get("message", ""))[:300] for one in told if one is not None), "")
