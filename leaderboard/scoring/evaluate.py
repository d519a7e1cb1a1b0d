"""The evaluator: submission → ranks → figures → result; deterministic to the byte."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Bool

from leaderboard.core.errors import Problem, Problems
from leaderboard.core.rounds import round_of
from leaderboard.core.steps import MAX_TIE_WIDTH, steps_of, to_step
from leaderboard.core.tracks import SCORED_SPLITS, ScoredSplit, Track
from leaderboard.core.uncertainty import Comparison, bootstrap_rsum, compare, recall_interval
from leaderboard.metrics import (
    CUTOFFS,
    Labels,
    Matrix,
    OneWay,
    Ranks,
    count_duplicate_aware,
    count_own,
    count_within,
    explained_ties,
    recalls,
    summarise,
    tie_width,
)
from leaderboard.scoring.references import chance_rsum, references_of
from leaderboard.scoring.result import (
    AtCutoffs,
    Direction,
    Duplicates,
    Evaluator,
    Folds,
    Intervals,
    Note,
    QueryRanks,
    RankRecord,
    Release,
    Result,
    Ties,
    query_ranks,
)
from leaderboard.submission.archive import (
    Description,
    OpenSubmission,
    Scored,
    Submission,
    open_submission,
)
from leaderboard.submission.gallery import Gallery, read_gallery
from now_builder.errors import ConfigError, NowError
from now_builder.formats.benchmarks import FOLD

_FAR_ABOVE = 3.0
"""Note ``distances``: how many times chance a reversed matrix reaches."""

_TIES_REASON = f"ties decide more than {MAX_TIE_WIDTH:g} rSum points"
"""Why a matrix of an open blind round is not ranked."""

_LEFT_OUT = {"median_rank", "mean_rank", "mrr", "ndcg", "tied_queries"}
"""Figures of a direction that the result of an open blind round does not have."""

_TOLERANCE = 1e-9

Figure = TypeVar("Figure")


@dataclass(frozen=True, slots=True)
class ScoringInputs:
    """The gallery of a split, and the rSum of its reference scorers."""

    gallery: Gallery
    references: dict[str, float]


def read_inputs(
    release: Path, split: ScoredSplit, track: Track, attributes: Path | None = None
) -> ScoringInputs:
    """Read the inputs that submissions to a split are scored with."""
    gallery = read_gallery(release, split, track)
    return ScoringInputs(gallery, references_of(release, gallery, split, attributes))


def score(
    path: Path | str,
    release: Path | str,
    attributes: Path | str | None = None,
    *,
    read: Callable[[Path, ScoredSplit, Track, Path | None], ScoringInputs] = read_inputs,
) -> Result:
    """Score a submission against a release.

    Args:
        path: the submission.
        release: the release that it is made on; for a blind round, the judge's folder.
        attributes: CSV or Parquet with languages and topics of pages, for
            :attr:`Result.references`.
        read: :func:`read_inputs`, or a cached version if many are scored on one release.

    Raises:
        SubmissionError: With all problems: it cannot be read, or is of another release, split
            or order.
        FormatError: If the release or the attributes cannot be read.
    """
    with open_submission(path) as submission:
        meta = submission.meta
        folder, known = Path(release), Path(attributes) if attributes else None
        inputs = read(folder, meta.split, meta.track, known)
        gallery, blind = inputs.gallery, round_of(folder, meta.split)
        if gallery.origin == "blind" and blind is not None and blind.closed:  # since it was read
            gallery = replace(gallery, origin="closed")
        scored = read_payload(submission, gallery, folder)
    record = record_of(scored.arrays, scored.ranks, gallery)
    folds = _fold_ranks(scored.arrays, gallery)
    figures = figures_of(record, folds)
    figures["duplicates"] = duplicates_of(gallery, figures["duplicates"])
    result = Result(
        **{field: getattr(meta, field) for field in Description.model_fields},
        track=meta.track,
        split=meta.split,
        release=Release(origin=gallery.origin, fingerprint=gallery.fingerprint),
        references=inputs.references,
        notes=_distances(record),
        precision=scored.precision,
        payload_sha256=submission.sha256,
        evaluator=Evaluator(),
        ranks=record,
        **figures,
    )
    return round_blind_result(result) if gallery.origin == "blind" else result


def validate(path: Path, release: Path) -> tuple[Submission, int]:
    """Check everything that :func:`score` checks; return the description and the number of pairs.

    Raises:
        SubmissionError: As :func:`score`.
        FormatError: If the release cannot be read.
    """
    with open_submission(path) as submission:
        meta = submission.meta
        gallery = read_gallery(release, meta.split, meta.track, unpaired=True)
        read_payload(submission, gallery, release)
        return meta, len(gallery.caption_keys)


def read_payload(submission: OpenSubmission, gallery: Gallery, release: Path) -> Scored:
    """Read the matrix of a submission to a release; report all problems at once."""
    meta = submission.meta
    problems = Problems()
    if meta.dataset_fingerprint != gallery.fingerprint:
        problems.found.append(
            Problem(
                "fingerprint.mismatch",
                "submission.json.dataset_fingerprint",
                f"{meta.dataset_fingerprint[:16]}…",
                f"{gallery.fingerprint[:16]}… ({meta.split} of {release.name}, track {meta.track})",
                _made_on(meta, release),
            )
        )
    with problems.noted():
        scored = submission.read(gallery)
    problems.refuse_any()
    return scored


def _made_on(meta: Submission, release: Path) -> str:
    """Say what a submission was made on: another split of this release, or another one."""
    for split in SCORED_SPLITS:
        try:
            known = read_gallery(release, split, meta.track, unpaired=True).fingerprint
        except NowError:
            continue
        if known == meta.dataset_fingerprint:
            return f"it was made on {split} of this release: pack it with --split {split}"
    return "it was made on another release; pack or predict again with this one"


def record_of(similarity: Matrix, ranks: tuple[Ranks, Ranks], gallery: Gallery) -> RankRecord:
    """Record all ranks of a matrix, captions in the order of their images."""
    columns = np.argsort(gallery.owner, kind="stable")
    rows = np.arange(len(gallery.image_keys))

    def ordered(ways: tuple[Ranks, Ranks]) -> tuple[QueryRanks, QueryRanks]:
        return query_ranks(ways[0], rows), query_ranks(ways[1], columns)

    i2t, t2i = ordered(ranks)
    aware = explained = own = None
    groups = gallery.image_labels, gallery.caption_labels, gallery.owner
    if any(len(np.unique(labels)) < len(labels) for labels in groups[:2]):
        aware = ordered(count_duplicate_aware(similarity, *groups))
        rows_tied, columns_tied = explained_ties(similarity, *groups)
        if rows_tied.any() or columns_tied.any():
            explained = tuple(rows_tied.tolist()), tuple(columns_tied[columns].tolist())
    if len(columns) > len(rows):
        own = query_ranks(count_own(similarity, gallery.owner, ranks[0]), columns)
    return RankRecord(i2t=i2t, t2i=t2i, duplicate_aware=aware, explained=explained, own=own)


def record_within(similarity: Matrix, owner: Labels, groups: Labels) -> RankRecord:
    """Record the ranks among the candidates of each image's group, group by group."""
    i2t, t2i = count_within(similarity, owner, groups)
    images, captions = np.arange(len(i2t.greater)), np.arange(len(t2i.greater))
    return RankRecord(i2t=query_ranks(i2t, images), t2i=query_ranks(t2i, captions))


def _fold_ranks(similarity: Matrix, gallery: Gallery) -> RankRecord | None:
    """Rank within MS-COCO's 1K folds; None if the split is small or has one caption per image."""
    images, captions = gallery.shape
    if captions == images or images < 2 * FOLD:
        return None
    folds = np.arange(images) // FOLD
    folds[folds == images // FOLD] = -1  # an incomplete last fold
    return record_within(similarity, gallery.owner, folds)


def figures_of(record: RankRecord, folds: RankRecord | None = None) -> dict[str, Any]:
    """Compute every figure of a result that follows from its ranks, by the field's name.

    ``duplicates`` is the rSum with identical candidates right too.
    """
    owner = record.owner()
    strict = aware = summarise(*record.read(), owner, record.read_own())
    if record.duplicate_aware is not None:
        i2t, t2i = record.duplicate_aware
        aware = summarise(i2t.read(), t2i.read(), owner)
    width = unexplained = tie_width(strict.ranks)
    if record.explained is not None:
        rows, columns = (np.array(way) for way in record.explained)
        unexplained = tie_width(strict.ranks, (rows, columns))
    low, high, deviation = bootstrap_rsum(strict.per_image)
    reason = None
    if unexplained > MAX_TIE_WIDTH:
        reason = (
            f"ties decide {unexplained:.1f} rSum points (between identical captions or images"
            f" apart), expected {MAX_TIE_WIDTH:g} at most"
        )
    tied = [int(np.count_nonzero(way.equal)) for way in strict.ranks]
    return {
        "n_images": len(strict.ranks[0].greater),
        "n_pairs": len(owner),
        "rsum": strict.rsum,
        "ranked": reason is None,
        "reason": reason,
        "i2t": _direction(strict.i2t, aware.i2t, tied[0]),
        "t2i": _direction(strict.t2i, aware.t2i, tied[1]),
        "rsum_interval": _rounded((low, high)),
        "rsum_deviation": round(deviation, 4),
        "rsum_optimistic": strict.rsum_optimistic,
        "rsum_pessimistic": strict.rsum_pessimistic,
        "rsum_argsort": strict.rsum_argsort,
        "ties": Ties(width=width, unexplained_width=unexplained),
        "duplicates": aware.rsum,
        "folds": None if folds is None else _folds(folds),
    }


def _direction(strict: OneWay, aware: OneWay, tied_queries: int) -> Direction:
    """Make the record of one direction; ``aware`` counts identical candidates as right too."""
    return Direction(
        **_at(strict.recall),
        hits={f"R@{cutoff}": str(strict.hits[cutoff]) for cutoff in CUTOFFS},
        optimistic=AtCutoffs(**_at(strict.optimistic)),
        pessimistic=AtCutoffs(**_at(strict.pessimistic)),
        interval=Intervals(
            **_at(lambda k: _rounded(recall_interval(float(strict.hits[k]), strict.n_queries)))
        ),
        duplicate_aware=AtCutoffs(**_at(aware.recall)),
        median_rank=strict.median_rank,
        mean_rank=strict.mean_rank,
        mrr=strict.mrr,
        ndcg=strict.ndcg,
        tied_queries=tied_queries,
    )


def _folds(record: RankRecord) -> Folds:
    """Compute the figures of folds from the ranks within them.

    Folds are of one size, so that the mean over folds is the mean over all their images, and
    resampling draws from all of these.
    """
    mean = summarise(*record.read(), record.owner())
    return Folds(
        size=FOLD,
        count=len(mean.per_image) // FOLD,
        i2t=AtCutoffs(**_at(mean.i2t.recall)),
        t2i=AtCutoffs(**_at(mean.t2i.recall)),
        rsum=mean.rsum,
        rsum_interval=_rounded(bootstrap_rsum(mean.per_image)[:2]),
        ranks=record,
    )


def _at(figure: Callable[[int], Figure]) -> dict[str, Figure]:
    return {f"r{cutoff}": figure(cutoff) for cutoff in CUTOFFS}


def _rounded(interval: tuple[float, float]) -> tuple[float, float]:
    return round(interval[0], 4), round(interval[1], 4)


def duplicates_of(gallery: Gallery, rsum: float = 0.0) -> Duplicates:
    """Count a gallery's duplicates; ``rsum`` is the score with every duplicate right."""
    labels = gallery.caption_labels, gallery.image_labels
    captions, images = (int(np.sum(np.bincount(group)[group] > 1)) for group in labels)
    ceiling = ceiling_rsum(gallery.image_labels, gallery.caption_labels, gallery.owner)
    return Duplicates(captions=captions, images=images, ceiling_rsum=ceiling, rsum=rsum)


def ceiling_rsum(images: Labels, texts: Labels, owner: Labels) -> float:
    """Return the rSum of a perfect scorer that gives items of one label equal scores."""
    if all(len(np.unique(labels)) == len(labels) for labels in (images, texts)):
        return 600.0
    own_texts: Bool[np.ndarray, "images texts"] = np.zeros(
        (int(owner.max()) + 1, int(texts.max()) + 1), np.bool_
    )
    own_texts[owner, texts] = True
    same = (images[:, None] == images[owner]) | own_texts[:, texts]
    return recalls(same.astype(np.float32), owner).rsum


def _distances(record: RankRecord) -> tuple[Note, ...]:
    """Check whether a matrix scores below chance, and its negative far above it."""
    owner, (i2t, t2i) = record.owner(), record.read()
    found, chance = summarise(i2t, t2i, owner).rsum, chance_rsum(len(i2t.greater), len(owner))
    turned = summarise(_reversed(i2t, len(owner)), _reversed(t2i, len(i2t.greater)), owner).rsum
    if found >= chance or turned < _FAR_ABOVE * chance:
        return ()
    message = (
        f"rSum is {found:.1f}, that of the reversed matrix {turned:.1f}, by chance {chance:.1f}:"
        " are these distances? Similarities rise with likeness: -distances"
    )
    return (Note(code="distances", message=message),)


def _reversed(ranks: Ranks, candidates: int) -> Ranks:
    """Return the ranks under negated similarities, as if an image had one right caption."""
    greater = candidates - ranks.greater - ranks.equal - ranks.right
    return Ranks(greater, ranks.equal, np.zeros_like(ranks.later), ranks.right)


def round_blind_result(result: Result) -> Result:
    """Round the result of an open blind round, so that it does not reveal the pairing.

    Recalls and sums are rounded to steps of about a standard error (:func:`steps_of`); all other
    figures are empty. From exact figures of many files the pairing could be worked out.
    """
    description = result.model_dump(include={*Description.model_fields})
    figures = result.model_dump(
        exclude={"folds": {"ranks"}, **dict.fromkeys((*description, "ranks", "notes"), True)}
    )
    recall, points = steps_of(result.n_pairs)
    ways = {name: _in_steps(figures.pop(name), recall) for name in ("i2t", "t2i")}
    known = {name: _in_steps(figures.pop(name), 0.1) for name in ("duplicates", "references")}
    known["duplicates"]["rsum"] = to_step(result.duplicates.rsum, points)
    message = "the judge of the blind round has the measure"
    notes = tuple(Note(code=note.code, message=message) for note in result.notes)
    told = {"notes": notes, "ranks": None, "folds": None, "reason": result.reason and _TIES_REASON}
    figures = _in_steps(figures, points) | ways | known | told
    return Result.model_validate(description | figures)


def _in_steps(value: Any, step: float, name: str = "") -> Any:
    if isinstance(value, dict):
        return {} if name == "hits" else {k: _in_steps(v, step, k) for k, v in value.items()}
    if isinstance(value, tuple):
        return tuple(_in_steps(item, step) for item in value)
    if name in _LEFT_OUT:
        return None
    return to_step(value, step) if isinstance(value, float) else value


def compare_results(first: Result, second: Result) -> Comparison:
    """Compare two results on the same queries.

    Raises:
        ConfigError: If track, split, release or number of queries differ, or one of them has no
            ranks, or some that no matrix has.
    """
    for field, found, expected in (
        ("track", first.track, second.track),
        ("split", first.split, second.split),
        ("release.fingerprint", first.release.fingerprint, second.release.fingerprint),
    ):
        if found != expected:
            raise ConfigError(
                f"{field}: found {found[:16]} ({first.method.name}) and {expected[:16]}"
                f" ({second.method.name}), expected the same: these are other queries"
            )
    if first.ranks is None or second.ranks is None:
        raise ConfigError("ranks: none in the result of a blind round, expected those of both")
    for result in (first, second):
        if result.ranks is not None and not result.ranks.possible():
            raise ConfigError(
                f"ranks ({result.method.name}): found some that no matrix has, expected those of"
                " every query"
            )
    one, other = first.ranks, second.ranks
    sizes = [(len(ranks.i2t.greater), len(ranks.t2i.greater)) for ranks in (one, other)]
    if sizes[0] != sizes[1]:
        raise ConfigError(f"ranks: found {sizes[1]} queries, expected as many as {sizes[0]}")
    return compare(one.read(), other.read(), one.owner())


@dataclass(frozen=True, slots=True)
class Difference:
    """A figure that differs when recomputed."""

    field: str
    found: object
    expected: object

    def __str__(self) -> str:
        """Format the difference as one line."""
        return f"{self.field}: found {self.found!r:.80}, expected {self.expected!r:.80}"


def recomputed(result: Result) -> list[Difference]:
    """Recompute every figure of a result that follows from its ranks; return all differences."""
    record, folds = result.ranks, result.folds.ranks if result.folds else None
    if record is None or not record.possible() or not _are_folds(folds, record, result.folds):
        return [Difference("ranks", "ranks that no matrix has", "those of every query")]
    figures = figures_of(record, folds)
    rsum = figures.pop("duplicates")
    figures["duplicates"] = result.duplicates.model_copy(update={"rsum": rsum})
    chance = chance_rsum(figures["n_images"], figures["n_pairs"])
    figures["references"] = result.references | {"chance": chance}
    again = result.model_copy(update=figures)
    return differences_of(result.model_dump(by_alias=True), again.model_dump(by_alias=True))


def _are_folds(ranks: RankRecord | None, whole: RankRecord, folds: Folds | None) -> bool:
    """Return whether the ranks can be those within the folds of a split with other ranks.

    In a fold there are fewer candidates, so that no rank is worse there.
    """
    if ranks is None:
        return folds is None
    ways = (ranks.i2t, whole.i2t), (ranks.t2i, whole.t2i)
    return (
        len(ranks.i2t.greater) == FOLD * (len(whole.i2t.greater) // FOLD)
        and ranks.possible()
        and len(ranks.t2i.greater) <= len(whole.t2i.greater)
        and not any(
            (own.read().greater > all_.read().greater[: len(own.greater)]).any()
            for own, all_ in ways
        )
    )


def differences_of(found: object, expected: object, field: str = "") -> list[Difference]:
    """Compare two trees of figures; floats may differ in the last digits."""
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
