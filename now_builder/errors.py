"""Errors that a user can mend: settings, files, crawls, trainings; and stops by a signal."""

import signal
from pathlib import Path

_LONGEST = 4000
"""Characters of a message."""


class NowError(Exception):
    """A mistake that the user can mend; its message says what was found and what was expected.

    The message is one line that can be printed and read, whatever a file or a library put into
    it: what is longer than 4,000 characters lacks its middle.
    """

    def __init__(self, message: str) -> None:
        line = "".join(map(_printable, message.strip()))
        if len(line) > _LONGEST:
            line = f"{line[: _LONGEST // 2 - 3]} […] {line[3 - _LONGEST // 2 :]}"
        super().__init__(line)


def _printable(sign: str) -> str:
    """Return a character in printable form: itself, a space, or an escape."""
    if sign.isprintable():
        return sign
    return " " if sign.isspace() else ascii(sign)[1:-1]


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


class CrawlError(NowError):
    """A crawl that cannot start or go on (no browser, disk full)."""


class TrainingError(NowError):
    """A training that cannot start or go on (no clean pair, a loss that is not finite)."""


class Stopped(KeyboardInterrupt):
    """A stop by Ctrl-C, or by a signal such as SIGTERM, with work kept.

    Args:
        kept: What is kept, as the first half of a sentence.
        number: The signal.
    """

    def __init__(self, kept: str, number: int = signal.SIGINT) -> None:
        super().__init__(kept)
        self.kept = kept
        self.number = number
