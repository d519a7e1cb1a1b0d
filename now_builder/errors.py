"""Errors that a user can fix (settings, files, crawls, trainings), and stops by a signal."""

import signal
from pathlib import Path

_LONGEST = 4000
"""Maximum number of characters of a message."""


class NowError(Exception):
    """A mistake that the user can fix; the message says what was found and what was expected.

    The message is one printable line. Messages of more than 4,000 characters lose their middle.
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
    """A file that is missing, truncated or does not follow its format.

    Args:
        path: The file.
        problem: The problem and the expected content.
    """

    def __init__(self, path: Path | str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = Path(path)
        self.problem = problem


class CrawlError(NowError):
    """A crawl that cannot start or continue (no browser, disk full)."""


class TrainingError(NowError):
    """A training that cannot start or continue (no clean pair, a loss that is not finite)."""


class Stopped(KeyboardInterrupt):
    """A stop by Ctrl-C, or by a signal such as SIGTERM, with work kept.

    Args:
        kept: Text that says which work is kept.
        number: The signal.
    """

    def __init__(self, kept: str, number: int = signal.SIGINT) -> None:
        super().__init__(kept)
        self.kept = kept
        self.number = number
