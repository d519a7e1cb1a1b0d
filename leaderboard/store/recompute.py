"""Recompute results: from their ranks, from a release, from a submission, or by a new run."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from pydantic import BaseModel

from leaderboard.core.rounds import BlindRound, round_of
from leaderboard.core.uncertainty import Comparison
from leaderboard.scoring.evaluate import (
    compare_results,
    duplicates_of,
    figures_of,
    round_blind_result,
    score,
)
from leaderboard.scoring.references import REFERENCES, chance_rsum, references_of
from leaderboard.scoring.result import VERSION, Result, Within
from leaderboard.scoring.within import GROUPINGS, figures_within, owners_of, plausible
from leaderboard.store.dataset import DatasetReport
from leaderboard.store.entries import (
    FOLDERS,
    RESULTS,
    ROUNDS,
    Entry,
    Filing,
    Reproduction,
    Withdrawal,
    entry_of,
    find_result,
    now,
    read_record,
    read_result,
    read_store,
)
from leaderboard.submission.archive import field_errors
from leaderboard.submission.gallery import read_gallery
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.io import sha256_of, write_text
from now_builder.formats.release import check_files, is_ours

Record = Result | Filing | Withdrawal | Reproduction | BlindRound | DatasetReport
KINDS: Mapping[str, type[Record]] = dict(zip(FOLDERS, get_args(Record), strict=True))
"""Type of the records in each folder of a store."""

_NEED_ATTRIBUTES = ("lang+topic", "ocr", "text")  # references
_TOLERANCE = 1e-9


def path_of(record: Record) -> str:
    """Return the path of a record in its store, which its content determines."""
    if isinstance(record, Result):
        return entry_of(record).path
    if isinstance(record, BlindRound):
        return f"{ROUNDS}/{record.commitment[:12]}.json"
    return record.path


def read_board(paths: Iterable[Path]) -> list[Entry]:
    """Read result files, folders of them, and stores; return each result once, by name.

    Raises:
        FormatError: If a file is invalid, or its ranks give other figures.
    """
    entries: dict[str, Entry] = {}
    for path in paths:
        if (path / RESULTS).is_dir():
            batch = read_store(path)
        else:
            files = sorted(path.glob("[!.]*.json")) if path.is_dir() else [path]
            batch = [entry_of(read_result(file)) for file in files]
        entries |= {one.name: one for one in batch if one.filing or one.name not in entries}
    for entry in entries.values():
        runs = [(run.path, run.result) for run in entry.reproductions]
        for name, result in [(entry.path, entry.result), *runs]:
            for difference in recomputed(result) if result.ranks else ():
                raise FormatError(Path(name), str(difference))
    return [entries[name] for name in sorted(entries)]


@dataclass(frozen=True, slots=True)
class Difference:
    """A figure that differs when recomputed."""

    field: str
    found: object
    expected: object

    def __str__(self) -> str:
        """Format the difference as one line."""
        return f"{self.field}: found {self.found!r:.80}, expected {self.expected!r:.80}"


def differences_of(found: object, expected: object, field: str = "") -> list[Difference]:
    """Compare two trees of figures; floats may differ in the last digits."""
    if isinstance(found, BaseModel) and isinstance(expected, BaseModel):
        trees = (found.model_dump(by_alias=True), expected.model_dump(by_alias=True))
        return differences_of(*trees, field)
    if isinstance(found, dict) and isinstance(expected, dict):
        differences = []
        for name in {**found, **expected}:
            path = f"{field}.{name}".strip(".")
            differences += differences_of(found.get(name), expected.get(name), path)
        return differences
    return [] if _is_close(found, expected) else [Difference(field, found, expected)]


def _is_close(found: object, expected: object) -> bool:
    if isinstance(found, float) and isinstance(expected, float):
        return math.isclose(found, expected, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    if isinstance(found, tuple) and isinstance(expected, tuple):
        pairs = zip(found, expected, strict=False)
        return len(found) == len(expected) and all(_is_close(*pair) for pair in pairs)
    return found == expected


def recomputed(result: Result) -> list[Difference]:
    """Recompute the figures of a result from its ranks; return all differences."""
    record = result.ranks
    groups = {name: part for name in GROUPINGS if (part := getattr(result, name)) is not None}
    if (
        record is None
        or not record.possible()
        or not all(plausible(name, part, record) for name, part in groups.items())
    ):
        return [Difference("ranks", "ranks that no matrix has", "those of every query")]
    figures = figures_of(record, result.duplicates)
    for name, part in groups.items():
        figures[name] = figures_within(name, part.ranks, part.spans)
    figures["references"] = result.references | {"chance": chance_rsum(*record.size)}
    return differences_of(result, result.model_copy(update=figures))


def verify(
    path: Path, result: Result, submission: Path | None = None, release: Path | None = None
) -> list[Difference]:
    """Recompute the figures of a result; return all differences.

    A hash in the file's name must fit its content. With a submission and its release, the
    submission is scored again; with only a release, the fingerprints are compared.

    Raises:
        FormatError: If the result has no ranks, as in a blind round, and there is no submission.
        SubmissionError: If the submission cannot be scored.
    """
    suffix, name = path.stem.rpartition("-")[2], entry_of(result).name
    hashed = len(suffix) == len(name) and set(suffix) <= set("0123456789abcdef")
    differences = [Difference("name", suffix, name)] if hashed and suffix != name else []
    differences += differences_of(result.evaluator.version, VERSION, "evaluator.version")
    if submission is not None and release is not None:
        again = score(submission, release)
        # not compared: they may need attributes
        ignored = {"references": again.references, "notes": again.notes}
        return differences + differences_of(result.model_copy(update=ignored), again)
    if release is not None:
        fingerprint = read_gallery(release, result.split, result.track).fingerprint
        claimed = result.release.fingerprint
        differences += differences_of(claimed, fingerprint, "release.fingerprint")
    if result.ranks is None:
        problem = "no ranks, as in results of a blind round"
        raise FormatError(path, f"{problem}. Score again: --submission and --release")
    return differences + recomputed(result)


def against_release(
    result: Result,
    releases: Sequence[Path],
    attributes: Path | None = None,
    commitments: Sequence[str] = (),
) -> list[Difference]:
    """Recompute the figures that a release determines: sizes, references, duplicates, fingerprint.

    The commitment of a blind round must be in ``commitments``, the rounds filed in the store.
    """
    for release in releases:
        gallery = read_gallery(release, result.split, result.track, unpaired=True)
        if gallery.fingerprint == result.release.fingerprint:
            break
    else:
        expected = "the fingerprint of a release (--release)"
        return [Difference("release.fingerprint", result.release.fingerprint, expected)]
    differences = differences_of(result.release.origin, gallery.origin, "release.origin")
    blind = round_of(release, result.split)
    if blind is not None and blind.commitment not in commitments:
        expected = "a record of the open round"
        differences.append(Difference("rounds", blind.commitment[:12], expected))
    if result.ranks is None:
        return differences
    ignored = _NEED_ATTRIBUTES if attributes is None else ()
    claimed = {name: rsum for name, rsum in result.references.items() if name not in ignored}
    references = references_of(release, gallery, result.split, attributes)
    duplicates = duplicates_of(gallery).model_copy(update={"rsum": result.duplicates.rsum})
    differences += differences_of(claimed, references, "references")
    differences += differences_of(result.ranks.site_owners, owners_of(gallery), "ranks.site_owners")
    for name, groups_of in GROUPINGS.items():
        within: Within | None = getattr(result, name)
        sizes = tuple(map(len, groups_of(gallery)))
        differences += differences_of(within.spans if within else (), sizes, f"{name}.sizes")
    return differences + differences_of(result.duplicates, duplicates, "duplicates")


def differences_from(
    record: Record,
    entries: Mapping[str, Entry],
    releases: Sequence[Path] = (),
    attributes: Path | None = None,
    commitments: Sequence[str] = (),
) -> list[Difference]:
    """Recompute the figures of a record from the entries of its store, by path, and releases.

    The figures of a closed round, once rounded, must equal those of the open round.
    """
    if isinstance(record, Reproduction):
        results = (entry.result for entry in entries.values() if entry.name == record.name)
        return [one for result in results for one in _run_differences(record, result)]
    if not isinstance(record, Result):
        return []
    differences = [
        Difference(f"references.{name}", rsum, "no reference of this name")
        for name, rsum in record.references.items()
        if name not in REFERENCES
    ]
    if record.ranks is not None:
        differences += recomputed(record)
    elif record.release.origin != "blind":
        differences.append(Difference("ranks", None, "those of every query"))
    entry = entries.get(entry_of(record).path)
    if entry is not None and entry.committed is not None and not differences:
        update = {"release": entry.committed.release}
        rounded = round_blind_result(record).model_copy(update=update)
        differences += differences_of(entry.committed, rounded)
    if releases:
        differences += against_release(record, releases, attributes, commitments)
    return differences


def _run_differences(run: Reproduction, entry: Result) -> list[Difference]:
    differences = recomputed(run.result)
    try:
        compared = compare_results(run.result, entry)
    except ConfigError as error:
        return [*differences, Difference("result", str(error), "a run on the entry's data")]
    interval = compared.low, compared.high
    return differences + differences_of(run.difference, interval, "difference")


@dataclass(frozen=True, slots=True)
class Runner:
    """Name of the person who repeated a run, commit of the code, and folder of the run."""

    by: str
    commit: str | None = None
    folder: Path | None = None


def reproduce(
    store: Path, name: str, submission: Path, release: Path, about: Runner
) -> tuple[Reproduction, Comparison]:
    """Score the submission of a repeated run, compare it with the named entry and file it.

    Once merged by the store's keepers, the record makes the entry reproduced, or contradicted if
    the interval of the difference lies below zero. The files of the release are hashed first: the
    fingerprint covers keys and captions, but not the features.

    Raises:
        SubmissionError: If the person's name or the commit is invalid.
        FormatError: If a file of the release differs from its manifest, the submission is the
            entry's own, or the run is already filed with another result.
        ConfigError: If track, split or release differ.
    """
    entry = read_result(find_result(store, name))
    settings = None if about.folder is None else about.folder / "run.toml"
    if settings is not None and not settings.is_file():
        raise FormatError(settings, "file not found, expected the resolved settings of the run")
    if problems := check_files(release) if is_ours(release) else []:
        raise FormatError(release, f"{problems[0]}. Run `now-builder verify` for details")
    again = score(submission, release)
    if again.payload_sha256 == entry.payload_sha256:
        raise FormatError(submission, f"the same file as {name}, expected another run's")
    compared = compare_results(again, entry)
    with field_errors("reproduction", Reproduction, {}):
        record = Reproduction(
            name=name,
            by=about.by,
            reproduced_at=now(),
            code_commit=about.commit,
            config_sha256=None if settings is None else sha256_of(settings),
            result=again,
            difference=(compared.low, compared.high),
        )
    path = store / record.path
    if not path.exists():
        write_text(path, record.model_dump_json(by_alias=True) + "\n")
    filed = read_record(path, Reproduction)
    if (filed.result, filed.difference) != (again, record.difference):
        raise FormatError(path, "another result or difference, expected those of this run")
    return filed, compared
