"""The store: a folder of immutable results and of what is said about them, fit for git."""

import hashlib
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AwareDatetime, Field

from leaderboard.core.errors import SubmissionError
from leaderboard.scoring.result import Points, Result
from leaderboard.submission.archive import Description, Line, Links, Name, Prose, refusing_fields
from leaderboard.submission.untrusted import read_json
from now_builder.config import Sha256, Strict
from now_builder.errors import FormatError
from now_builder.formats.io import write_text

MAX_RECORD = 8 * 2**20
RESULTS, PRIVATE = "results", "private"
Record = TypeVar("Record", bound=Strict)

# Only one of two threads that file the same result may find it new.
_FILING = threading.Lock()

EntryName = Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
Evidence = Literal["scored", "reproduced", "blind"]


class Filing(Strict):
    """``filings/<name>.json``: how a result came onto the board.

    Attributes:
        submitter: Handle; None while the entry is anonymous.
        submitted_at: UTC.
        anonymous_until: The day from which authors and submitter are shown.
    """

    format: Literal["now-filing/1"] = "now-filing/1"
    name: EntryName
    submitter: Name | None = None
    submitted_at: AwareDatetime
    anonymous_until: date | None = None


class Withdrawal(Strict):
    """``withdrawals/<name>.json``: a tombstone; the result stays, off the board."""

    format: Literal["now-withdrawal/1"] = "now-withdrawal/1"
    name: EntryName
    withdrawn_at: AwareDatetime
    reason: Prose = ""


class Reproduction(Strict):
    """``reproductions/<name>-<sha256>.json``: somebody else trained it again.

    Attributes:
        by: Who.
        rsum: Of the new run's submission.
        payload_sha256: Of that submission.
        code_commit: Of the code.
        config_sha256: Of the resolved settings of the run.
    """

    format: Literal["now-reproduction/1"] = "now-reproduction/1"
    name: EntryName
    by: Name
    reproduced_at: AwareDatetime
    rsum: Points
    payload_sha256: Sha256
    code_commit: Annotated[str, Field(pattern=r"^[0-9a-f]{7,64}$")] | None = None
    config_sha256: Sha256 | None = None


class Disclosure(Strict):
    """``disclosures/<name>.json``: what an anonymous entry kept to itself until its date.

    Before that date it lies in ``private/``, which git leaves out.
    """

    format: Literal["now-disclosure/1"] = "now-disclosure/1"
    name: EntryName
    submitter: Name | None
    authors: tuple[Name, ...] = ()
    affiliation: Line | None = None
    links: Links = Links()


@dataclass(frozen=True, slots=True)
class Entry:
    """A result and what is said about it.

    Attributes:
        name: The first 12 hexadecimal digits of the sha256 of its JSON text.
        result: As it is filed.
        filing: None of a result file that no board took.
        withdrawal: Why it is off the board; None where it is on it.
        reproductions: By others.
        disclosure: What an anonymous result leaves out, once it may be told.
    """

    name: str
    result: Result
    filing: Filing | None = None
    withdrawal: Withdrawal | None = None
    reproductions: tuple[Reproduction, ...] = ()
    disclosure: Disclosure | None = None

    @property
    def evidence(self) -> Evidence:
        """How far it can be trusted: a file was scored, run again, or judged blind."""
        if self.result.release.origin == "blind":
            return "blind"
        return "reproduced" if self.reproductions else "scored"

    @property
    def anonymous(self) -> bool:
        """Whether its authors are still hidden."""
        hidden = self.filing is not None and self.filing.anonymous_until is not None
        return hidden and self.disclosure is None

    @property
    def shown(self) -> Result:
        """The result with what has been disclosed since."""
        if self.disclosure is None:
            return self.result
        told = {name: getattr(self.disclosure, name) for name in HIDDEN}
        return self.result.model_copy(update=told)


HIDDEN = ("authors", "affiliation", "links")
"""Fields of a description that an anonymous result leaves out."""


def anonymised(result: Result) -> Result:
    """Leave out who did it."""
    blank = Description(method=result.method)
    return result.model_copy(update={name: getattr(blank, name) for name in HIDDEN})


def entry_of(result: Result) -> Entry:
    """Name a result by its content."""
    return Entry(hashlib.sha256(result.to_json().encode()).hexdigest()[:12], result)


def write_result(path: Path, result: Result) -> None:
    """Write a result file atomically."""
    write_text(path, result.to_json())


@dataclass(frozen=True, slots=True)
class NewFiling:
    """How a submission is to be filed.

    Attributes:
        submitter: Handle.
        submitted_at: UTC.
        anonymous_until: Hide authors and submitter until this day.
    """

    submitter: str
    submitted_at: datetime
    anonymous_until: date | None = None


def file_result(store: Path, result: Result, filing: NewFiling | None = None) -> tuple[Entry, bool]:
    """Put a result into the store: what is said about it first, the result itself last.

    All of it is on the disk when this returns. A result that is already there changes nothing.

    Args:
        store: The folder; made where missing.
        result: As it was scored.
        filing: By whom and when; without it only the result is filed.

    Returns:
        The entry, and whether it is new.
    """
    hidden = filing is not None and filing.anonymous_until is not None
    entry = entry_of(anonymised(result) if hidden else result)
    path = result_path(store, entry)
    with _FILING:
        if path.exists():
            return read_entry(store, entry.result), False
        prepare_store(store)
        if filing is not None:
            entry = replace(entry, filing=_file(store, entry.name, result, filing))
        write_result(path, entry.result)
        return entry, True


def _file(store: Path, name: str, result: Result, new: NewFiling) -> Filing:
    hidden = new.anonymous_until is not None
    filing = Filing(
        name=name,
        submitter=None if hidden else new.submitter,
        submitted_at=new.submitted_at,
        anonymous_until=new.anonymous_until,
    )
    if hidden:
        told = {field: getattr(result, field) for field in HIDDEN}
        secret = Disclosure(name=name, submitter=new.submitter, **told)
        _write_record(store / PRIVATE / f"{name}.json", secret)
    _write_record(store / "filings" / f"{name}.json", filing)
    return filing


def submitter_of(store: Path, entry: Entry) -> str | None:
    """Tell who filed an entry, also of an anonymous one: for the board itself, not to be shown.

    Returns:
        A handle; None where nobody is on record.
    """
    told = entry.disclosure or entry.filing
    if told is not None and told.submitter is not None:
        return told.submitter
    secret = store / PRIVATE / f"{entry.name}.json"
    return read_record(secret, Disclosure).submitter if secret.exists() else None


def withdraw(store: Path, name: str, reason: str, at: datetime) -> Withdrawal:
    """Take an entry off the board; a tombstone says when and why. A second time changes nothing.

    Raises:
        FormatError: If there is no such entry.
    """
    path = store / "withdrawals" / f"{name}.json"
    find_result(store, name)
    if not path.exists():
        _write_record(path, Withdrawal(name=name, withdrawn_at=at, reason=reason))
    return read_record(path, Withdrawal)


def add_reproduction(store: Path, reproduction: Reproduction) -> None:
    """File what somebody's own run of an entry came to.

    Raises:
        FormatError: If there is no such entry.
    """
    find_result(store, reproduction.name)
    name = f"{reproduction.name}-{reproduction.payload_sha256[:12]}.json"
    _write_record(store / "reproductions" / name, reproduction)


def disclose_due(store: Path, today: date) -> list[str]:
    """Publish who is behind the anonymous entries whose date has come; give their names."""
    due = []
    for path in sorted((store / PRIVATE).glob("[0-9a-f]*.json")):
        filing = read_record(store / "filings" / path.name, Filing)
        if filing.anonymous_until is not None and filing.anonymous_until <= today:
            public = store / "disclosures" / path.name
            if not public.exists():
                _write_record(public, read_record(path, Disclosure))
                due.append(path.stem)
    return due


def result_path(store: Path, entry: Entry) -> Path:
    """Where the result of an entry lies."""
    return store / RESULTS / f"{entry.result.track}-{entry.result.split}-{entry.name}.json"


def find_result(store: Path, name: str) -> Path:
    """Find the result file of an entry by its name.

    Raises:
        FormatError: If there is none.
    """
    found = sorted((store / RESULTS).glob(f"*-{name}.json")) if name.isalnum() else []
    if not found:
        raise FormatError(store, f"no entry {name[:40]!r} in it")
    return found[0]


def read_result(path: Path) -> Result:
    """Read a result file.

    Raises:
        FormatError: If it is missing or not a result.
    """
    return read_record(path, Result)


def read_record(path: Path, kind: type[Record]) -> Record:
    """Read a file of the store, strictly.

    Raises:
        FormatError: If it is missing or not of that kind.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_RECORD + 1)
    except OSError as error:
        raise FormatError(path, error.strerror or "cannot be read") from None
    if len(content) > MAX_RECORD:
        raise FormatError(path, f"more than {MAX_RECORD} bytes, expected a {kind.__name__.lower()}")
    name = kind.__name__.lower()
    try:
        read_json(content, name)
        with refusing_fields(name):
            return kind.model_validate_json(content, strict=True)
    except SubmissionError as error:
        raise FormatError(path, str(error)) from None


def read_entry(store: Path, result: Result) -> Entry:
    """Join what a store says about a result.

    Raises:
        FormatError: If a file about it is not what it should be.
    """
    entry = entry_of(result)
    file = f"{entry.name}.json"

    def about(folder: str, kind: type[Record]) -> Record | None:
        path = store / folder / file
        return read_record(path, kind) if path.exists() else None

    return replace(
        entry,
        filing=about("filings", Filing),
        withdrawal=about("withdrawals", Withdrawal),
        disclosure=about("disclosures", Disclosure),
        reproductions=tuple(
            read_record(path, Reproduction)
            for path in sorted((store / "reproductions").glob(f"{entry.name}-*.json"))
        ),
    )


def read_store(store: Path) -> list[Entry]:
    """Read every entry of a store, by name.

    Raises:
        FormatError: If a file is not what it should be.
    """
    return read_results([store])


def read_results(paths: Iterable[Path]) -> list[Entry]:
    """Read result files, folders of them, and stores; a result found twice is one entry.

    Returns:
        By name, so that the order of files does not matter.

    Raises:
        FormatError: If a path is missing, or a file is not a result.
    """
    entries: dict[str, Entry] = {}
    for path in paths:
        for entry in _entries(path):
            if entry.name not in entries or entry.filing is not None:
                entries[entry.name] = entry
    return [entries[name] for name in sorted(entries)]


def _entries(path: Path) -> Iterator[Entry]:
    if (path / RESULTS).is_dir():
        for file in sorted((path / RESULTS).glob("[!.]*.json")):
            yield read_entry(path, read_result(file))
    elif path.is_dir():
        for file in sorted(path.glob("[!.]*.json")):
            yield entry_of(read_result(file))
    else:
        yield entry_of(read_result(path))


def now() -> datetime:
    """Give the time, to the second, as records hold it."""
    return datetime.now(UTC).replace(microsecond=0)


def prepare_store(store: Path) -> None:
    """Make the folder, and keep what is private out of git."""
    (store / PRIVATE).mkdir(parents=True, exist_ok=True)
    ignore = store / ".gitignore"
    if not ignore.exists():
        write_text(ignore, f"/{PRIVATE}/\n")


def _write_record(path: Path, record: Strict) -> None:
    write_text(path, record.model_dump_json(indent=2) + "\n")
