"""The store: a folder of immutable results and records about them, suitable for git."""

import fcntl
import hashlib
import logging
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
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
from now_builder.formats.io import locking, write_text

MAX_RECORD = 8 * 2**20
_log = logging.getLogger(__name__)
RESULTS, PRIVATE = "results", "private"
Record = TypeVar("Record", bound=Strict)

# Within these years a time keeps its order in any zone, and fits every database.
Moment = Annotated[
    AwareDatetime,
    Field(ge=datetime(2000, 1, 1, tzinfo=UTC), lt=datetime(3000, 1, 1, tzinfo=UTC)),
]
EntryName = Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
Evidence = Literal["scored", "reproduced", "blind"]


class Filing(Strict):
    """``filings/<name>.json``: who submitted a result, and when.

    Attributes:
        submitter: handle; None while the entry is anonymous.
        submitted_at: time of the submission, UTC.
        anonymous_until: day from which authors and submitter are shown.
        disclosure_sha256: sha256 of the text of the disclosure to come; None if there is none.
    """

    format: Literal["now-filing/1"] = "now-filing/1"
    name: EntryName
    submitter: Name | None = None
    submitted_at: Moment
    anonymous_until: date | None = None
    disclosure_sha256: Sha256 | None = None


class Withdrawal(Strict):
    """``withdrawals/<name>.json``: tombstone of an entry whose result stays in the store."""

    format: Literal["now-withdrawal/1"] = "now-withdrawal/1"
    name: EntryName
    withdrawn_at: Moment
    reason: Prose = ""


class Reproduction(Strict):
    """``reproductions/<name>-<sha256>.json``: an independent run of an entry.

    Attributes:
        by: name of who ran it.
        config_sha256: sha256 of the run's resolved settings.
    """

    format: Literal["now-reproduction/1"] = "now-reproduction/1"
    name: EntryName
    by: Name
    reproduced_at: Moment
    rsum: Points
    payload_sha256: Sha256
    code_commit: Annotated[str, Field(pattern=r"^[0-9a-f]{7,64}$")] | None = None
    config_sha256: Sha256 | None = None


@dataclass(frozen=True, slots=True)
class Proof:
    """What the judge's signatures say about an entry.

    Attributes:
        arrival: number of the first signature about it: the order of arrival. None if unsigned.
        received_at: the judge's time of that signature.
        scored: whether the judge signed that it was scored by them.
        reproduced: whether the judge signed a reproduction of it.
    """

    arrival: int | None = None
    received_at: datetime | None = None
    scored: bool = False
    reproduced: bool = False


class Disclosure(Strict):
    """``disclosures/<name>.json``: the hidden fields of an anonymous entry, public from its date.

    Before that date the file is in ``private/``, which git ignores, and its hash in the filing.

    Attributes:
        salt: random digits that keep authors from being guessed by the hash.
    """

    format: Literal["now-disclosure/1"] = "now-disclosure/1"
    name: EntryName
    submitter: Name | None
    authors: tuple[Name, ...] = ()
    affiliation: Line | None = None
    links: Links = Links()
    salt: Annotated[str, Field(pattern=r"^[0-9a-f]{0,64}$")] = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """A result as filed, and the records about it.

    Attributes:
        name: first 12 hexadecimal digits of the sha256 of the result's JSON text.
        filing: None for a result file outside a store.
        disclosure: the fields that an anonymous result hides, once public.
        proof: what signatures say; empty in a store without a key.
    """

    name: str
    result: Result
    filing: Filing | None = None
    withdrawal: Withdrawal | None = None
    reproductions: tuple[Reproduction, ...] = ()
    disclosure: Disclosure | None = None
    proof: Proof = Proof()

    @property
    def evidence(self) -> Evidence:
        """Evidence for the result: scored from a file, reproduced, or scored in a blind round.

        The last two are the judge's to say: without their signature an entry is only ``scored``.
        """
        if self.result.release.origin == "blind" and self.proof.scored:
            return "blind"
        return "reproduced" if self.proof.reproduced else "scored"

    @property
    def anonymous(self) -> bool:
        """Whether the authors are still hidden."""
        hidden = self.filing is not None and self.filing.anonymous_until is not None
        return hidden and self.disclosure is None

    @property
    def shown(self) -> Result:
        """The result with the fields that it leaves blank filled in as disclosed."""
        if self.disclosure is None:
            return self.result
        blank = anonymised(self.result)
        public = {
            name: getattr(self.disclosure, name)
            for name in HIDDEN
            if getattr(self.result, name) == getattr(blank, name)
        }
        return self.result.model_copy(update=public)


HIDDEN = ("authors", "affiliation", "links")
"""Fields of a description that an anonymous result hides."""


def anonymised(result: Result) -> Result:
    """Return the result without the fields that identify its authors."""
    blank = Description(method=result.method)
    return result.model_copy(update={name: getattr(blank, name) for name in HIDDEN})


def entry_of(result: Result) -> Entry:
    """Make the entry of a result, named by its content."""
    return Entry(hashlib.sha256(result.to_json().encode()).hexdigest()[:12], result)


def write_result(path: Path | str, result: Result) -> None:
    """Write a result file atomically."""
    write_text(Path(path), result.to_json())


@dataclass(frozen=True, slots=True)
class NewFiling:
    """Who files a submission, and until which day authors and submitter are hidden."""

    submitter: str
    submitted_at: datetime
    anonymous_until: date | None = None


def file_result(store: Path, result: Result, filing: NewFiling | None = None) -> tuple[Entry, bool]:
    """File a result in the store: the records about it first, the result itself last.

    Everything is on disk when this returns. Filing an existing result changes nothing. The store is
    created if missing; without a filing only the result is filed.

    Returns:
        The entry, and whether it is new.
    """
    entry = entry_to_file(result, filing)
    path = result_path(store, entry)
    with locked(store):
        if path.exists():
            return read_entry(store, entry.result), False
        if filing is not None:
            entry = replace(entry, filing=_file(store, entry.name, result, filing))
        write_result(path, entry.result)
        return entry, True


def entry_to_file(result: Result, filing: NewFiling | None) -> Entry:
    """Make the entry that :func:`file_result` files; without authors if it is to be anonymous."""
    hidden = filing is not None and filing.anonymous_until is not None
    return entry_of(anonymised(result) if hidden else result)


def _file(store: Path, name: str, result: Result, new: NewFiling) -> Filing:
    filing = Filing(name=name, **asdict(new))
    if new.anonymous_until is not None:
        hidden = {field: getattr(result, field) for field in HIDDEN}
        salt = secrets.token_hex(32)
        secret = Disclosure(name=name, submitter=new.submitter, salt=salt, **hidden)
        write_text(store / PRIVATE / f"{name}.json", _text(secret), mode=0o600)
        digest = hashlib.sha256(_text(secret).encode()).hexdigest()
        filing = filing.model_copy(update={"submitter": None, "disclosure_sha256": digest})
    _write_record(store / "filings" / f"{name}.json", filing)
    return filing


def submitter_of(store: Path, entry: Entry) -> str | None:
    """Return the handle of who filed an entry, even an anonymous one: not for display."""
    known = entry.disclosure or entry.filing
    if known is not None and known.submitter is not None:
        return known.submitter
    secret = store / PRIVATE / f"{entry.name}.json"
    return read_record(secret, Disclosure).submitter if secret.exists() else None


def withdraw(store: Path, name: str, reason: str, at: datetime) -> Withdrawal:
    """Withdraw an entry; a tombstone records when and why. Withdrawing again changes nothing.

    Raises:
        FormatError: If there is no such entry.
    """
    path = store / "withdrawals" / f"{name}.json"
    find_result(store, name)
    with locked(store):
        if not path.exists():
            _write_record(path, Withdrawal(name=name, withdrawn_at=at, reason=reason))
        return read_record(path, Withdrawal)


def add_reproduction(store: Path, reproduction: Reproduction) -> Path:
    """File a reproduction of an entry; return its file. Filing the same run again changes nothing.

    Raises:
        FormatError: If there is no such entry.
    """
    find_result(store, reproduction.name)
    path = store / reproduction_path(reproduction)
    with locked(store):
        if not path.exists():
            _write_record(path, reproduction)
    return path


def reproduction_path(run: Reproduction) -> str:
    """Return the path of a reproduction in its store."""
    return f"reproductions/{run.name}-{run.payload_sha256[:12]}.json"


def disclose_due(store: Path, today: date) -> list[str]:
    """Disclose the anonymous entries whose date has come; return their names."""
    due = []
    for path in sorted((store / PRIVATE).glob("[0-9a-f]*.json")):
        filed, public = store / "filings" / path.name, store / "disclosures" / path.name
        if public.exists() or not filed.exists():
            continue
        day = read_record(filed, Filing).anonymous_until
        # A process that was killed while filing leaves records without a result.
        if day is not None and day <= today and _results_of(store, path.stem):
            _write_record(public, read_record(path, Disclosure))
            due.append(path.stem)
    return due


def result_path(store: Path, entry: Entry) -> Path:
    """Return the path of an entry's result file."""
    return store / RESULTS / f"{entry.result.track}-{entry.result.split}-{entry.name}.json"


def find_result(store: Path, name: str) -> Path:
    """Find the result file of an entry by its name.

    Raises:
        FormatError: If there is none.
    """
    found = _results_of(store, name)
    if not found:
        raise FormatError(store, f"no entry {name[:40]!r} in it")
    return found[0]


def _results_of(store: Path, name: str) -> list[Path]:
    return sorted((store / RESULTS).glob(f"*-{name}.json")) if name.isalnum() else []


def read_result(path: Path | str) -> Result:
    """Read a result file.

    Raises:
        FormatError: If it is missing or not a result.
    """
    return read_record(Path(path), Result)


def read_record(path: Path, kind: type[Record]) -> Record:
    """Read and validate a file of the store.

    Raises:
        FormatError: If it is missing or not of that kind.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_RECORD + 1)
    except OSError as error:
        raise FormatError(path, error.strerror or "cannot be read") from None
    name = kind.__name__.lower()
    if len(content) > MAX_RECORD:
        raise FormatError(path, f"more than {MAX_RECORD} bytes, expected a {name}")
    try:
        tree = read_json(content, name)
        with refusing_fields(name, kind, tree):
            return kind.model_validate_json(content, strict=True)
    except SubmissionError as error:
        raise FormatError(path, str(error)) from None


def read_entry(store: Path, result: Result) -> Entry:
    """Make the entry of a result with all records about it, and no disclosure but its own.

    Raises:
        FormatError: If a record is invalid.
    """
    entry = entry_of(result)
    file = f"{entry.name}.json"

    def about(folder: str, kind: type[Record]) -> Record | None:
        path = store / folder / file
        return read_record(path, kind) if path.exists() else None

    filing, disclosure = about("filings", Filing), about("disclosures", Disclosure)
    if disclosure is not None and not discloses(filing, disclosure):
        disclosure = None
    return replace(
        entry,
        filing=filing,
        withdrawal=about("withdrawals", Withdrawal),
        disclosure=disclosure,
        reproductions=tuple(
            read_record(path, Reproduction)
            for path in sorted((store / "reproductions").glob(f"{entry.name}-*.json"))
        ),
    )


def read_results(paths: Iterable[Path]) -> list[Entry]:
    """Read result files, folders of them, and stores, by name; a result found twice is one entry.

    Raises:
        FormatError: If a path is missing, or a file is not a result.
    """
    entries: dict[str, Entry] = {}
    for path in paths:
        folder = path / RESULTS if (path / RESULTS).is_dir() else path
        for file in sorted(folder.glob("[!.]*.json")) if folder.is_dir() else [path]:
            result = read_result(file)
            entry = entry_of(result) if folder == path else read_entry(path, result)
            if entry.name not in entries or entry.filing is not None:
                entries[entry.name] = entry
    return [entries[name] for name in sorted(entries)]


def now() -> datetime:
    """Return the current UTC time in whole seconds, as stored in records."""
    return datetime.now(UTC).replace(microsecond=0)


def prepare_store(store: Path) -> None:
    """Create the folder, its private part for its owner alone, and a ``.gitignore`` for that.

    A private part that others may read, as one copied from elsewhere, is narrowed.
    """
    store.mkdir(parents=True, exist_ok=True)
    private = store / PRIVATE
    private.mkdir(mode=0o700, exist_ok=True)
    if (mode := private.stat().st_mode & 0o777) & 0o077:
        try:
            private.chmod(mode & 0o700)
        except OSError:  # another user's, or of a file system that has none
            _log.warning("%s: permissions %04o, so others may read it; chmod 700", private, mode)
    ignore = store / ".gitignore"
    if not ignore.exists():
        write_text(ignore, f"/{PRIVATE}/\n")


@contextmanager
def locked(store: Path) -> Iterator[None]:
    """Let one thread of one process at a time add to the store, which is created if missing."""
    prepare_store(store)
    path = store / PRIVATE / "store.lock"
    with path.open("w") as lock:
        with locking(path):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def discloses(filing: Filing | None, disclosure: Disclosure) -> bool:
    """Return whether a disclosure is that of an anonymous filing, by its hash."""
    if filing is None or filing.anonymous_until is None:
        return False
    digest = hashlib.sha256(_text(disclosure).encode()).hexdigest()
    return filing.disclosure_sha256 in {None, digest}


def _write_record(path: Path, record: Strict) -> None:
    write_text(path, _text(record))


def _text(record: Strict) -> str:
    return record.model_dump_json(indent=2) + "\n"
