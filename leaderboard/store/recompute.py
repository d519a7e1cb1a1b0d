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
from leaderboard.submission.archive import refusing_fields
from leaderboard.submission.gallery import read_gallery
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.io import sha256_of, write_text
from now_builder.formats.release import check_files, is_ours

Record = Result | Filing | Withdrawal | Reproduction | BlindRound | DatasetReport
KINDS: Mapping[str, type[Record]] = dict(zip(FOLDERS, get_args(Record), strict=True))
"""Kind of record in each folder of a store."""

_BY_ATTRIBUTES = ("lang+topic", "ocr", "text")
_TOLERANCE = 1e-9


def path_of(record: Record) -> str:
    """Return the path of a record in its store, which follows from its content."""
    if isinstance(record, Result):
        return entry_of(record).path
    if isinstance(record, BlindRound):
        return f"{ROUNDS}/{record.commitment[:12]}.json"
    return record.path


def read_board(paths: Iterable[Path]) -> list[Entry]:
    """Read result files, folders of them, and stores, by name, each result once.

    Raises:
        FormatError: If a file is invalid, or has figures that do not follow from its ranks.
    """
    entries: dict[str, Entry] = {}
    for path in paths:
        if (path / RESULTS).is_dir():
            found = read_store(path)
        else:
            files = sorted(path.glob("[!.]*.json")) if path.is_dir() else [path]
            found = [entry_of(read_result(file)) for file in files]
        entries |= {one.name: one for one in found if one.filing or one.name not in entries}
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
        return [
            difference
            for name in {**found, **expected}
            for difference in differences_of(
                found.get(name), expected.get(name), f"{field}.{name}".strip(".")
            )
        ]
    return [] if _same(found, expected) else [Difference(field, found, expected)]


def _same(found: object, expected: object) -> bool:
    if isinstance(found, float) and isinstance(expected, float):
        return math.isclose(found, expected, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    if isinstance(found, tuple) and isinstance(expected, tuple):
        pairs = zip(found, expected, strict=False)
        return len(found) == len(expected) and all(_same(*pair) for pair in pairs)
    return found == expected


def recomputed(result: Result) -> list[Difference]:
    """Recompute every figure of a result that follows from its ranks; return all differences."""
    record = result.ranks
    groups = {name: own for name in GROUPINGS if (own := getattr(result, name)) is not None}
    if (
        record is None
        or not record.possible()
        or not all(plausible(name, own, record) for name, own in groups.items())
    ):
        return [Difference("ranks", "ranks that no matrix has", "those of every query")]
    figures = figures_of(record, result.duplicates)
    for name, own in groups.items():
        figures[name] = figures_within(name, own.ranks, own.spans)
    figures["references"] = result.references | {"chance": chance_rsum(*record.size)}
    return differences_of(result, result.model_copy(update=figures))


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
    found += differences_of(result.evaluator.version, VERSION, "evaluator.version")
    if submission is not None and release is not None:
        again = score(submission, release)
        # references and notes may need attributes
        known = {"references": again.references, "notes": again.notes}
        return found + differences_of(result.model_copy(update=known), again)
    if release is not None:
        fingerprint = read_gallery(release, result.split, result.track).fingerprint
        found += differences_of(result.release.fingerprint, fingerprint, "release.fingerprint")
    if result.ranks is None:
        raise FormatError(
            path,
            "no ranks in it: a blind round keeps them; --submission and --release score again",
        )
    return found + recomputed(result)


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
    known = duplicates_of(gallery).model_copy(update={"rsum": result.duplicates.rsum})
    found += differences_of(said, references, "references")
    found += differences_of(result.ranks.site_owners, owners_of(gallery), "ranks.site_owners")
    for name, groups_of in GROUPINGS.items():
        within: Within | None = getattr(result, name)
        sizes = tuple(map(len, groups_of(gallery)))
        found += differences_of(within.spans if within else (), sizes, f"{name}.sizes")
    return found + differences_of(result.duplicates, known, "duplicates")


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
        of_round = {"release": entry.committed.release}
        again = round_blind_result(record).model_copy(update=of_round)
        found += differences_of(entry.committed, again)
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
