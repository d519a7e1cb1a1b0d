"""Score submissions: ranks, then figures, then the result; deterministic to the byte."""

from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Bool

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
from leaderboard.submission.archive import Description, Submission, open_submission
from leaderboard.submission.gallery import Gallery, count_repeated, read_gallery
from now_builder.errors import ConfigError

_DISTANCES_FACTOR = 3.0
"""Note ``distances``: minimum rSum of the negated matrix, as a multiple of chance."""

_TIES_REASON = f"ties decide more than {MAX_TIE_WIDTH:g} rSum points"
"""Reason why a matrix of an open blind round is not ranked."""

_HIDDEN_IN_ROUND = {"median_rank", "mean_rank", "mrr", "ndcg", "tied_queries"}
"""Figures of a direction that the results of an open blind round do not contain."""

_RSUMS = ("rsum", "rsum_optimistic", "rsum_pessimistic", "rsum_argsort")
Figure = TypeVar("Figure")


def score(path: Path | str, release: Path | str, attributes: Path | str | None = None) -> Result:
    """Score a submission against a release.

    Args:
        path: the submission.
        release: the release of the submission; for a blind round, the judge's folder.
        attributes: CSV or Parquet with languages and topics of pages, for
            :attr:`Result.references`.

    Raises:
        SubmissionError: With all problems: it cannot be read, or belongs to another release,
            split or order.
        FormatError: If the release or the attributes cannot be read.
    """
    with open_submission(path) as submission:
        meta, folder = submission.meta, Path(release)
        gallery = read_gallery(folder, meta.split, meta.track)
        matrix = submission.read(gallery)
    record = record_of(matrix, gallery)
    attributes = Path(attributes) if attributes else None
    result = Result(
        **{field: getattr(meta, field) for field in Description.model_fields},
        track=meta.track,
        split=meta.split,
        release=Release(origin=gallery.origin, fingerprint=gallery.fingerprint),
        references=references_of(folder, gallery, meta.split, attributes),
        notes=_distances(record),
        precision=matrix.dtype.name,
        payload_sha256=submission.sha256,
        evaluator=Evaluator(),
        ranks=record,
        **figures_of(record, duplicates_of(gallery)),
        **figures_of_groups(matrix, gallery),
    )
    return round_blind_result(result) if gallery.origin == "blind" else result


def check_submission(path: Path, release: Path) -> tuple[Submission, int]:
    """Check all that :func:`score` checks; return the description and the number of pairs."""
    with open_submission(path) as submission:
        meta = submission.meta
        gallery = read_gallery(release, meta.split, meta.track, unpaired=True)
        submission.read(gallery)
        return meta, len(gallery.caption_keys)


def record_of(similarity: Matrix, gallery: Gallery) -> RankRecord:
    """Record all ranks of a matrix, captions in the order of their images."""
    columns = np.argsort(gallery.owner, kind="stable")
    labels = gallery.image_labels, gallery.caption_labels, gallery.owner
    i2t, t2i = count_ranks(similarity, gallery.owner)
    aware = explained = captions = None
    if any(map(count_repeated, labels[:2])):
        aware_i2t, aware_t2i = count_duplicate_aware(similarity, *labels)
        aware = query_ranks(aware_i2t), query_ranks(aware_t2i.take(columns))
        ties = explained_ties(similarity, *labels)
        if any(way.any() for way in ties):
            explained = tuple(ties[0].tolist()), tuple(ties[1][columns].tolist())
    if len(columns) > len(similarity):
        captions = query_ranks(count_own_captions(similarity, gallery.owner, i2t).take(columns))
    return RankRecord(
        i2t=query_ranks(i2t),
        t2i=query_ranks(t2i.take(columns)),
        duplicate_aware=aware,
        explained=explained,
        own=captions,
        site_owners=owners_of(gallery),
    )


def figures_of(record: RankRecord, duplicates: Duplicates) -> dict[str, Any]:
    """Compute the figures of a result that its ranks determine, by field.

    ``duplicates`` describes the split; its rSum is replaced.
    """
    owner, (rows, columns) = record.owner(), record.clusters()
    strict = aware = summarise(*record.read(), owner, record.read_own())
    if record.duplicate_aware is not None:
        i2t, t2i = record.duplicate_aware
        aware = summarise(i2t.read(), t2i.read(), owner)
    width = unexplained = tie_width(strict.ranks)
    if record.explained is not None:
        explained = np.array(record.explained[0]), np.array(record.explained[1])
        unexplained = tie_width(strict.ranks, explained)
    low, high, deviation = bootstrap_rsum(strict.per_image, owners=rows)
    reason = None
    if unexplained > MAX_TIE_WIDTH:
        reason = (
            f"ties decide {unexplained:.1f} rSum points (between identical captions or images"
            f" apart), expected {MAX_TIE_WIDTH:g} at most"
        )
    return {
        "n_images": len(strict.ranks[0].greater),
        "n_pairs": len(owner),
        **{name: getattr(strict, name) for name in _RSUMS},
        "ranked": reason is None,
        "reason": reason,
        "i2t": _direction(strict.i2t, aware.i2t, strict.ranks[0], rows),
        "t2i": _direction(strict.t2i, aware.t2i, strict.ranks[1], columns),
        "rsum_interval": _rounded((low, high)),
        "rsum_deviation": round(deviation, 4),
        "ties": Ties(width=width, unexplained_width=unexplained),
        "duplicates": duplicates.model_copy(update={"rsum": aware.rsum}),
    }


def _direction(strict: OneWay, aware: OneWay, ranks: Ranks, owners: Labels | None) -> Direction:
    """Make the record of one direction; in ``aware`` duplicates count as right."""

    def interval(cutoff: int) -> tuple[float, float]:
        if owners is not None:
            return _rounded(clustered_interval(expected_hits(ranks, cutoff), owners))
        return _rounded(recall_interval(float(strict.hits[cutoff]), strict.n_queries))

    return Direction(
        **_by_cutoff(strict.recall),
        **{name: getattr(strict, name) for name in ("median_rank", "mean_rank", "mrr", "ndcg")},
        hits={f"R@{cutoff}": str(strict.hits[cutoff]) for cutoff in CUTOFFS},
        optimistic=AtCutoffs(**_by_cutoff(strict.optimistic)),
        pessimistic=AtCutoffs(**_by_cutoff(strict.pessimistic)),
        interval=Intervals(**_by_cutoff(interval)),
        duplicate_aware=AtCutoffs(**_by_cutoff(aware.recall)),
        tied_queries=int(np.count_nonzero(ranks.equal)),
    )


def _by_cutoff(figure: Callable[[int], Figure]) -> dict[str, Figure]:
    return {f"r{cutoff}": figure(cutoff) for cutoff in CUTOFFS}


def _rounded(interval: tuple[float, float]) -> tuple[float, float]:
    return round(interval[0], 4), round(interval[1], 4)


def duplicates_of(gallery: Gallery) -> Duplicates:
    """Count the duplicates of a gallery; the rSum of the submission is left at 0."""
    return Duplicates(
        captions=count_repeated(gallery.caption_labels),
        images=count_repeated(gallery.image_labels),
        ceiling_rsum=ceiling(gallery).rsum,
        rsum=0,
    )


def ceiling(gallery: Gallery) -> Recalls:
    """Return the recalls of a perfect scorer that gives identical items equal scores."""
    images, texts, owner = gallery.image_labels, gallery.caption_labels, gallery.owner
    shape = len(images), int(texts.max()) + 1
    described: Bool[np.ndarray, "images texts"] = np.zeros(shape, np.bool_)
    described[owner, texts] = True
    same = (images[:, None] == images[owner]) | described[:, texts]
    return recalls(same.astype(np.float32), owner)


def _distances(record: RankRecord) -> tuple[Note, ...]:
    """Note a matrix that scores below chance, and whose negative scores far above chance."""
    (images, captions), owner, (i2t, t2i) = record.size, record.owner(), record.read()
    rsum, chance = summarise(i2t, t2i, owner).rsum, chance_rsum(images, captions)
    negated = summarise(_negate(i2t, captions), _negate(t2i, images), owner).rsum
    if rsum >= chance or negated < _DISTANCES_FACTOR * chance:
        return ()
    message = (
        f"rSum is {rsum:.1f}, that of the reversed matrix {negated:.1f}, by chance {chance:.1f}:"
        " are these distances? Similarities rise with likeness: -distances"
    )
    return (Note(code="distances", message=message),)


def _negate(ranks: Ranks, candidates: int) -> Ranks:
    """Return the ranks for negated similarities; exact for one right candidate a query."""
    greater = candidates - ranks.greater - ranks.equal - ranks.right
    return Ranks(greater, ranks.equal, np.zeros_like(ranks.later), ranks.right)


def round_blind_result(result: Result) -> Result:
    """Round the result of an open blind round, so that it does not reveal the pairing.

    Recalls and sums are rounded to steps of about a standard error (:func:`steps_of`); all other
    figures are left out. Exact figures of many files would reveal the pairing.
    """
    recall, points = steps_of(result.n_pairs)
    steps = {"i2t": recall, "t2i": recall, "duplicates": 0.1, "references": 0.1}
    tree = result.model_dump(exclude={"ranks", *GROUPINGS})
    for name in tree.keys() - Description.model_fields.keys():
        tree[name] = _round_tree(tree[name], steps.get(name, points))
    tree["duplicates"]["rsum"] = to_step(result.duplicates.rsum, points)
    message = "the judge of the blind round has the measure"
    tree["notes"] = tuple(Note(code=note.code, message=message) for note in result.notes)
    tree["reason"] = result.reason and _TIES_REASON
    return Result.model_validate(tree | dict.fromkeys(("ranks", *GROUPINGS)))


def _round_tree(value: Any, step: float, name: str = "") -> Any:
    if isinstance(value, dict):
        return {} if name == "hits" else {k: _round_tree(v, step, k) for k, v in value.items()}
    if isinstance(value, tuple):
        return tuple(_round_tree(item, step) for item in value)
    if name in _HIDDEN_IN_ROUND:
        return None
    return to_step(value, step) if isinstance(value, float) else value


def compare_results(first: Result, second: Result) -> Comparison:
    """Compare two results on the same queries.

    Raises:
        ConfigError: If track, split, release or number of queries differ, or if a result has no
            ranks or impossible ones.
    """
    names = first.method.name, second.method.name
    for field in ("track", "split", "release.fingerprint"):
        left, right = (attrgetter(field)(result) for result in (first, second))
        if left != right:
            problem = f"found {left[:16]} ({names[0]}) and {right[:16]} ({names[1]})"
            raise ConfigError(f"{field}: {problem}, expected the same queries")
    one, other = first.ranks, second.ranks
    if one is None or other is None:
        raise ConfigError("ranks: missing, as in results of a blind round. Score both again")
    for name, ranks in zip(names, (one, other), strict=True):
        if not ranks.possible() or ranks.size != one.size:
            expected = f"those of every query, as many as {one.size}"
            raise ConfigError(f"ranks ({name}): found some that no matrix has, expected {expected}")
    if (one.site_owners or other.site_owners) != (other.site_owners or one.site_owners):
        raise ConfigError("site_owners: the two results differ, expected the same")
    owners = (one if one.site_owners else other).clusters()[0]
    comparison = compare(one.read(), other.read(), one.owner(), owners)
    sites = [
        units_within("within_site", within.ranks, within.spans)
        for within, ranks in ((first.within_site, one), (second.within_site, other))
        if within and within.ranks and plausible("within_site", within, ranks)
    ]
    if len(sites) < 2 or len(sites[0]) != len(sites[1]):
        return comparison
    return replace(comparison, within_site=difference_of(sites[0] - sites[1]))
