"""The results folder: one immutable JSON file per result, named by its content."""

import hashlib
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from leaderboard.evaluate import Result
from leaderboard.submission import refusing_fields
from leaderboard.untrusted import read_json
from now_builder.errors import FormatError, SubmissionError
from now_builder.formats.atomic import write_text

MAX_RESULT = 2**20

# Only one of two threads that file the same result may find it new.
_FILING = threading.Lock()


@dataclass(frozen=True, slots=True)
class Entry:
    """A result and its name.

    Attributes:
        name: The first 12 hexadecimal digits of the sha256 of its JSON text.
    """

    name: str
    result: Result


def entry_of(result: Result) -> Entry:
    """Name a result by its content."""
    return Entry(hashlib.sha256(result.to_json().encode()).hexdigest()[:12], result)


def write_result(path: Path, result: Result) -> None:
    """Write a result file atomically."""
    write_text(path, result.to_json())


def file_result(store: Path, result: Result) -> tuple[Entry, bool]:
    """Put a result into the folder.

    Returns:
        The entry, and whether it is new; the same result filed again changes nothing.
    """
    entry = entry_of(result)
    path = store / f"{result.track}-{result.split}-{entry.name}.json"
    with _FILING:
        if path.exists():
            return entry, False
        write_result(path, result)
        return entry, True


def read_result(path: Path) -> Result:
    """Read a result file.

    Raises:
        FormatError: If it is missing or not a result.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_RESULT + 1)
    except OSError as error:
        raise FormatError(path, error.strerror or "cannot be read") from None
    if len(content) > MAX_RESULT:
        raise FormatError(path, f"more than {MAX_RESULT} bytes, expected a result file")
    try:
        read_json(content, "result")
        with refusing_fields("result"):
            return Result.model_validate_json(content, strict=True)
    except SubmissionError as error:
        raise FormatError(path, str(error)) from None


def read_results(paths: Iterable[Path]) -> list[Entry]:
    """Read result files and folders of them; a result found twice is one entry.

    Returns:
        By name, so that the order of files does not matter.

    Raises:
        FormatError: If a path is missing, or a file is not a result.
    """
    entries: dict[str, Entry] = {}
    for path in paths:
        files = sorted(path.glob("[!.]*.json")) if path.is_dir() else [path]
        for file in files:
            entry = entry_of(read_result(file))
            entries[entry.name] = entry
    return [entries[name] for name in sorted(entries)]
