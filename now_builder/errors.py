"""A user's mistakes, and the one way in which a command reports them."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import typer


class NowError(Exception):
    """A mistake that the user can mend; its message says what was found and what was expected."""


class ConfigError(NowError):
    """A setting that is missing, unknown or out of range."""


class FormatError(NowError):
    """A file that is missing, torn or not what its format says.

    Args:
        path: The file.
        problem: What was found there and what was expected.
    """

    def __init__(self, path: Path | str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = Path(path)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a submission.

    Attributes:
        code: Stable name for machines, such as ``matrix.shape``.
        field: Where it is: a member of the zip, a field of ``submission.json``.
        found: What is there.
        expected: What should be.
        mend: How to get there, where that is not plain.
    """

    code: str
    field: str
    found: str
    expected: str
    mend: str = ""

    def __str__(self) -> str:
        """Say it in a line."""
        mend = f" ({self.mend})" if self.mend else ""
        return f"{self.field}: found {self.found}, expected {self.expected}{mend}"


class SubmissionError(NowError):
    """A submission that the evaluator refuses.

    Args:
        problems: All that was found wrong, one or more.
        name: What messages call the submission.
    """

    def __init__(self, *problems: Problem, name: str = "") -> None:
        text = "; ".join(str(problem) for problem in problems)
        super().__init__(f"{name}: {text}" if name else text)
        self.problems = problems


class Problems:
    """Collects what is wrong, so that a submitter hears of all of it at once."""

    def __init__(self) -> None:
        self.found: list[Problem] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Keep what a refusal inside says, and go on after it."""
        try:
            yield
        except SubmissionError as error:
            self.found += error.problems

    def refuse_any(self) -> None:
        """Refuse, if anything was found.

        Raises:
            SubmissionError: With all of it.
        """
        if self.found:
            raise SubmissionError(*self.found)


class CrawlError(NowError):
    """A crawl that cannot start or go on (no browser, disk full)."""


class TrainingError(NowError):
    """A training that cannot start or go on (no clean pair, a loss that is not finite)."""


def run(app: typer.Typer) -> NoReturn:
    """Run a command line; a user's mistake ends in one line and exit code 1.

    Args:
        app: The command line to run on ``sys.argv``.
    """
    try:
        app()
    except NowError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.stderr.write("stopped; run the same command again to go on\n")
        sys.exit(130)
    sys.exit(0)
