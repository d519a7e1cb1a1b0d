"""A user's mistakes, and the one way in which a command reports them."""

import sys
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


class SubmissionError(NowError):
    """A submission that the evaluator refuses."""


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
