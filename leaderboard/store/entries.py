"""The store: a folder of immutable results and records about them, for git."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AwareDatetime, Field, FiniteFloat

from leaderboard.core.rounds import BlindRound
from leaderboard.scoring.result import Result
from leaderboard.submission.archive import Name, Prose, field_errors
from leaderboard.submission.untrusted import SubmissionError, read_json
from now_builder.config import Sha256, Strict
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.io import remove_leftovers, write_text

MAX_RECORD = 8 * 2**20  # bytes
RESULTS, FILINGS, WITHDRAWALS, REPRODUCTIONS, ROUNDS, DATASETS = FOLDERS = (
    "results",
    "filings",
    "withdrawals",
    "reproductions",
    "rounds",
    "datasets",
)
_NO_RESULT = "not a result. Score the submission first: now-leaderboard score X.zip -o RESULT.json"
Record = TypeVar("Record", bound=Strict)

# Years that can be converted to any time zone.
Moment = Annotated[
    AwareDatetime,
    Field(ge=datetime(2000, 1, 1, tzinfo=UTC), lt=datetime(3000, 1, 1, tzinfo=UTC)),
]
EntryName = Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
Evidence = Literal["scored", "contradicted", "reproduced", "blind"]


class Filing(Strict):
    """``filings/<name>.json``: time at which a result was filed, UTC."""

    format: Literal["now-filing/1"] = "now-filing/1"
    name: EntryName
    submitted_at: Moment

    @property
    def path(self) -> str:
        """The path of the record in its store."""
        return f"{FILINGS}/{self.name}.json"


class Withdrawal(Strict):
    """``withdrawals/<name>.json``: withdrawal of an entry; its result stays in the store."""

    format: Literal["now-withdrawal/1"] = "now-withdrawal/1"
    name: EntryName
    withdrawn_at: Moment
    reason: Prose = ""

    @property
    def path(self) -> str:
        """The path of the record in its store."""
        return f"{WITHDRAWALS}/{self.name}.json"


class Reproduction(Strict):
    """``reproductions/<name>-<sha256>.json``: a run of an entry's method by the store's keepers.

    Attributes:
        by: name of the person who ran it.
        config_sha256: sha256 of the run's resolved settings.
        difference: paired 95 % interval of the run's rSum minus the entry's.
    """

    format: Literal["now-reproduction/1"] = "now-reproduction/1"
    name: EntryName
    by: Name
    reproduced_at: Moment
    code_commit: Annotated[str, Field(pattern=r"^[0-9a-f]{7,64}$")] | None = None
    config_sha256: Sha256 | None = None
    result: Result
    difference: tuple[FiniteFloat, FiniteFloat]

    @property
    def agrees(self) -> bool:
        """Whether the interval contains zero or lies above it."""
        return self.difference[1] >= 0

    @property
    def path(self) -> str:
        """The path of the record in its store."""
        return f"{REPRODUCTIONS}/{self.name}-{self.result.payload_sha256[:12]}.json"


@dataclass(frozen=True, slots=True)
class Entry:
    """A result as filed, and the records about it.

    Attributes:
        name: first 12 hexadecimal digits of the sha256 of the result's JSON text.
        filing: time of filing; None outside a store.
        committed: for the result of a closed round, the result of the same file in the open round.
    """

    name: str
    result: Result
    filing: Filing | None = None
    withdrawal: Withdrawal | None = None
    reproductions: tuple[Reproduction, ...] = ()
    committed: Result | None = None

    @property
    def run(self) -> Reproduction | None:
        """The latest run by the store's keepers; None without one."""
        return max(self.reproductions, key=lambda run: (run.reproduced_at, run.path), default=None)

    @property
    def evidence(self) -> Evidence:
        """Evidence for the result: scored from a file, in a blind round, or by a keepers' run.

        A run that does not agree contradicts the entry. Only records in a store are proof, since
        its keepers merged them; a result file from elsewhere is a claim.
        """
        if self.committed or (self.filing and self.result.release.origin == "blind"):
            return "blind"
        if self.run is None:
            return "scored"
        return "reproduced" if self.run.agrees else "contradicted"

    @property
    def shown(self) -> Result:
        """The result that pages show: the result of the keepers' run, else of the entry."""
        return self.run.result if self.run else self.result

    @property
    def path(self) -> str:
        """The path of the result in its store."""
        return f"{RESULTS}/{self.result.track}-{self.result.split}-{self.name}.json"


def entry_of(result: Result) -> Entry:
    """Make the entry of a result, named after the hash of its content."""
    return Entry(hashlib.sha256(result.to_json().encode()).hexdigest()[:12], result)


def age(entry: Entry) -> tuple[bool, datetime, str]:
    """Return a sort key: earliest entries first, results without a date last."""
    at = entry.filing.submitted_at if entry.filing else datetime.max.replace(tzinfo=UTC)
    return entry.filing is None, at, entry.name


def write_result(path: Path | str, result: Result) -> None:
    """Write a result file atomically."""
    write_text(Path(path), result.to_json())


def file_result(store: Path, result: Result, at: datetime | None = None) -> tuple[Entry, bool]:
    """File a result with the time (default: now); return its entry, and whether it is new.

    Filing an existing result changes nothing. The store is created if missing.
    """
    entry = entry_of(result)
    check_is_store(store)
    new = not (store / entry.path).exists()
    if new:
        # in microseconds, so that results filed within one second keep their order
        filing = Filing(name=entry.name, submitted_at=at or datetime.now(UTC))
        _write_record(store / filing.path, filing)
        remove_leftovers(store / RESULTS)
        write_result(store / entry.path, result)
    return next(one for one in read_store(store) if one.name == entry.name), new


def file_round(store: Path, blind: BlindRound) -> None:
    """File the public description of an open round, so that git records its commitment."""
    path = store / ROUNDS / f"{blind.commitment[:12]}.json"
    if not path.exists():
        _write_record(path, blind)


def withdraw(store: Path, name: str, reason: str, at: datetime) -> None:
    """File the withdrawal of an entry, once."""
    find_result(store, name)
    withdrawal = Withdrawal(name=name, withdrawn_at=at, reason=reason)
    if not (store / withdrawal.path).exists():
        _write_record(store / withdrawal.path, withdrawal)


def find_result(store: Path, name: str) -> Path:
    """Return the path of an entry's result file, or raise a :class:`FormatError`."""
    paths = sorted((store / RESULTS).glob(f"*-{name}.json")) if name.isalnum() else []
    if not paths:
        raise FormatError(store, f"entry {name[:40]!r} not found")
    return paths[0]


def read_result(path: Path | str) -> Result:
    """Read a result file."""
    return read_record(Path(path), Result)


def read_record(path: Path, model: type[Record]) -> Record:
    """Read and validate a file of the store.

    Raises:
        FormatError: If it is missing or does not fit the model.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_RECORD + 1)
    except OSError as error:
        raise FormatError(path, error.strerror or "cannot be read") from None
    name = model.__name__.lower()
    if len(content) > MAX_RECORD:
        raise FormatError(path, f"more than {MAX_RECORD} bytes, expected a {name}")
    if model is Result and not content.lstrip().startswith(b"{"):  # usually a submission
        raise FormatError(path, _NO_RESULT)
    try:
        tree = read_json(content, name)
        if model is Result and not str(tree.get("format")).startswith("now-result/"):
            raise FormatError(path, _NO_RESULT)
        with field_errors(name, model, tree):
            return model.model_validate_json(content, strict=True)
    except SubmissionError as error:
        raise FormatError(path, str(error)) from None


def read_store(store: Path) -> list[Entry]:
    """Read all entries of a store with the records about them, by name.

    A result of an open round is not listed if the store has the result of the same file in the
    closed round: it then is the proof of that result.
    """
    results = [read_result(path) for path in sorted((store / RESULTS).glob("[!.]*.json"))]
    by_file = [((one.payload_sha256, one.release.fingerprint), one) for one in results]
    blind, closed = (
        {file: result for file, result in by_file if result.release.origin == origin}
        for origin in ("blind", "closed")
    )
    entries = []
    for file, result in by_file:
        if result.release.origin != "blind" or file not in closed:
            committed = blind.get(file) if result.release.origin == "closed" else None
            entries.append(_with_records(store, replace(entry_of(result), committed=committed)))
    return sorted(entries, key=lambda entry: entry.name)


def _with_records(store: Path, entry: Entry) -> Entry:
    def read(folder: str, model: type[Record]) -> Record | None:
        path = store / folder / f"{entry.name}.json"
        return read_record(path, model) if path.exists() else None

    runs = sorted((store / REPRODUCTIONS).glob(f"{entry.name}-*.json"))
    return replace(
        entry,
        filing=read(FILINGS, Filing),
        withdrawal=read(WITHDRAWALS, Withdrawal),
        reproductions=tuple(read_record(path, Reproduction) for path in runs),
    )


def now() -> datetime:
    """Return the current UTC time in whole seconds."""
    return datetime.now(UTC).replace(microsecond=0)


def check_is_store(store: Path) -> None:
    """Check that a folder contains only a store and hidden files such as ``.git``.

    Raises:
        ConfigError: If it is a file, or a folder with other content, such as a release.
    """
    if store.exists() and not store.is_dir():
        raise ConfigError(f"{store}: a file, expected a folder of results")
    names = {path.name for path in store.glob("[!.]*")} - {*FOLDERS, "README.md"}
    if names:
        problem = f"contains {min(names)}, which is not part of a folder of results"
        raise ConfigError(f"{store}: {problem}. Name a new or empty folder")


def _write_record(path: Path, record: Strict) -> None:
    remove_leftovers(path.parent)
    write_text(path, record.model_dump_json(indent=2) + "\n")


def equal_ranks(entries: Sequence[Entry]) -> dict[str, str]:
    """Return the entry whose earlier ranks an entry or its run repeats, one by one, by name.

    Withdrawn entries count as earlier ones. Ranks that are all one number (all perfect, all tied)
    are equal trivially and left out.
    """
    results = [(age(entry), entry.name, entry.result) for entry in entries]
    results += [
        ((False, run.reproduced_at, entry.name), entry.name, run.result)
        for entry in entries
        for run in entry.reproductions
    ]
    first: dict[object, str] = {}
    repeats = {}
    for _, name, result in sorted(results, key=lambda one: one[0]):
        ranks = result.ranks
        if ranks is None or len({*ranks.i2t.greater, *ranks.t2i.greater}) == 1:
            continue
        earlier = first.setdefault((result.release.fingerprint, ranks.i2t, ranks.t2i), name)
        if earlier != name:
            repeats[name] = earlier
    return repeats
