"""Check a store that a pull request changes: valid files, and no change of existing ones."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from leaderboard.core.rounds import BlindRound
from leaderboard.scoring.result import Result
from leaderboard.store.entries import MAX_RECORD, Entry, Filing, now, read_record, read_store
from leaderboard.store.recompute import KINDS, Record, differences_from, path_of
from leaderboard.submission.untrusted import Problem, shown
from now_builder.errors import FormatError

_MAX_CLOCK_SKEW = timedelta(minutes=10)
_EARLIEST = datetime.min.replace(tzinfo=UTC)
# lower case only: some file systems ignore case
_PATH = re.compile(rf"(?:{'|'.join(KINDS)})/[a-z0-9][a-z0-9-]*\.json|README\.md|\.gitignore")


def check_store(
    store: Path,
    base: Path | None = None,
    *,
    keeper: bool = False,
    releases: Sequence[Path] = (),
    attributes: Path | None = None,
) -> list[Problem]:
    """Return all problems of an untrusted store, sorted by path.

    Only data is read; links are not followed. All files of ``base``, the folder before the change,
    must exist unchanged. Only a ``keeper`` may add proof and decisions on it. New results are
    recomputed from their ranks, and from the ``releases`` with ``attributes`` of their pages.

    Raises:
        FormatError: If the folder does not exist, or is a link.
    """
    problems: list[Problem] = []
    records: dict[str, Record] = {}
    files, old = _read_files(store, problems), _read_files(base, []) if base else {}
    for path in sorted(path for path in files if "/" in path):
        try:
            records[path] = read_record(store / path, KINDS[path.partition("/")[0]])
        except FormatError as error:
            problems.append(Problem("record.format", path, error.problem, "a valid record"))
    if not problems:
        fixed = old.keys() | {path for path in files if "/" not in path}
        changed = [path for path in fixed if base and files.get(path) != old.get(path)]
        problems += [Problem("base.changed", path, "a change", "none") for path in changed]
        for path, record in records.items():
            problems += _check_name(path, record, files)
        problems += _check_dates(records, old)
        entries = {entry.path: entry for entry in read_store(store)}
        commitments = [one.commitment for one in records.values() if isinstance(one, BlindRound)]
        for path in sorted(records.keys() - old.keys()):
            for one in differences_from(records[path], entries, releases, attributes, commitments):
                figure = f"{one.field} {one.found!r:.60}"
                problems.append(Problem("result.differs", path, figure, f"{one.expected!r:.60}"))
            if base and not keeper and _is_for_keepers(records[path], entries.get(path)):
                problems.append(Problem("record.keeper", path, "proof", "a keeper: --keeper"))
    return sorted(problems, key=lambda problem: (problem.field, problem.code))


def _is_for_keepers(record: Record, entry: Entry | None) -> bool:
    """Return whether a record is proof or a decision on proof: neither a filing nor a claim."""
    if isinstance(record, Result):  # without an entry it is a result of an open round
        return record.release.origin == "blind" or entry is None or entry.committed is not None
    return not isinstance(record, Filing)


def _read_files(root: Path, problems: list[Problem]) -> dict[str, bytes]:
    """Read the allowed plain files of a store; report all other files and folders."""
    if root.is_symlink() or not root.is_dir():
        raise FormatError(root, "a link" if root.is_symlink() else "folder not found")
    files = {}
    for folder in ("", *(f"{name}/" for name in KINDS)):
        inside = root / folder
        for entry in os.scandir(inside) if inside.is_dir() and not inside.is_symlink() else ():
            path, plain = f"{folder}{entry.name}", entry.is_file(follow_symlinks=False)
            small = entry.stat(follow_symlinks=False).st_size <= MAX_RECORD
            if plain and small and _PATH.fullmatch(path):
                files[path] = Path(entry.path).read_bytes()
            elif path not in KINDS or not entry.is_dir(follow_symlinks=False):
                problems.append(Problem("store.foreign", shown(path), "not a record", "records"))
    return files


def _check_name(path: str, record: Record, files: Mapping[str, bytes]) -> Iterator[Problem]:
    """Yield the problems of a record's path and text, and of records without their entry."""
    names = {other[-17:-5] for other in files if other.startswith("results/")}
    if path != (expected := path_of(record)):
        yield Problem("record.name", path, "a name that does not fit the content", expected)
    if isinstance(record, Result):
        if files[path] != record.to_json().encode():
            yield Problem("record.text", path, "other text", "the text that score -o writes")
        if f"filings/{path[-17:]}" not in files:
            yield Problem("filing.missing", path, "no filing", "the filing that submit writes")
    name = expected.partition("/")[2][:12]
    if path.startswith(("filings", "withdrawals", "reproductions")) and name not in names:
        yield Problem("record.dangling", path, f"no entry {name}", "the result of the entry")


def _check_dates(records: Mapping[str, Record], old: Mapping[str, bytes]) -> Iterator[Problem]:
    """Yield new filings that are not later than those of the base, or in the future."""
    filings = {path: one.submitted_at for path, one in records.items() if isinstance(one, Filing)}
    last = max([_EARLIEST, *(at for path, at in filings.items() if path in old)])
    for path in filings.keys() - old.keys():
        if not last < filings[path] <= now() + _MAX_CLOCK_SKEW:
            expected = f"a time after {last}, not in the future"
            yield Problem("filing.date", path, str(filings[path]), expected, "submit it again")
