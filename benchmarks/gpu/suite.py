"""Part f: the tests marked ``gpu``, run by pytest on the device."""

import os
import tempfile
from collections import Counter

import pytest

from benchmarks.gpu.machine import ROOT, Check

NAME = "test_gpu.py"
"""Name of the test files, next to the other tests of a package."""

FIRST = "test_messages_of_one_process"
"""Beginning of the name of the test that runs first: NCCL is tested nowhere else."""

SPARE_S = 10.0


class Outcomes:
    """Record each test when it ends, and stop when the part's time is over."""

    def __init__(self, check: Check) -> None:
        self.check = check
        self.count: Counter[str] = Counter(passed=0, failed=0, skipped=0)
        self.failed: list[str] = []
        self.collected = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Run the most important test first."""
        self.collected = len(session.items)
        session.items.sort(key=lambda item: not item.name.startswith(FIRST))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the outcome of a test, or of its setup if that fails."""
        if report.when == "call" or not report.passed:
            name = report.nodeid.rpartition("::")[2]
            self.count[report.outcome] += 1
            self.failed += [name] * report.failed
            why = f": {report.longreprtext.strip()[-300:]}" * (not report.passed)
            self.check.add(name, report.duration, "s", note=report.outcome + why)

    def pytest_runtest_logfinish(self) -> None:
        """Stop between two tests when little time is left."""
        if self.check.left_s < SPARE_S:
            pytest.exit("no time was left", returncode=0)


def run(check: Check) -> None:
    """Run the tests and record their outcomes.

    Raises:
        RuntimeError: If one failed, or none passed.
    """
    os.environ["NOW_TEST_DEVICE"] = str(check.device)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # plugins of the machine
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
