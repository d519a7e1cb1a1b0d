"""The evaluator: a submission and a release in, a result out; the same input, the same bytes."""

import json
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import numpy as np
from jaxtyping import Float, Integer
from pydantic import ConfigDict, Field

from leaderboard.metrics import (
    CUTOFFS,
    OneWay,
    Recalls,
    count_duplicate_aware,
    explained_ties,
    recalls,
    summarise,
    tie_width,
)
from leaderboard.references import references
from leaderboard.submission import (
    Description,
    OpenSubmission,
    ScoredSplit,
    Sha256,
    Submission,
    open_submission,
)
from leaderboard.uncertainty import REPLICATES, SEED, bootstrap_rsum, wilson
from now_builder.config import Strict
from now_builder.errors import SubmissionError
from now_builder.formats.captions import Tokenizer
from now_builder.formats.release import Captions, is_ours, read_split_captions

VERSION = "1"
"""Of the evaluator: raised whenever a score could change."""

MAX_TIE_WIDTH = 5.0
"""rSum points that ties may decide in a ranked result."""

Percent = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
Points = Annotated[float, Field(ge=0, le=600, allow_inf_nan=False)]
Rank = Annotated[float, Field(ge=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
Value = TypeVar("Value")


class _Record(Strict):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class AtCutoffs(_Record):
    """R@1, R@5 and R@10 in percent."""

    r1: Percent = Field(alias="R@1")
    r5: Percent = Field(alias="R@5")
    r10: Percent = Field(alias="R@10")

    def values(self) -> tuple[float, float, float]:
        """Give them in order."""
        return self.r1, self.r5, self.r10


class Intervals(_Record):
    """95 % intervals of the recalls, in percent: low, high."""

    r1: tuple[Percent, Percent] = Field(alias="R@1")
    r5: tuple[Percent, Percent] = Field(alias="R@5")
    r10: tuple[Percent, Percent] = Field(alias="R@10")

    def values(self) -> tuple[tuple[float, float], ...]:
        """Give them in order."""
        return self.r1, self.r5, self.r10


class Direction(AtCutoffs):
    """One direction's figures.

    Attributes:
        hits: Expected hits as exact fractions, by cutoff.
        optimistic: If every tie were won.
        pessimistic: If every tie were lost.
        interval: Wilson's, 95 %.
        duplicate_aware: If every pair of an identical caption or image were right too.
        median_rank: From 1, rounded as the field does.
        mean_rank: From 1.
        mrr: In [0, 1].
        tied_queries: Queries whose right candidate ties with another one.
    """

    hits: dict[str, str]
    optimistic: AtCutoffs
    pessimistic: AtCutoffs
    interval: Intervals
    duplicate_aware: AtCutoffs
    median_rank: Rank = Field(alias="medR")
    mean_rank: Rank = Field(alias="meanR")
    mrr: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = Field(alias="MRR")
    tied_queries: Count


class Ties(_Record):
    """What ties decide, in rSum points: the optimistic value less the pessimistic one.

    Attributes:
        unexplained_width: Without ties between identical captions or identical images.
    """

    width: Points
    unexplained_width: Points


class Duplicates(_Record):
    """Identical captions and images in the split.

    Attributes:
        captions: Pairs whose token line occurs more than once.
        images: Pairs whose image features occur more than once.
        ceiling_rsum: What a perfect scorer that cannot tell them apart reaches.
        rsum: This submission's rSum where every one of them counts as right.
    """

    captions: Count
    images: Count
    ceiling_rsum: Points
    rsum: Points


class Evaluator(_Record):
    """What computed the result."""

    name: Literal["now-leaderboard"] = "now-leaderboard"
    version: str = VERSION
    bootstrap_replicates: int = REPLICATES
    bootstrap_seed: int = SEED


class Release(_Record):
    """What the submission was scored against.

    Attributes:
        origin: ``rebuilt`` by this toolkit, or ``archive``: the published layout without keys.
        fingerprint: Of the (split, track).
    """

    origin: Literal["rebuilt", "archive"]
    fingerprint: Sha256


class Result(Description, _Record):
    """``result.json``: every figure of a scored submission. Immutable.

    Attributes:
        rsum: 0 to 600, ties by expectation, rounded once from the exact value.
        ranked: Whether it stands on the board with a place.
        reason: Why not, if not.
        rsum_interval: 95 %, bootstrap over pairs, both directions jointly.
        rsum_deviation: Standard error by the same.
        rsum_argsort: What a stable ``argsort(...)[::-1]`` gives: the field's value.
        references: rSum of scorers that know nothing (``chance``), the language, language and
            topic.
        precision: The float type that the matrix was stored in.
        payload_sha256: Of the submission's zip.
    """

    format: Literal["now-result/1"] = "now-result/1"
    rsum: Points
    n_pairs: Annotated[int, Field(ge=1)]
    ranked: bool
    reason: str | None
    track: Tokenizer
    split: ScoredSplit
    release: Release
    i2t: Direction
    t2i: Direction
    rsum_interval: tuple[Points, Points]
    rsum_deviation: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    rsum_optimistic: Points
    rsum_pessimistic: Points
    rsum_argsort: Points
    ties: Ties
    duplicates: Duplicates
    references: dict[str, Points]
    precision: Literal["float16", "float32", "float64"]
    payload_sha256: Sha256
    evaluator: Evaluator

    def to_json(self) -> str:
        """Give the text of the result file."""
        tree = self.model_dump(mode="json", by_alias=True)
        inherited = {name: tree.pop(name) for name in Description.model_fields}
        tree = {"format": tree.pop("format"), "method": inherited.pop("method"), **tree}
        return json.dumps(tree | inherited, ensure_ascii=False, allow_nan=False, indent=2) + "\n"


def score(
    path: Path, release: Path, truth: Path | None = None, *, name: str | None = None
) -> Result:
    """Score a submission against a release.

    Args:
        path: The submission.
        release: The very one that it was made for.
        truth: CSV or Parquet with languages and topics, for :attr:`Result.references`.
        name: What messages call the submission; its path if not given.

    Raises:
        SubmissionError: If the submission cannot be read, or is of another release, split or order.
        FormatError: If the release or the truth file cannot be read.
    """
    with open_submission(path, name) as submission:
        meta = submission.meta
        captions = read_split_captions(release, meta.split, meta.track)
        _check_fingerprint(meta, captions, release)
        similarity = submission.read_similarity(captions.keys)
        known = references(release, meta.split, len(captions.keys), truth)
        origin: Literal["rebuilt", "archive"] = "rebuilt" if is_ours(release) else "archive"
        return _result(submission, similarity, _Judged(captions, known, origin))


def validate(path: Path, release: Path) -> tuple[Submission, int]:
    """Check all that :func:`score` checks.

    Returns:
        The description, and the number of pairs.

    Raises:
        SubmissionError: If the submission cannot be read, or is of another release, split or order.
        FormatError: If the release cannot be read.
    """
    with open_submission(path) as submission:
        meta = submission.meta
        captions = read_split_captions(release, meta.split, meta.track)
        _check_fingerprint(meta, captions, release)
        submission.read_similarity(captions.keys)
        return meta, len(captions.keys)


@dataclass(frozen=True, slots=True)
class _Judged:
    captions: Captions
    references: dict[str, float]
    origin: Literal["rebuilt", "archive"]


def _check_fingerprint(meta: Submission, captions: Captions, release: Path) -> None:
    if meta.dataset_fingerprint != captions.fingerprint:
        raise SubmissionError(
            f"dataset_fingerprint: found {meta.dataset_fingerprint[:16]}…, expected"
            f" {captions.fingerprint[:16]}… ({meta.split} of {release.name}, track {meta.track}):"
            " it was made on another release"
        )


def _result(
    submission: OpenSubmission, similarity: Float[np.ndarray, "pairs pairs"], judged: _Judged
) -> Result:
    captions = judged.captions
    images, texts = _labels(captions.images), _labels(map(tuple, captions.captions))
    found = recalls(similarity)
    width = tie_width(found.ranks)
    unexplained = width and tie_width(found.ranks, explained_ties(similarity, images, texts))
    aware = summarise(*count_duplicate_aware(similarity, images, texts))
    interval = bootstrap_rsum(found.per_pair)
    meta = submission.meta
    return Result(
        **{field: getattr(meta, field) for field in Description.model_fields},
        rsum=found.rsum,
        n_pairs=len(captions.keys),
        ranked=unexplained <= MAX_TIE_WIDTH,
        reason=_reason(unexplained),
        track=meta.track,
        split=meta.split,
        release=Release(origin=judged.origin, fingerprint=captions.fingerprint),
        i2t=_direction(found.i2t, aware.i2t, int(np.count_nonzero(found.ranks[0].equal))),
        t2i=_direction(found.t2i, aware.t2i, int(np.count_nonzero(found.ranks[1].equal))),
        rsum_interval=_rounded((interval.low, interval.high)),
        rsum_deviation=round(interval.deviation, 4),
        rsum_optimistic=found.rsum_optimistic,
        rsum_pessimistic=found.rsum_pessimistic,
        rsum_argsort=found.rsum_argsort,
        ties=Ties(width=width, unexplained_width=unexplained),
        duplicates=_duplicates(images, texts, aware),
        references=judged.references,
        precision=submission.precision(),
        payload_sha256=submission.sha256,
        evaluator=Evaluator(),
    )


def _reason(unexplained: float) -> str | None:
    if unexplained <= MAX_TIE_WIDTH:
        return None
    return (
        f"ties decide {unexplained:.1f} rSum points (between identical captions or images apart),"
        f" expected {MAX_TIE_WIDTH:g} at most"
    )


def _direction(strict: OneWay, aware: OneWay, tied_queries: int) -> Direction:
    return Direction(
        **_at(strict.recall),
        hits={f"R@{cutoff}": str(strict.hits[cutoff]) for cutoff in CUTOFFS},
        optimistic=AtCutoffs(**_at(strict.optimistic)),
        pessimistic=AtCutoffs(**_at(strict.pessimistic)),
        interval=Intervals(
            **_at(lambda k: _rounded(wilson(float(strict.hits[k]), strict.n_pairs)))
        ),
        duplicate_aware=AtCutoffs(**_at(aware.recall)),
        median_rank=strict.median_rank,
        mean_rank=strict.mean_rank,
        mrr=strict.mrr,
        tied_queries=tied_queries,
    )


def _at(figure: Callable[[int], Value]) -> dict[str, Value]:
    return {f"r{cutoff}": figure(cutoff) for cutoff in CUTOFFS}


def _rounded(interval: tuple[float, float]) -> tuple[float, float]:
    return round(interval[0], 4), round(interval[1], 4)


def _labels(values: Iterable[Hashable]) -> Integer[np.ndarray, " pairs"]:
    """Number equal values alike."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], dtype=np.int64)


def _duplicates(
    images: Integer[np.ndarray, " pairs"], texts: Integer[np.ndarray, " pairs"], aware: Recalls
) -> Duplicates:
    counts = [int(np.sum(np.bincount(labels)[labels] > 1)) for labels in (texts, images)]
    ceiling = 600.0 if not any(counts) else recalls(_indistinct(images, texts)).rsum
    return Duplicates(captions=counts[0], images=counts[1], ceiling_rsum=ceiling, rsum=aware.rsum)


def _indistinct(
    images: Integer[np.ndarray, " pairs"], texts: Integer[np.ndarray, " pairs"]
) -> Float[np.ndarray, "pairs pairs"]:
    same = (images[:, None] == images) | (texts[:, None] == texts)
    return np.asarray(same, dtype=np.float32)
