"""The store: a folder of immutable results and records about them, suitable for git."""

import fcntl
import hashlib
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AwareDatetime, Field, FiniteFloat

from leaderboard.core.errors import SubmissionError
from leaderboard.scoring.result import Points, Result
from leaderboard.submission.archive import Description, Name, Prose, refusing_fields
from leaderboard.submission.untrusted import read_json
from now_builder.config import Sha256, Strict
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.io import locking, remove_leftovers, write_text

MAX_RECORD = 8 * 2**20
_log = logging.getLogger(__name__)
RESULTS, PRIVATE, LOCK = "results", "private", "store.lock"
_FOLDERS = (RESULTS, "filings", "withdrawals", "reproductions", "datasets")
_NO_RESULT = "not a result. Score the submission first: now-leaderboard score X.zip -o RESULT.json"
Record = TypeVar("Record", bound=Strict)

# Within these years a time keeps its order in any zone, and fits every database.
Moment = Annotated[
    AwareDatetime,
    Field(ge=datetime(2000, 1, 1, tzinfo=UTC), lt=datetime(3000, 1, 1, tzinfo=UTC)),
]
EntryName = Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
Evidence = Literal["scored", "contradicted", "reproduced", "blind"]


class Filing(Strict):
    """``filings/<name>.json``: who submitted a result, and when.

    Attributes:
        submitter: handle of the submitter.
        submitted_at: time of the submission, UTC.
    """

    format: Literal["now-filing/1"] = "now-filing/1"
    name: EntryName
    submitter: Name | None = None
    submitted_at: Moment


class Withdrawal(Strict):
    """``withdrawals/<name>.json``: tombstone of an entry whose result stays in the store."""

    format: Literal["now-withdrawal/1"] = "now-withdrawal/1"
    name: EntryName
    withdrawn_at: Moment
    reason: Prose = ""


class Reproduction(Strict):
    """``reproductions/<name>-<sha256>.json``: an independent run of an entry.

    Attributes:
        by: name of the person who ran it.
        config_sha256: sha256 of the run's resolved settings.
        result: the run's own result. None in a record of before it was kept, which proves nothing.
        difference: paired 95 % interval of the run's rSum less the entry's.
    """

    format: Literal["now-reproduction/1"] = "now-reproduction/1"
    name: EntryName
    by: Name
    reproduced_at: Moment
    rsum: Points
    payload_sha256: Sha256
    code_commit: Annotated[str, Field(pattern=r"^[0-9a-f]{7,64}$")] | None = None
    config_sha256: Sha256 | None = None
    result: Result | None = None
    difference: tuple[FiniteFloat, FiniteFloat] | None = None

    @property
    def agrees(self) -> bool:
        """Whether the run is not below the entry: the interval holds zero, or lies above it."""
        return self.difference is not None and self.difference[1] >= 0


@dataclass(frozen=True, slots=True)
class Entry:
    """A result as filed, and the records about it.

    Attributes:
        name: first 12 hexadecimal digits of the sha256 of the result's JSON text.
        filing: None outside a store, and in one of before every submission was dated.
        stored: whether the result is in a store, not in a file elsewhere.
    """

    name: str
    result: Result
    filing: Filing | None = None
    withdrawal: Withdrawal | None = None
    reproductions: tuple[Reproduction, ...] = ()
    stored: bool = False

    @property
    def run(self) -> Reproduction | None:
        """The latest run by a keeper of the store, whose result decides. None without one."""
        runs = (run for run in self.reproductions if run.result is not None)
        return max(runs, key=lambda run: (run.reproduced_at, run.payload_sha256), default=None)

    @property
    def evidence(self) -> Evidence:
        """Evidence for the result: scored from a file, in a blind round, or by a keeper's run.

        A run that does not agree contradicts the entry. Proof is a record in a store, which its
        keepers merged; a result file from elsewhere is a claim.
        """
        if self.stored and self.result.release.origin == "blind":
            return "blind"
        if self.run is None:
            return "scored"
        return "reproduced" if self.run.agrees else "contradicted"

    @property
    def shown(self) -> Result:
        """The result that pages show: the keeper's run, described as the entry is, or its own."""
        run = self.run.result if self.run else None
        if run is None:
            return self.result
        return run.model_copy(
            update={name: getattr(self.result, name) for name in Description.model_fields}
        )


def entry_of(result: Result) -> Entry:
    """Make the entry of a result, named by its content."""
    return Entry(hashlib.sha256(result.to_json().encode()).hexdigest()[:12], result)


def age(entry: Entry) -> tuple[int, datetime, str]:
    """Return a sort key, the earliest entry first, by date.

    A store's entries without a date are from before every submission was dated, so they are the
    oldest (``check-store --base`` refuses new ones); a result file from elsewhere is the newest.
    """
    dated = 1 if entry.filing else 0 if entry.stored else 2
    at = entry.filing.submitted_at if entry.filing else datetime.min.replace(tzinfo=UTC)
    return dated, at, entry.name


def write_result(path: Path | str, result: Result) -> None:
    """Write a result file atomically."""
    write_text(Path(path), result.to_json())


@dataclass(frozen=True, slots=True)
class NewFiling:
    """Submitter, None if nobody says who, and time of a submission."""

    submitter: str | None
    submitted_at: datetime


def file_result(store: Path, result: Result, filing: NewFiling | None = None) -> tuple[Entry, bool]:
    """File a result, the records about it first; return its entry, and whether it is new.

    Everything is on disk when this returns. Filing an existing result changes nothing. The store is
    created if missing; without a filing only the result is filed.
    """
    entry = entry_of(result)
    path = result_path(store, entry)
    with locked(store):
        new = not path.exists()
        if new and filing is not None:
            filed = Filing(name=entry.name, **asdict(filing))
            _write_record(store / "filings" / f"{entry.name}.json", filed)
        if new:
            write_result(path, result)
        return read_entry(store, result), new


def withdraw(store: Path, name: str, reason: str, at: datetime) -> Withdrawal:
    """Withdraw an entry; a tombstone records when and why. Withdrawing again changes nothing."""
    path = store / "withdrawals" / f"{name}.json"
    find_result(store, name)
    with locked(store):
        if not path.exists():
            _write_record(path, Withdrawal(name=name, withdrawn_at=at, reason=reason))
        return read_record(path, Withdrawal)


def add_reproduction(store: Path, reproduction: Reproduction) -> Path:
    """File a reproduction of an entry, the same run only once; return its file."""
    find_result(store, reproduction.name)
    path = store / reproduction_path(reproduction)
    with locked(store):
        if not path.exists():
            write_text(path, reproduction.model_dump_json(by_alias=True) + "\n")
    return path


def reproduction_path(run: Reproduction) -> str:
    """Return the path of a reproduction in its store."""
    return f"reproductions/{run.name}-{run.payload_sha256[:12]}.json"


def result_path(store: Path, entry: Entry) -> Path:
    """Return the path of an entry's result file."""
    return store / RESULTS / f"{entry.result.track}-{entry.result.split}-{entry.name}.json"


def find_result(store: Path, name: str) -> Path:
    """Find the result file of an entry by its name."""
    found = sorted((store / RESULTS).glob(f"*-{name}.json")) if name.isalnum() else []
    if not found:
        raise FormatError(store, f"no entry {name[:40]!r} in it")
    return found[0]


def read_result(path: Path | str) -> Result:
    """Read a result file."""
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
    if kind is Result and not content.lstrip().startswith(b"{"):  # a submission, mostly
        raise FormatError(path, _NO_RESULT)
    try:
        tree = read_json(content, name)
        if kind is Result and not str(tree.get("format")).startswith("now-result/"):
            raise FormatError(path, _NO_RESULT)
        with refusing_fields(name, kind, tree):
            return kind.model_validate_json(content, strict=True)
    except SubmissionError as error:
        raise FormatError(path, str(error)) from None


def read_entry(store: Path, result: Result) -> Entry:
    """Make the entry of a result with all records about it."""
    entry = entry_of(result)

    def about(folder: str, kind: type[Record]) -> Record | None:
        path = store / folder / f"{entry.name}.json"
        return read_record(path, kind) if path.exists() else None

    return replace(
        entry,
        stored=True,
        filing=about("filings", Filing),
        withdrawal=about("withdrawals", Withdrawal),
        reproductions=tuple(
            read_record(path, Reproduction)
            for path in sorted((store / "reproductions").glob(f"{entry.name}-*.json"))
        ),
    )


def read_results(paths: Iterable[Path]) -> list[Entry]:
    """Read result files, folders of them, and stores, by name, each result once."""
    entries: dict[str, Entry] = {}
    for path in paths:
        folder = path / RESULTS if (path / RESULTS).is_dir() else path
        for file in sorted(folder.glob("[!.]*.json")) if folder.is_dir() else [path]:
            result = read_result(file)
            entry = entry_of(result) if folder == path else read_entry(path, result)
            known = entries.get(entry.name)
            if known is None or not known.stored or entry.filing is not None:
                entries[entry.name] = entry
    return [entries[name] for name in sorted(entries)]


def now() -> datetime:
    """Return the current UTC time in whole seconds, as stored in records."""
    return datetime.now(UTC).replace(microsecond=0)


def check_is_store(store: Path) -> None:
    """Refuse a folder that holds anything but a store; hidden files such as ``.git`` may be there.

    Raises:
        ConfigError: If it is a release, captures, an export or any other folder in use, or a file.
    """
    if store.exists() and not store.is_dir():
        raise ConfigError(f"{store}: a file, expected a folder of results")
    known = {*_FOLDERS, PRIVATE, "README.md"}
    names = sorted(path.name for path in store.glob("[!.]*") if path.name not in known)
    if names:
        raise ConfigError(
            f"{store}: contains {names[0]}, which is not part of a folder of results. Name a new or"
            " empty folder"
        )


def prepare_store(store: Path) -> None:
    """Create the folder, its private part for its owner alone, and a ``.gitignore`` for that.

    A private part that others may read, as one copied from elsewhere, is narrowed.

    Raises:
        ConfigError: If the folder holds anything but a store.
    """
    check_is_store(store)
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
    """Let one thread of one process at a time add to the store, which is created if missing.

    What killed processes left half-written in its folders is dropped first.
    """
    prepare_store(store)
    path = store / PRIVATE / LOCK
    with path.open("w") as lock:
        with locking(path):
            fcntl.flock(lock, fcntl.LOCK_EX)
        for folder in (store, *store.glob("[!.]*/")):
            remove_leftovers(folder)
        yield


def _write_record(path: Path, record: Strict) -> None:
    write_text(path, record.model_dump_json(indent=2) + "\n")
