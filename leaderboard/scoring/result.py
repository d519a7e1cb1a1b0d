"""``result.json``: every figure of a scored submission, and the ranks that they follow from."""

import json
from typing import Annotated, Literal

import numpy as np
from jaxtyping import Integer
from pydantic import ConfigDict, Field

from leaderboard.core.tracks import Origin, ScoredSplit, Track
from leaderboard.core.uncertainty import REPLICATES, SEED
from leaderboard.metrics import Labels, Ranks
from leaderboard.submission.archive import Description, Precision
from now_builder.config import Sha256, Strict

VERSION = "2"
"""Of the evaluator: raised whenever a score could change."""

Percent = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
Points = Annotated[float, Field(ge=0, le=600, allow_inf_nan=False)]
Rank = Annotated[float, Field(ge=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=2**40)]
Counts = tuple[Count, ...]


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
        hits: Expected hits as exact fractions, by cutoff; none in a blind round, whose pairing they
            could spell.
        optimistic: If every tie were won.
        pessimistic: If every tie were lost.
        interval: Wilson's, 95 %.
        duplicate_aware: If every pair of an identical caption or image were right too.
        median_rank: From 1, rounded as the field does. None where ranked lists end before it.
        mean_rank: From 1. None where a ranked list ends before the right candidate.
        mrr: In [0, 1]. None likewise.
        tied_queries: Queries whose right candidate ties with a wrong one.
    """

    hits: dict[str, str]
    optimistic: AtCutoffs
    pessimistic: AtCutoffs
    interval: Intervals
    duplicate_aware: AtCutoffs
    median_rank: Rank | None = Field(alias="medR")
    mean_rank: Rank | None = Field(alias="meanR")
    mrr: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = Field(alias="MRR")
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
        captions: Captions that occur more than once.
        images: Images whose features occur more than once.
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
        origin: ``rebuilt`` by this toolkit; ``archive``: the published layout without keys;
            ``field``: another data set as the field stores it; ``blind``: a round whose pairing
            only its judge had; ``closed``: the same after it was published.
        fingerprint: Of the (split, track).
    """

    origin: Origin
    fingerprint: Sha256


class Flag(_Record):
    """Something that a reader should look at; it never changes the score.

    Attributes:
        code: Stable name for machines, such as ``one-to-one``.
        message: What was measured, and from where it is flagged.
    """

    code: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,40}$")]
    message: Annotated[str, Field(max_length=300)]


class QueryRanks(_Record):
    """The ranks of one direction's queries; what is the same for all is left out.

    Attributes:
        greater: Candidates above each query's best right one.
        equal: Wrong candidates beside it; empty where there is none anywhere.
        later: Of these, those later in the gallery; empty likewise.
        right: Right candidates at its similarity; empty where there is one everywhere.
    """

    greater: Counts
    equal: Counts = ()
    later: Counts = ()
    right: Counts = ()

    def read(self) -> Ranks:
        """Give them as arrays."""
        n = len(self.greater)
        filled = ((self.equal, 0), (self.later, 0), (self.right, 1))
        return Ranks(
            np.array(self.greater, np.int64),
            *(np.array(given or (usual,) * n, np.int64) for given, usual in filled),
        )


def query_ranks(ranks: Ranks, order: Labels) -> QueryRanks:
    """Put ranks down.

    Args:
        ranks: Of one direction.
        order: Of the queries in the record.
    """

    def packed(values: Integer[np.ndarray, " queries"], usual: int) -> Counts:
        return () if (values == usual).all() else tuple(values[order].tolist())

    return QueryRanks(
        greater=tuple(ranks.greater[order].tolist()),
        equal=packed(ranks.equal, 0),
        later=packed(ranks.later, 0),
        right=packed(ranks.right, 1),
    )


class RankRecord(_Record):
    """Every rank that the figures follow from; captions stand in the order of their images.

    Attributes:
        i2t: Of images as queries.
        t2i: Of captions.
        duplicate_aware: The same where identical captions and images count as right; None where
            the split has none, or it is the same.
        explained: Ties of each query that identical captions or images force; None where none.
        depth: Where ranked lists end; a ``greater`` that high is only a lower bound.
    """

    i2t: QueryRanks
    t2i: QueryRanks
    duplicate_aware: tuple[QueryRanks, QueryRanks] | None = None
    explained: tuple[Counts, Counts] | None = None
    depth: Count | None = None

    def read(self) -> tuple[Ranks, Ranks]:
        """Give the ranks of both directions as arrays."""
        return self.i2t.read(), self.t2i.read()

    def owner(self) -> Labels:
        """Give the image of each caption."""
        images, captions = len(self.i2t.greater), len(self.t2i.greater)
        return np.arange(captions) // (captions // images)


class Folds(_Record):
    """MS-COCO's 1K protocol: the mean over folds of 1,000 images with their captions."""

    size: Annotated[int, Field(ge=1)]
    count: Annotated[int, Field(ge=1)]
    i2t: AtCutoffs
    t2i: AtCutoffs
    rsum: Points


class Result(Description, _Record):
    """``result.json``: every figure of a scored submission. Immutable.

    Attributes:
        rsum: 0 to 600, ties by expectation, rounded once from the exact value.
        n_pairs: Captions, each with its image.
        n_images: As many, or a fifth where an image has five captions.
        ranked: Whether it stands on the board with a place.
        reason: Why not, if not.
        rsum_interval: 95 %, bootstrap over images with their captions, both directions jointly.
        rsum_deviation: Standard error by the same.
        rsum_argsort: What a stable ``argsort(...)[::-1]`` gives: the field's value.
        references: rSum of scorers that know nothing (``chance``), the language, language and
            topic.
        flags: What a reader should look at.
        folds: The other protocol, where the data set has two.
        precision: The float type that the matrix was stored in; None of ranked lists.
        payload_sha256: Of the submission's zip.
        ranks: What all this follows from. None in a blind round: they would tell the pairing.
    """

    format: Literal["now-result/2"] = "now-result/2"
    rsum: Points
    n_pairs: Annotated[int, Field(ge=1)]
    n_images: Annotated[int, Field(ge=1)]
    ranked: bool
    reason: str | None
    track: Track
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
    flags: tuple[Flag, ...]
    folds: Folds | None
    precision: Precision | None
    payload_sha256: Sha256
    evaluator: Evaluator
    ranks: RankRecord | None

    def to_json(self) -> str:
        """Give the text of the result file: the ranks last, each list of them on a line."""
        tree = self.model_dump(mode="json", by_alias=True)
        ranks = tree.pop("ranks")
        inherited = {name: tree.pop(name) for name in Description.model_fields}
        tree = {
            "format": tree.pop("format"),
            "method": inherited.pop("method"),
            **tree,
            **inherited,
        }
        text = json.dumps(tree, ensure_ascii=False, allow_nan=False, indent=2)
        return text[: -len("\n}")] + f',\n  "ranks": {_on_lines(ranks)}\n}}\n'


def _on_lines(ranks: object) -> str:
    """Print objects on lines of their own and lists of numbers on one: git shows them well."""
    if not isinstance(ranks, dict):
        return json.dumps(ranks, separators=(",", ":"))
    lines = (
        f"    {json.dumps(name)}: {json.dumps(value, separators=(',', ':'))}"
        for name, value in ranks.items()
    )
    return "{\n" + ",\n".join(lines) + "\n  }"
