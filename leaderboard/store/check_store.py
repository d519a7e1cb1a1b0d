"""Check a store changed by a pull request: every file, and that nothing old was changed."""

import os
import re
import stat
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from leaderboard.core.errors import Problem
from leaderboard.scoring.result import Result
from leaderboard.store.dataset import DATASETS, DatasetReport
from leaderboard.store.entries import (
    LOCK,
    MAX_RECORD,
    PRIVATE,
    RESULTS,
    Filing,
    Reproduction,
    Withdrawal,
    entry_of,
    now,
    read_record,
    reproduction_path,
    result_path,
)
from leaderboard.store.verify import against_release, differences_of_run, verify
from leaderboard.submission.untrusted import shown
from now_builder.errors import FormatError

About: TypeAlias = Filing | Withdrawal | Reproduction
Record: TypeAlias = Result | DatasetReport | About

KINDS: dict[str, type[Record]] = {
    RESULTS: Result,
    "filings": Filing,
    "withdrawals": Withdrawal,
    "reproductions": Reproduction,
    DATASETS: DatasetReport,
}
"""Kind of record in each folder of a store."""

LOOSE = frozenset({".gitignore", "README.md"})
"""Files allowed beside the folders, which a change leaves as they are."""

_CLOCKS_DIFFER = timedelta(minutes=10)
_KEEPER = "a keeper of the store adds it, and checks with --keeper"

# no capitals: some file systems ignore case
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*\.json")


@dataclass(frozen=True, slots=True)
class Trust:
    """Permissions and data of the person who checks.

    Attributes:
        keeper: accept what only the store's keepers may add: tombstones, runs, and results of
            blind rounds, which cannot be recomputed.
        releases: releases on which references, duplicates and the fingerprint are recomputed.
        attributes: languages and topics of their pages.
    """

    keeper: bool = False
    releases: tuple[Path, ...] = ()
    attributes: Path | None = None


@dataclass(slots=True)
class _Store:
    """The readable part of a store."""

    root: Path
    files: set[str] = field(default_factory=set)
    records: dict[str, Record] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def note(self, code: str, path: str, found: str, expected: str, mend: str = "") -> None:
        self.problems.append(Problem(code, path, found, expected, mend))


def check_store(store: Path, base: Path | None = None, trust: Trust | None = None) -> list[Problem]:
    """Find everything in an untrusted folder that a board must not accept, sorted by path.

    Only data is read and validated; nothing in the folder is executed, and no link is followed.
    All files of ``base``, the folder before the change, must exist unchanged. What is proof is for
    the store's keepers to add.

    Raises:
        FormatError: If there is no such folder, or it is a link.
    """
    for folder in (store, base):
        if folder is not None and (folder.is_symlink() or not folder.is_dir()):
            raise FormatError(folder, "a link" if folder.is_symlink() else "no such folder")
    checked = _Store(store)
    _walk(checked)
    known = set() if base is None else _compare(checked, base)
    for path in sorted(checked.files):
        _read(checked, path)
    trust = trust or Trust()
    entries = {path[-17:-5] for path in checked.records if path.startswith(f"{RESULTS}/")}
    for path, record in checked.records.items():
        match record:
            case Result():
                _check_result(checked, path, record)
                if path not in known:
                    _verify(checked, path, record, trust)
            case DatasetReport():
                _named(checked, path, f"{record.fingerprint}.json")
            case _:
                _check_about(checked, path, record, entries)
    _check_new(checked, base, known, trust)
    return sorted(checked.problems, key=lambda problem: (problem.field, problem.code))


def _walk(checked: _Store) -> None:
    """Collect allowed plain files; note everything else."""
    for path, entry in _entries(checked.root):
        folder, name = PurePosixPath(path).parent.as_posix(), entry.name
        mode = entry.stat(follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            checked.note("store.link", path, "a symbolic link", "files and folders alone")
        elif path == PRIVATE:
            _check_private(checked, entry)
        elif stat.S_ISDIR(mode):
            if folder != "." or name not in KINDS:
                wanted = ", ".join([*KINDS, *sorted(LOOSE)])
                checked.note("store.foreign", path, "a folder", f"only {wanted}")
        elif not stat.S_ISREG(mode):
            checked.note("store.special", path, "no plain file", "files and folders alone")
        elif folder == "." and name in LOOSE:
            checked.files.add(path)
        elif folder not in KINDS or not _NAME.fullmatch(name):
            checked.note(
                "store.foreign", path, "another file", "records named as a store names them"
            )
        elif entry.stat(follow_symlinks=False).st_size > MAX_RECORD:
            checked.note("store.size", path, f"more than {MAX_RECORD} bytes", "a record")
        else:
            checked.files.add(path)


def _entries(root: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """List a store and its known folders, no deeper."""
    for entry in sorted(os.scandir(root), key=lambda one: one.name):
        yield _printable(entry.name), entry
        inside = entry.is_dir(follow_symlinks=False) and entry.name in KINDS
        for child in sorted(os.scandir(entry), key=lambda one: one.name) if inside else ():
            yield f"{entry.name}/{_printable(child.name)}", child


def _check_private(checked: _Store, private: os.DirEntry[str]) -> None:
    """Note a private part that has more in it than what ``submit`` leaves there."""
    try:
        with os.scandir(private) as inside:
            fine = all(one.name == LOCK and one.stat(follow_symlinks=False).st_size == 0
                       and one.is_file(follow_symlinks=False) for one in inside)  # fmt: skip
    except OSError:  # no folder, or one that only its owner may read
        fine = False
    if not fine:
        wanted, mend = f"an empty {LOCK} at most", "git rm -r --cached it"
        checked.note("store.private", PRIVATE, "something else in it", wanted, mend)


def _printable(name: str) -> str:
    return name if name.isascii() and name.isprintable() else shown(name)


def _compare(checked: _Store, base: Path) -> set[str]:
    """Note changed or deleted files of the base; return unchanged ones."""
    before = _Store(base)
    _walk(before)
    same = set()
    for path in sorted(checked.files & LOOSE - before.files):
        checked.note("base.changed", path, "a new file", "records alone", "the judge adds it")
    for path in sorted(before.files):
        if path not in checked.files:
            mend = "withdraw an entry by a tombstone" if path.startswith(RESULTS) else ""
            checked.note("base.deleted", path, "nothing", "the file as it is in the base", mend)
        elif (base / path).read_bytes() != (checked.root / path).read_bytes():
            checked.note("base.changed", path, "another content", "the file as it is in the base")
        else:
            same.add(path)
    return same


def _read(checked: _Store, path: str) -> None:
    folder = PurePosixPath(path).parent.as_posix()
    if folder not in KINDS:
        return
    try:
        checked.records[path] = read_record(checked.root / path, KINDS[folder])
    except FormatError as error:
        checked.note("record.format", path, error.problem, f"a {KINDS[folder].__name__.lower()}")


def _named(checked: _Store, path: str, wanted: str) -> None:
    if PurePosixPath(path).name != wanted:
        checked.note("record.name", path, "a name that is not its content's", wanted)


def _check_result(checked: _Store, path: str, result: Result) -> None:
    _named(checked, path, result_path(checked.root, entry_of(result)).name)
    if (checked.root / path).read_bytes() != result.to_json().encode():
        checked.note("record.text", path, "other spaces or order", "the text that score -o writes")


def _check_about(checked: _Store, path: str, record: About, entries: AbstractSet[str]) -> None:
    """Check the name of a record, and that its entry exists."""
    wanted = f"{record.name}.json"
    if isinstance(record, Reproduction):
        wanted = PurePosixPath(reproduction_path(record)).name
        _check_run(checked, path, record)
    _named(checked, path, wanted)
    if record.name not in entries:
        checked.note(
            "record.dangling", path, f"no entry {record.name}", "a result that it is about"
        )


def _check_run(checked: _Store, path: str, run: Reproduction) -> None:
    """Recompute the figures of a run that its own ranks and the entry's determine."""
    for file, entry in checked.records.items():
        if isinstance(entry, Result) and file.endswith(f"-{run.name}.json"):
            for one in differences_of_run(run, entry):
                was = f"{one.field} {one.found!r:.60}"
                checked.note("result.differs", path, was, f"{one.expected!r:.60}")


def _check_new(checked: _Store, base: Path | None, known: AbstractSet[str], trust: Trust) -> None:
    """Note new records that only a keeper may add, and filings with a date that cannot be."""
    filings = {path: one for path, one in checked.records.items() if isinstance(one, Filing)}
    new = {path: filing for path, filing in filings.items() if path not in known}
    latest = now() + _CLOCKS_DIFFER
    for path, filing in new.items():
        if filing.submitted_at > latest:  # no later filing would pass until then
            at = filing.submitted_at.isoformat()
            checked.note("filing.date", path, at, f"{latest.isoformat()} at the latest")
    if base is None:
        return
    for path in checked.files - known if not trust.keeper else ():
        if path.startswith(("withdrawals/", "reproductions/")):
            checked.note("record.keeper", path, "a new record", "one that a keeper adds", _KEEPER)
    before = [filing.submitted_at for path, filing in filings.items() if path in known]
    _check_dates(checked, new, known, max(before, default=None))
    dated = {filing.name for filing in filings.values()}
    for path, record in checked.records.items():
        if isinstance(record, Result) and path not in known and path[-17:-5] not in dated:
            expected, mend = f"filings/{path[-17:]}", "now-leaderboard submit --store writes it"
            checked.note("filing.missing", path, "no filing", expected, mend)


def _check_dates(
    checked: _Store, filings: Mapping[str, Filing], known: AbstractSet[str], last: datetime | None
) -> None:
    """Note new filings that are not dated after the last of the base, or are of its entries.

    The date is what an entry's place is kept by.
    """
    old = {path[-17:-5] for path in known if path.startswith(f"{RESULTS}/")}
    for path, filing in filings.items():
        if last is not None and filing.submitted_at <= last:
            expected = f"later than {last.isoformat()}, as the last filing of the base"
            mend = "submit it again to the store as it is now"
            checked.note("filing.date", path, filing.submitted_at.isoformat(), expected, mend)
        if filing.name in old:
            expected = "nothing: the base has this entry without a filing"
            checked.note("filing.late", path, "a new filing", expected)


def _verify(checked: _Store, path: str, result: Result, trust: Trust) -> None:
    """Recompute a new result from its ranks, and from the release if there is one."""
    differences = [(one, "") for one in against_release(result, trust.releases, trust.attributes)]
    if result.ranks is not None:
        mend = "now-leaderboard score writes it"
        differences += [(one, mend) for one in verify(checked.root / path, result)]
    blind = result.release.origin == "blind"
    if (blind and not trust.keeper) or (not blind and result.ranks is None):
        found = "a result of a blind round" if blind else "no ranks"
        checked.note("result.unproved", path, found, "figures that can be recomputed", _KEEPER)
    for one, mend in differences:
        was = f"{one.field} {one.found!r:.60}"
        checked.note("result.differs", path, was, f"{one.expected!r:.60}", mend)
