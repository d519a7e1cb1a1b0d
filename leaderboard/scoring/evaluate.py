"""The evaluator: scores a submission on a release; deterministic to the byte."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Bool, Integer

from leaderboard.core.errors import Problem, Problems
from leaderboard.core.rounds import round_of
from leaderboard.core.steps import MAX_TIE_WIDTH, steps_of, to_step
from leaderboard.core.tracks import SCORED_SPLITS, ScoredSplit, Track
from leaderboard.core.uncertainty import bootstrap_rsum, recall_interval
from leaderboard.metrics import (
    CUTOFFS,
    Labels,
    Matrix,
    OneWay,
    Ranks,
    Recalls,
    count_duplicate_aware,
    count_own,
    explained_ties,
    fold_recalls,
    recalls,
    summarise,
    tie_width,
)
from leaderboard.scoring.references import (
    KnownLabels,
    chance_rsum,
    followed,
    read_labels,
    references_of,
)
from leaderboard.scoring.result import (
    AtCutoffs,
    Count,
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
    Lists,
    OpenSubmission,
    Scored,
    Submission,
    open_submission,
    ranks_of_right,
)
from leaderboard.submission.gallery import Gallery, read_gallery
from now_builder.errors import NowError
from now_builder.formats.benchmarks import FOLD

_FAR_ABOVE = 3.0
"""Note ``distances``: how many times chance a reversed matrix reaches."""

LISTS_REASON = "ranked lists: expected a matrix of similarities, which alone gets a place"
"""Why a submission of ranked lists is not ranked."""

TIES_REASON = f"ties decide more than {MAX_TIE_WIDTH:g} rSum points"
"""Why a matrix is not ranked, where their number is not told."""

_LEFT_OUT = {"median_rank", "mean_rank", "mrr", "ndcg", "tied_queries"}
"""Figures of a direction that the result of an open blind round does not have."""

Figure = TypeVar("Figure")


@dataclass(frozen=True, slots=True)
class ScoringInputs:
    """The gallery of a split, its labels, and the rSum of its reference scorers."""

    gallery: Gallery
    labels: KnownLabels
    references: dict[str, float]


def read_inputs(
    release: Path, split: ScoredSplit, track: Track, attributes: Path | None = None
) -> ScoringInputs:
    """Read the inputs that submissions to a split are scored with."""
    gallery = read_gallery(release, split, track)
    labels = read_labels(release, gallery, split, attributes)
    return ScoringInputs(gallery, labels, references_of(labels, gallery))


def score(
    path: Path | str,
    release: Path | str,
    attributes: Path | str | None = None,
    *,
    name: str | None = None,
    read: Callable[[Path, ScoredSplit, Track, Path | None], ScoringInputs] = read_inputs,
) -> Result:
    """Score a submission against a release.

    Args:
        path: the submission.
        release: the release that it is made on; for a blind round, the judge's folder.
        attributes: CSV or Parquet with languages and topics of pages, for
            :attr:`Result.references`.
        name: name of the submission in messages; its path by default.
        read: :func:`read_inputs`, or a cached version if many are scored on one release.

    Raises:
        SubmissionError: With all problems: it cannot be read, or is of another release, split
            or order.
        FormatError: If the release or the attributes cannot be read.
    """
    with open_submission(path, name) as submission:
        meta = submission.meta
        folder, known = Path(release), Path(attributes) if attributes else None
        inputs = read(folder, meta.split, meta.track, known)
        gallery, blind = inputs.gallery, round_of(folder, meta.split)
        if gallery.origin == "blind" and blind is not None and blind.closed:  # since it was read
            gallery = replace(gallery, origin="closed")
        scored = read_payload(submission, gallery, folder)
        return _result(submission, scored, replace(inputs, gallery=gallery))


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
    """Read the payload of a submission to a release; report all problems at once."""
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


def _result(submission: OpenSubmission, scored: Scored, inputs: ScoringInputs) -> Result:
    meta, gallery = submission.meta, inputs.gallery
    record = _record(scored, gallery)
    figures, aware = figures_of(record)
    notes: tuple[Note, ...] = ()
    if isinstance(scored.arrays, np.ndarray):
        notes = _distances(record) + followed(scored.arrays, inputs.labels)
    result = Result(
        **{field: getattr(meta, field) for field in Description.model_fields},
        n_pairs=len(gallery.caption_keys),
        n_images=len(gallery.image_keys),
        track=meta.track,
        split=meta.split,
        release=Release(origin=gallery.origin, fingerprint=gallery.fingerprint),
        duplicates=duplicates_of(gallery, aware.rsum),
        references=inputs.references,
        notes=notes,
        folds=_folds(scored, gallery),
        precision=scored.precision,
        payload_sha256=submission.sha256,
        evaluator=Evaluator(),
        ranks=record,
        **figures,
    )
    return round_blind_result(result) if gallery.origin == "blind" else result


def round_blind_result(result: Result) -> Result:
    """Round the result of an open blind round, so that it does not reveal the pairing.

    Recalls and sums are in steps of about a standard error (:func:`steps_of`), and what is left of
    the figures is empty: from exact ones the pairing can be worked out, file by file.
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
    reason = LISTS_REASON if result.precision is None else TIES_REASON
    told = {"notes": notes, "ranks": None, "folds": None, "reason": result.reason and reason}
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


def _record(scored: Scored, gallery: Gallery) -> RankRecord:
    """Record all ranks, captions in the order of their images."""
    columns = np.argsort(gallery.owner, kind="stable")
    rows = np.arange(len(gallery.image_keys))

    def ordered(ranks: tuple[Ranks, Ranks]) -> tuple[QueryRanks, QueryRanks]:
        return query_ranks(ranks[0], rows), query_ranks(ranks[1], columns)

    i2t, t2i = ordered(scored.ranks)
    aware = explained = None
    groups = gallery.image_labels, gallery.caption_labels, gallery.owner
    if any(len(np.unique(labels)) < len(labels) for labels in groups[:2]):
        if isinstance(scored.arrays, np.ndarray):
            aware = ordered(count_duplicate_aware(scored.arrays, *groups))
            rows_tied, columns_tied = explained_ties(scored.arrays, *groups)
            if rows_tied.any() or columns_tied.any():
                explained = tuple(rows_tied.tolist()), tuple(columns_tied[columns].tolist())
        else:
            aware = ordered(_right_in_lists(scored.arrays, gallery))
    own = None
    if len(columns) > len(rows):
        own = query_ranks(_own_ranks(scored, gallery.owner), columns)
    return RankRecord(
        i2t=i2t, t2i=t2i, duplicate_aware=aware, explained=explained, depth=scored.depth, own=own
    )


def _own_ranks(scored: Scored, owner: Labels) -> Ranks:
    """Return the ranks of all captions among those of their images' queries."""
    if isinstance(scored.arrays, np.ndarray):
        return count_own(scored.arrays, owner, scored.ranks[0])
    lists, none = scored.arrays[0], np.zeros(len(owner), np.int64)
    places = np.full(len(owner), lists.shape[1], np.int64)
    rows, found = np.nonzero(owner[lists] == np.arange(len(lists))[:, None])
    places[lists[rows, found]] = found
    return Ranks(places, none, none, none + 1)


def _right_in_lists(lists: tuple[Lists, Lists], gallery: Gallery) -> tuple[Ranks, Ranks]:
    i2t, t2i = lists
    rows, columns = (np.arange(n)[:, None] for n in gallery.shape)
    return (
        ranks_of_right(is_right(gallery, rows, i2t)),
        ranks_of_right(is_right(gallery, t2i, columns)),
    )


def is_right(
    gallery: Gallery, images: Integer[np.ndarray, "..."], captions: Integer[np.ndarray, "..."]
) -> Bool[np.ndarray, "..."]:
    """Return whether images and captions match if identical images and captions do."""
    texts, labels = gallery.caption_labels, gallery.image_labels
    same_text = _own_texts(texts, gallery.owner)[images, texts[captions]]
    return np.asarray(same_text | (labels[gallery.owner[captions]] == labels[images]))


def _own_texts(texts: Labels, owner: Labels) -> Bool[np.ndarray, "images texts"]:
    """Return whether an image has a caption of that text."""
    found = np.zeros((int(owner.max()) + 1, int(texts.max()) + 1), np.bool_)
    found[owner, texts] = True
    return found


def figures_of(record: RankRecord) -> tuple[dict[str, Any], Recalls]:
    """Compute every figure of a result that follows from its ranks, by the field's name.

    Returns:
        The figures, and the recalls with identical candidates right too.
    """
    owner = record.owner()
    strict = aware = summarise(*record.read(), owner, record.depth, record.read_own())
    if record.duplicate_aware is not None:
        i2t, t2i = (way.read() for way in record.duplicate_aware)
        aware = summarise(i2t, t2i, owner, record.depth)
    width = unexplained = tie_width(strict.ranks)
    if record.explained is not None:
        rows, columns = (np.array(way) for way in record.explained)
        unexplained = tie_width(strict.ranks, (rows, columns))
    low, high, deviation = bootstrap_rsum(strict.per_image)
    reason = LISTS_REASON if record.depth is not None else _reason(unexplained)
    tied = [int(np.count_nonzero(way.equal)) for way in strict.ranks]
    figures = {
        "rsum": strict.rsum,
        "ranked": reason is None,
        "reason": reason,
        "i2t": direction_of(strict.i2t, aware.i2t, tied[0]),
        "t2i": direction_of(strict.t2i, aware.t2i, tied[1]),
        "rsum_interval": _rounded((low, high)),
        "rsum_deviation": round(deviation, 4),
        "rsum_optimistic": strict.rsum_optimistic,
        "rsum_pessimistic": strict.rsum_pessimistic,
        "rsum_argsort": strict.rsum_argsort,
        "ties": Ties(width=width, unexplained_width=unexplained),
    }
    return figures, aware


def _reason(unexplained: float) -> str | None:
    if unexplained <= MAX_TIE_WIDTH:
        return None
    return (
        f"ties decide {unexplained:.1f} rSum points (between identical captions or images apart),"
        f" expected {MAX_TIE_WIDTH:g} at most"
    )


def direction_of(strict: OneWay, aware: OneWay, tied_queries: Count) -> Direction:
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
    same = (images[:, None] == images[owner]) | _own_texts(texts, owner)[:, texts]
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


def _folds(scored: Scored, gallery: Gallery) -> Folds | None:
    """Average MS-COCO's 1K folds; None if the split is small or has one caption per image."""
    images, captions = gallery.shape
    if not isinstance(scored.arrays, np.ndarray) or captions == images or images < 2 * FOLD:
        return None
    return folds_of(fold_ranks(scored.arrays, gallery.owner, FOLD), FOLD)


def fold_ranks(similarity: Matrix, owner: Labels, size: int) -> RankRecord:
    """Rank within consecutive folds of ``size`` images."""
    folds = fold_recalls(similarity, owner, size)
    i2t, t2i = (_joined([fold.ranks[way] for fold in folds]) for way in (0, 1))
    owners = [owner[owner // size == fold] for fold in range(len(folds))]
    order = np.argsort(np.concatenate(owners), kind="stable")
    rows = np.arange(len(i2t.greater))
    return RankRecord(i2t=query_ranks(i2t, rows), t2i=query_ranks(t2i, order))


def _joined(parts: Sequence[Ranks]) -> Ranks:
    columns = ([getattr(part, field.name) for part in parts] for field in fields(Ranks))
    return Ranks(*map(np.concatenate, columns))


def folds_of(record: RankRecord, size: int) -> Folds:
    """Compute the figures of folds from the ranks within them.

    Folds are of one size, so that the mean over folds is the mean over all their images, and
    resampling draws from all of these.
    """
    i2t, t2i = record.read()
    mean = summarise(i2t, t2i, record.owner())
    return Folds(
        size=size,
        count=len(i2t.greater) // size,
        i2t=AtCutoffs(**_at(mean.i2t.recall)),
        t2i=AtCutoffs(**_at(mean.t2i.recall)),
        rsum=mean.rsum,
        rsum_interval=_rounded(bootstrap_rsum(mean.per_image)[:2]),
        ranks=record,
    )
