"""Part f: the tests that are for a device, run by pytest on it."""

import os
import tempfile
from collections import Counter

import pytest

from benchmarks.gpu.machine import ROOT, Check

NAME = "test_gpu.py"
"""Of the files that hold them, beside the tests of the same package."""

FIRST = "test_messages_of_one_process"
"""What nothing else here shows: NCCL."""


SPARE_S = 10.0


class Outcomes:
    """Write each test down as it comes, and stop when the part's time is over."""

    def __init__(self, check: Check) -> None:
        self.check = check
        self.count: Counter[str] = Counter(passed=0, failed=0, skipped=0)
        self.failed: list[str] = []
        self.collected = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Put what is wanted most first."""
        self.collected = len(session.items)
        session.items.sort(key=lambda item: not item.name.startswith(FIRST))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write down the outcome of a test, or of its preparation if that is not passed."""
        if report.when == "call" or not report.passed:
            name = report.nodeid.rpartition("::")[2]
            self.count[report.outcome] += 1
            self.failed += [name] * report.failed
            why = f": {report.longreprtext.strip()[-300:]}" * (not report.passed)
            self.check.add(name, report.duration, "s", note=report.outcome + why)

    def pytest_runtest_logfinish(self) -> None:
        """Stop between two tests; the next may take some seconds."""
        if self.check.left_s < SPARE_S:
            pytest.exit("no time was left", returncode=0)


def run(check: Check) -> None:
    """Run them, and write down each with its outcome.

    Raises:
        RuntimeError: If one failed, or none passed.
    """
    os.environ["NOW_TEST_DEVICE"] = str(check.device)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # whatever else the machine has
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob(NAME))
    outcomes = Outcomes(check)
    with tempfile.TemporaryDirectory() as folder:
        status = pytest.main([
            "-q", "-m", "gpu", "-W", "default", "-p", "no:cacheprovider", "-p", "pytest_timeout",
            f"--basetemp={folder}/tests", *files,
        ], plugins=[outcomes])  # fmt: skip
    for outcome, count in outcomes.count.items():
        check.add(f"tests {outcome}", count, "tests")
    left = outcomes.collected - outcomes.count.total()
    check.add("tests not run", left, "tests", note="no time was left" if left else "")
    if status or not outcomes.count["passed"]:
        named = ", ".join(outcomes.failed) or "-"
        raise RuntimeError(f"pytest exited {int(status)}; failed: {named}")
