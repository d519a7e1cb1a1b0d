"""The evaluator: submission → ranks → figures → result; deterministic to the byte."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Bool

from leaderboard.core.rounds import SCORED_SPLITS
from leaderboard.core.uncertainty import (
    Comparison,
    bootstrap_rsum,
    clustered_interval,
    compare,
    difference_of,
    recall_interval,
)
from leaderboard.metrics import (
    CUTOFFS,
    MAX_TIE_WIDTH,
    Labels,
    Matrix,
    OneWay,
    Ranks,
    Recalls,
    count_duplicate_aware,
    count_own_captions,
    count_ranks,
    expected_hits,
    explained_ties,
    recalls,
    steps_of,
    summarise,
    tie_width,
    to_step,
)
from leaderboard.scoring.references import chance_rsum, references_of
from leaderboard.scoring.result import (
    AtCutoffs,
    Direction,
    Duplicates,
    Evaluator,
    Intervals,
    Note,
    QueryRanks,
    RankRecord,
    Release,
    Result,
    Ties,
    query_ranks,
)
from leaderboard.scoring.within import (
    GROUPINGS,
    figures_of_groups,
    owners_of,
    plausible,
    units_within,
)
from leaderboard.submission.archive import Description, OpenSubmission, Submission, open_submission
from leaderboard.submission.gallery import Gallery, read_gallery, repeated
from leaderboard.submission.untrusted import Problem, Problems
from now_builder.errors import ConfigError, NowError

_FAR_ABOVE = 3.0
"""Note ``distances``: how many times chance a reversed matrix reaches."""

_TIES_REASON = f"ties decide more than {MAX_TIE_WIDTH:g} rSum points"
"""Why a matrix of an open blind round is not ranked."""

_LEFT_OUT = {"median_rank", "mean_rank", "mrr", "ndcg", "tied_queries"}
"""Figures of a direction that the result of an open blind round does not have."""

Figure = TypeVar("Figure")


def score(path: Path | str, release: Path | str, attributes: Path | str | None = None) -> Result:
    """Score a submission against a release.

    Args:
        path: the submission.
        release: the release that it is made on; for a blind round, the judge's folder.
        attributes: CSV or Parquet with languages and topics of pages, for
            :attr:`Result.references`.

    Raises:
        SubmissionError: With all problems: it cannot be read, or is of another release, split
            or order.
        FormatError: If the release or the attributes cannot be read.
    """
    with open_submission(path) as submission:
        meta, folder = submission.meta, Path(release)
        gallery = read_gallery(folder, meta.split, meta.track)
        matrix = read_payload(submission, gallery, folder)
    record = record_of(matrix, gallery)
    figures = figures_of(record, duplicates_of(gallery)) | {"precision": matrix.dtype.name}
    known = Path(attributes) if attributes else None
    result = Result(
        **{field: getattr(meta, field) for field in Description.model_fields},
        track=meta.track,
        split=meta.split,
        release=Release(origin=gallery.origin, fingerprint=gallery.fingerprint),
        references=references_of(folder, gallery, meta.split, known),
        notes=_distances(record),
        payload_sha256=submission.sha256,
        evaluator=Evaluator(),
        ranks=record,
        **figures,
        **figures_of_groups(matrix, gallery),
    )
    return round_blind_result(result) if gallery.origin == "blind" else result


def check_submission(path: Path, release: Path) -> tuple[Submission, int]:
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


def read_payload(submission: OpenSubmission, gallery: Gallery, release: Path) -> Matrix:
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
        matrix = submission.read(gallery)
    problems.refuse_any()
    return matrix


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


def record_of(similarity: Matrix, gallery: Gallery) -> RankRecord:
    """Record all ranks of a matrix, captions in the order of their images."""
    columns = np.argsort(gallery.owner, kind="stable")
    rows = np.arange(len(gallery.image_keys))

    def ordered(ways: tuple[Ranks, Ranks]) -> tuple[QueryRanks, QueryRanks]:
        return query_ranks(ways[0], rows), query_ranks(ways[1], columns)

    ranks = count_ranks(similarity, gallery.owner)
    i2t, t2i = ordered(ranks)
    aware = explained = own = None
    groups = gallery.image_labels, gallery.caption_labels, gallery.owner
    if any(len(np.unique(labels)) < len(labels) for labels in groups[:2]):
        aware = ordered(count_duplicate_aware(similarity, *groups))
        rows_tied, columns_tied = explained_ties(similarity, *groups)
        if rows_tied.any() or columns_tied.any():
            explained = tuple(rows_tied.tolist()), tuple(columns_tied[columns].tolist())
    if len(columns) > len(rows):
        own = query_ranks(count_own_captions(similarity, gallery.owner, ranks[0]), columns)
    return RankRecord(
        i2t=i2t, t2i=t2i, duplicate_aware=aware, explained=explained, own=own,
        site_owners=owners_of(gallery),
    )  # fmt: skip


def figures_of(record: RankRecord, duplicates: Duplicates) -> dict[str, Any]:
    """Compute every figure of a result that follows from its ranks, by the field's name.

    ``duplicates`` are those of the split; their rSum is computed.
    """
    owner, (rows, columns) = record.owner(), record.clusters()
    strict = aware = summarise(*record.read(), owner, record.read_own())
    if record.duplicate_aware is not None:
        i2t, t2i = record.duplicate_aware
        aware = summarise(i2t.read(), t2i.read(), owner)
    width = unexplained = tie_width(strict.ranks)
    if record.explained is not None:
        forgiven = np.array(record.explained[0]), np.array(record.explained[1])
        unexplained = tie_width(strict.ranks, forgiven)
    low, high, deviation = bootstrap_rsum(strict.per_image, owners=rows)
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
        "i2t": _direction(strict.i2t, aware.i2t, tied[0], strict.ranks[0], rows),
        "t2i": _direction(strict.t2i, aware.t2i, tied[1], strict.ranks[1], columns),
        "rsum_interval": _rounded((low, high)),
        "rsum_deviation": round(deviation, 4),
        "rsum_optimistic": strict.rsum_optimistic,
        "rsum_pessimistic": strict.rsum_pessimistic,
        "rsum_argsort": strict.rsum_argsort,
        "ties": Ties(width=width, unexplained_width=unexplained),
        "duplicates": duplicates.model_copy(update={"rsum": aware.rsum}),
    }


def _direction(
    strict: OneWay, aware: OneWay, tied_queries: int, ranks: Ranks, owners: Labels | None
) -> Direction:
    """Make the record of one direction; ``aware`` counts identical candidates as right too."""

    def interval(cutoff: int) -> tuple[float, float]:
        if owners is not None:
            return _rounded(clustered_interval(expected_hits(ranks, cutoff), owners))
        return _rounded(recall_interval(float(strict.hits[cutoff]), strict.n_queries))

    return Direction(
        **_at(strict.recall),
        hits={f"R@{cutoff}": str(strict.hits[cutoff]) for cutoff in CUTOFFS},
        optimistic=AtCutoffs(**_at(strict.optimistic)),
        pessimistic=AtCutoffs(**_at(strict.pessimistic)),
        interval=Intervals(**_at(interval)),
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


def duplicates_of(gallery: Gallery) -> Duplicates:
    """Count a gallery's duplicates; the rSum with every duplicate right is left at 0."""
    return Duplicates(
        captions=repeated(gallery.caption_labels),
        images=repeated(gallery.image_labels),
        ceiling_rsum=ceiling(gallery).rsum,
        rsum=0,
    )


def ceiling(gallery: Gallery) -> Recalls:
    """Return the recalls of a perfect scorer that gives identical items equal scores."""
    images, texts, owner = gallery.image_labels, gallery.caption_labels, gallery.owner
    own_texts: Bool[np.ndarray, "images texts"] = np.zeros(
        (len(images), int(texts.max()) + 1), np.bool_
    )
    own_texts[owner, texts] = True
    same = (images[:, None] == images[owner]) | own_texts[:, texts]
    return recalls(same.astype(np.float32), owner)


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
    recall, points = steps_of(result.n_pairs)
    steps = {"i2t": recall, "t2i": recall, "duplicates": 0.1, "references": 0.1}
    tree = result.model_dump(exclude={"ranks", *GROUPINGS})
    for name in tree.keys() - Description.model_fields.keys():
        tree[name] = _in_steps(tree[name], steps.get(name, points))
    tree["duplicates"]["rsum"] = to_step(result.duplicates.rsum, points)
    message = "the judge of the blind round has the measure"
    tree["notes"] = tuple(Note(code=note.code, message=message) for note in result.notes)
    tree["reason"] = result.reason and _TIES_REASON
    return Result.model_validate(tree | dict.fromkeys(("ranks", *GROUPINGS)))


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
    one, other = first.ranks, second.ranks
    if one is None or other is None:
        raise ConfigError("ranks: none in the result of a blind round, expected those of both")
    for name, ranks in ((first.method.name, one), (second.method.name, other)):
        if not ranks.possible() or ranks.size != one.size:
            wanted = f"those of every query, as many as {one.size}"
            raise ConfigError(f"ranks ({name}): found some that no matrix has, expected {wanted}")
    if (one.site_owners or other.site_owners) != (other.site_owners or one.site_owners):
        raise ConfigError("site_owners: found others in both results, expected the same")
    owners = (one if one.site_owners else other).clusters()[0]
    whole = compare(one.read(), other.read(), one.owner(), owners)
    units = [
        units_within("within_site", own.ranks, own.spans)
        for own, ranks in ((first.within_site, one), (second.within_site, other))
        if own and own.ranks and plausible("within_site", own, ranks)
    ]
    if len(units) < 2 or len(units[0]) != len(units[1]):
        return whole
    return replace(whole, within_site=difference_of(units[0] - units[1]))
