"""Recompute results: from their own ranks, or from submission and release; read a board so."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from leaderboard.scoring.evaluate import duplicates_of, figures_of, folds_of, score
from leaderboard.scoring.pairing import compare_results
from leaderboard.scoring.references import REFERENCES, chance_rsum, references
from leaderboard.scoring.result import VERSION, RankRecord, Result
from leaderboard.store.entries import (
    RESULTS,
    Entry,
    Reproduction,
    entry_of,
    read_results,
    reproduction_path,
    result_path,
)
from leaderboard.submission.archive import Description
from leaderboard.submission.gallery import read_gallery
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.benchmarks import FOLD

_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Difference:
    """A figure that differs when recomputed."""

    field: str
    found: object
    expected: object

    def __str__(self) -> str:
        """Format the difference as one line."""
        return f"{self.field}: found {self.found!r:.80}, expected {self.expected!r:.80}"


def read_board(paths: Iterable[Path]) -> list[Entry]:
    """Read result files, folders of them, and stores, by name; recompute their figures.

    Raises:
        FormatError: If a file is invalid, or has figures that do not follow from its ranks.
    """
    entries: dict[str, Entry] = {}
    for path in paths:
        for entry in read_results([path]):
            if entry.result.ranks is not None:
                for difference in recomputed(entry.result):
                    file = result_path(path, entry) if (path / RESULTS).is_dir() else path
                    raise FormatError(file, str(difference))
            if entry.run and entry.run.result:  # the figures that pages show
                for difference in recomputed(entry.run.result):
                    raise FormatError(path / reproduction_path(entry.run), str(difference))
            known = entries.get(entry.name)
            if known is None or entry.filing is not None or not known.stored:
                entries[entry.name] = entry
    return [entries[name] for name in sorted(entries)]


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
    found = _name(path, result)
    if result.evaluator.version != VERSION:
        found.append(Difference("evaluator.version", result.evaluator.version, VERSION))
    if submission is not None and release is not None:
        again = score(submission, release)
        # references and notes may need attributes
        known = result.model_copy(update={"references": again.references, "notes": again.notes})
        return found + _differences(
            known.model_dump(by_alias=True), again.model_dump(by_alias=True)
        )
    if release is not None:
        said = result.release.fingerprint
        gallery = read_gallery(release, result.split, result.track)
        if gallery.fingerprint != said:
            found.append(Difference("release.fingerprint", said, gallery.fingerprint))
    if result.ranks is None:
        raise FormatError(
            path,
            "no ranks in it: a blind round keeps them; --submission and --release score again",
        )
    return found + recomputed(result)


def recomputed(result: Result) -> list[Difference]:
    """Recompute every figure that follows from the ranks, and chance; return all differences."""
    record = result.ranks
    if record is None or not record.possible():
        return [Difference("ranks", "ranks that no matrix has", "those of every query")]
    counts = {"n_images": len(record.i2t.greater), "n_pairs": len(record.t2i.greater)}
    figures, aware = figures_of(record)
    duplicates = result.duplicates.model_copy(update={"rsum": aware.rsum})
    again = result.model_copy(update={**counts, **figures, "duplicates": duplicates})
    found = _differences(result.model_dump(by_alias=True), again.model_dump(by_alias=True))
    return found + _references(result) + _folds(result, record)


def differences_of_run(run: Reproduction, entry: Result) -> list[Difference]:
    """Recompute a reproduction from the ranks of its run and of the entry; return differences.

    There are none in a record of before the run's result was kept.
    """
    if run.result is None:
        return []
    found = recomputed(run.result)
    try:
        compared = compare_results(run.result, entry)
    except ConfigError as error:
        return [*found, Difference("result", str(error), "a run on the entry's data")]
    said = {"difference": run.difference, "rsum": run.rsum, "payload_sha256": run.payload_sha256}
    known = {"rsum": run.result.rsum, "payload_sha256": run.result.payload_sha256}
    return found + _differences(said, {"difference": (compared.low, compared.high), **known})


def _folds(result: Result, record: RankRecord) -> list[Difference]:
    """Compare the figures of folds with their ranks, and these with those in the whole split.

    In a fold there are fewer candidates, so that no rank is worse there.
    """
    folds = result.folds
    if folds is None:
        return []
    if folds.ranks is None:
        return [Difference("folds.ranks", None, "the ranks within the folds")]
    ways = (folds.ranks.i2t, record.i2t), (folds.ranks.t2i, record.t2i)
    images, count = len(folds.ranks.i2t.greater), result.n_images // FOLD
    if (
        (folds.size, folds.count, images) != (FOLD, count, FOLD * count)
        or not folds.ranks.possible()
        or any((own.read().greater > whole.read().greater[: len(own.greater)]).any()
               for own, whole in ways if len(own.greater) <= len(whole.greater))
    ):  # fmt: skip
        return [Difference("folds.ranks", "ranks that no matrix has", "those of every query")]
    again = folds_of(folds.ranks, FOLD)
    return _differences(folds.model_dump(by_alias=True), again.model_dump(by_alias=True), "folds")


def against_release(
    result: Result, releases: Sequence[Path], attributes: Path | None = None
) -> list[Difference]:
    """Recompute the figures that a release determines: sizes, references, duplicates, fingerprint.

    Without a release there are no differences.
    """
    if not releases:
        return []
    for release in releases:
        gallery = read_gallery(release, result.split, result.track, unpaired=True)
        if gallery.fingerprint == result.release.fingerprint:
            break
    else:
        return [Difference("release.fingerprint", result.release.fingerprint, "one at hand")]
    found = []
    if gallery.origin != result.release.origin:
        found.append(Difference("release.origin", result.release.origin, gallery.origin))
    if result.ranks is None:
        return found
    known = references(release, gallery, result.split, attributes)
    said = dict(result.references)
    if attributes is None:
        for name in ("lang+topic", "ocr"):
            said.pop(name, None)
    found += _differences(said, known, "references")
    for field in ("captions", "images", "ceiling_rsum"):
        wanted = getattr(duplicates_of(gallery), field)
        if not _same(getattr(result.duplicates, field), wanted):
            was = getattr(result.duplicates, field)
            found.append(Difference(f"duplicates.{field}", was, wanted))
    return found


def _references(result: Result) -> list[Difference]:
    """Compare the references with those that exist, and chance with its value."""
    said, chance = result.references, chance_rsum(result.n_images, result.n_pairs)
    found = [
        Difference(f"references.{name}", value, "no such reference")
        for name, value in said.items()
        if name not in REFERENCES
    ]
    if not _same(said.get("chance"), chance):
        found.append(Difference("references.chance", said.get("chance"), chance))
    return found


def count_figures(result: Result) -> int:
    """Count the figures of a result that :func:`verify` compares."""
    return _count(result.model_dump(exclude={*Description.model_fields, "ranks", "references"}))


def _count(tree: object) -> int:
    if isinstance(tree, dict):
        return sum(map(_count, tree.values()))
    if isinstance(tree, tuple):
        return sum(map(_count, tree))
    return isinstance(tree, int | float) and not isinstance(tree, bool)


def _name(path: Path, result: Result) -> list[Difference]:
    said, name = path.stem.rpartition("-")[2], entry_of(result).name
    hashed = len(said) == len(name) and set(said) <= set("0123456789abcdef")
    return [Difference("name", said, name)] if hashed and said != name else []


def _differences(found: object, expected: object, field: str = "") -> list[Difference]:
    if isinstance(found, dict) and isinstance(expected, dict):
        names = {**found, **expected}
        return [
            difference
            for name in names
            for difference in _differences(
                found.get(name), expected.get(name), f"{field}.{name}".strip(".")
            )
        ]
    if _same(found, expected):
        return []
    return [Difference(field, found, expected)]


def _same(found: object, expected: object) -> bool:
    if isinstance(found, float) and isinstance(expected, float):
        return math.isclose(found, expected, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    if isinstance(found, tuple) and isinstance(expected, tuple):
        pairs = zip(found, expected, strict=False)
        return len(found) == len(expected) and all(_same(*pair) for pair in pairs)
    return found == expected
