"""Recompute results: from their ranks, from a release, from a submission, or by a new run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from leaderboard.core.rounds import BlindRound, round_of
from leaderboard.core.uncertainty import Comparison
from leaderboard.scoring.evaluate import (
    Difference,
    compare_results,
    differences_of,
    duplicates_of,
    recomputed,
    round_blind_result,
    score,
)
from leaderboard.scoring.references import REFERENCES, references_of
from leaderboard.scoring.result import VERSION, Result
from leaderboard.store.dataset import DatasetReport
from leaderboard.store.entries import (
    DATASETS,
    FILINGS,
    FOLDERS,
    ROUNDS,
    WITHDRAWALS,
    Entry,
    Filing,
    Reproduction,
    Withdrawal,
    entry_of,
    find_result,
    now,
    read_record,
    read_result,
    read_results,
)
from leaderboard.submission.archive import Description, refusing_fields
from leaderboard.submission.gallery import read_gallery
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.io import sha256_of, write_text
from now_builder.formats.release import check_files, is_ours

Record = Result | Filing | Withdrawal | Reproduction | BlindRound | DatasetReport
KINDS: Mapping[str, type[Record]] = dict(zip(FOLDERS, get_args(Record), strict=True))
"""Kind of record in each folder of a store."""

_BY_ATTRIBUTES = ("lang+topic", "ocr")


def path_of(record: Record) -> str:
    """Return the path of a record in its store, which follows from its content."""
    match record:
        case Result():
            return entry_of(record).path
        case Reproduction():
            return record.path
        case BlindRound():
            return f"{ROUNDS}/{record.commitment[:12]}.json"
        case DatasetReport():
            return f"{DATASETS}/{record.fingerprint}.json"
    folder = FILINGS if isinstance(record, Filing) else WITHDRAWALS
    return f"{folder}/{record.name}.json"


def read_board(paths: Iterable[Path]) -> list[Entry]:
    """Read result files, folders of them, and stores, by name; recompute their figures.

    Raises:
        FormatError: If a file is invalid, or has figures that do not follow from its ranks.
    """
    entries = read_results(paths)
    for entry in entries:
        runs = [(run.path, run.result) for run in entry.reproductions]
        for path, result in [(entry.path, entry.result), *runs]:
            for difference in recomputed(result) if result.ranks else ():
                raise FormatError(Path(path), str(difference))
    return entries


def verify(
    path: Path, result: Result, submission: Path | None = None, release: Path | None = None
) -> list[Difference]:
    """Recompute every figure of a result and compare; return all differences.

    A hash in the file's name must be that of its content. With a submission and its release the
    submission is scored again, with a release alone the fingerprint is compared.

    Raises:
        FormatError: If the result has no ranks (that of a blind round) and no submission is given.
        SubmissionError: If the submission cannot be scored.
    """
    said, name = path.stem.rpartition("-")[2], entry_of(result).name
    hashed = len(said) == len(name) and set(said) <= set("0123456789abcdef")
    found = [Difference("name", said, name)] if hashed and said != name else []
    if result.evaluator.version != VERSION:
        found.append(Difference("evaluator.version", result.evaluator.version, VERSION))
    if submission is not None and release is not None:
        again = score(submission, release)
        # references and notes may need attributes
        known = result.model_copy(update={"references": again.references, "notes": again.notes})
        return found + differences_of(
            known.model_dump(by_alias=True), again.model_dump(by_alias=True)
        )
    if release is not None:
        fingerprint = read_gallery(release, result.split, result.track).fingerprint
        found += differences_of(result.release.fingerprint, fingerprint, "release.fingerprint")
    if result.ranks is None:
        raise FormatError(
            path,
            "no ranks in it: a blind round keeps them; --submission and --release score again",
        )
    return found + recomputed(result)


def count_figures(result: Result) -> int:
    """Count the figures of a result that :func:`verify` compares."""

    def count(tree: object) -> int:
        if isinstance(tree, dict | tuple):
            return sum(map(count, tree.values() if isinstance(tree, dict) else tree))
        return isinstance(tree, int | float) and not isinstance(tree, bool)

    return count(result.model_dump(exclude={*Description.model_fields, "ranks", "references"}))


def against_release(
    result: Result,
    releases: Sequence[Path],
    attributes: Path | None = None,
    commitments: Sequence[str] = (),
) -> list[Difference]:
    """Recompute the figures that a release determines: sizes, references, duplicates, fingerprint.

    The pairing of a round must be the one that a store's record of the round commits to.
    """
    for release in releases:
        gallery = read_gallery(release, result.split, result.track, unpaired=True)
        if gallery.fingerprint == result.release.fingerprint:
            break
    else:
        return [Difference("release.fingerprint", result.release.fingerprint, "one at hand")]
    found = differences_of(result.release.origin, gallery.origin, "release.origin")
    blind = round_of(release, result.split)
    if blind is not None and blind.commitment not in commitments:
        found.append(Difference("rounds", blind.commitment[:12], "a record of the open round"))
    if result.ranks is None:
        return found
    references = references_of(release, gallery, result.split, attributes)
    said = dict(result.references)
    if attributes is None:
        said = {name: rsum for name, rsum in said.items() if name not in _BY_ATTRIBUTES}
    known = duplicates_of(gallery, result.duplicates.rsum)
    return [
        *found,
        *differences_of(said, references, "references"),
        *differences_of(result.duplicates.model_dump(), known.model_dump(), "duplicates"),
    ]


def differences_from(
    record: Record,
    entries: Mapping[str, Entry],
    releases: Sequence[Path] = (),
    attributes: Path | None = None,
    commitments: Sequence[str] = (),
) -> list[Difference]:
    """Recompute the figures of a record by the other entries of its store, by path, and releases.

    The exact figures of a closed round must be those of the open round in its steps.
    """
    if isinstance(record, Reproduction):
        claims = (entry.result for entry in entries.values() if entry.name == record.name)
        return [one for claim in claims for one in _of_run(record, claim)]
    if not isinstance(record, Result):
        return []
    found = [
        Difference(f"references.{name}", rsum, "no such reference")
        for name, rsum in record.references.items()
        if name not in REFERENCES
    ]
    if record.ranks is not None:
        found += recomputed(record)
    elif record.release.origin != "blind":
        found.append(Difference("ranks", None, "those of every query"))
    entry = entries.get(entry_of(record).path)
    if entry is not None and entry.committed is not None and not found:
        again = round_blind_result(record)
        again = again.model_copy(update={"release": entry.committed.release})
        found += differences_of(entry.committed.model_dump(), again.model_dump())
    return found + (against_release(record, releases, attributes, commitments) if releases else [])


def _of_run(run: Reproduction, entry: Result) -> list[Difference]:
    found = recomputed(run.result)
    try:
        compared = compare_results(run.result, entry)
    except ConfigError as error:
        return [*found, Difference("result", str(error), "a run on the entry's data")]
    return found + differences_of(run.difference, (compared.low, compared.high), "difference")


@dataclass(frozen=True, slots=True)
class Runner:
    """Name of the person who ran an entry again, commit of the code, and folder of the run."""

    by: str
    commit: str | None = None
    folder: Path | None = None


def reproduce(
    store: Path,
    name: str,
    submission: Path,
    release: Path,
    about: Runner,
) -> tuple[Reproduction, Comparison]:
    """Score the submission of a keeper's own run, compare it with the entry and file it, once.

    Merged by the store's keepers, the record makes the entry reproduced, or contradicted if the
    interval of the difference lies below zero. The release's files are hashed first: features can
    change under the same fingerprint, which is one of keys and captions.

    Args:
        store: folder of results with the entry.
        name: name of the entry.
        submission: what the keeper's run predicts.
        release: the release that it is scored on.
        about: who ran what.

    Raises:
        SubmissionError: If the name or the commit is none.
        FormatError: If a file of the release differs from its manifest, the submission is the
            entry's own, or the run is filed with another result.
        ConfigError: If track, split or release differ.
    """
    entry = read_result(find_result(store, name))
    settings = None if about.folder is None else about.folder / "run.toml"
    if settings is not None and not settings.is_file():
        raise FormatError(settings, "no such file, expected the resolved settings of the run")
    if problems := check_files(release) if is_ours(release) else []:
        raise FormatError(release, f"{problems[0]}; `now-builder verify` says more")
    again = score(submission, release)
    if again.payload_sha256 == entry.payload_sha256:
        raise FormatError(submission, f"is the very file of {name}, expected that of another run")
    compared = compare_results(again, entry)
    with refusing_fields("reproduction", Reproduction, {}):
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
    known = read_record(path, Reproduction)
    if (known.result, known.difference) != (again, record.difference):
        raise FormatError(path, "another result or difference, expected those of this run")
    return known, compared
