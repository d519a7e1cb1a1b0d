"""``result.json``: the figures of a scored submission and the ranks that they follow from."""

import json
from typing import Annotated, Generic, Literal, TypeVar

import numpy as np
from jaxtyping import Integer
from pydantic import ConfigDict, Field

from leaderboard.core.rounds import Origin, ScoredSplit, Track
from leaderboard.core.uncertainty import REPLICATES, SEED
from leaderboard.metrics import Labels, Ranks
from leaderboard.submission.archive import Description, Precision
from now_builder.config import Sha256, Strict

VERSION = "2"
"""Version of the evaluator; it changes whenever a score could change."""

Percent = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
Points = Annotated[float, Field(ge=0, le=600, allow_inf_nan=False)]
Rank = Annotated[float, Field(ge=1, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=2**40)]
Counts = tuple[Count, ...]
Code = Annotated[str, Field(pattern=r"^[a-z0-9-]{1,40}$")]
_Value = TypeVar("_Value")


def is_none(value: object) -> bool:
    """Return whether a field is None, and so left out of the file."""
    return value is None


class Record(Strict):
    """Frozen part of a result; its fields can be set by name or alias."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class _ByCutoff(Record, Generic[_Value]):
    """One value for each of R@1, R@5 and R@10."""

    r1: _Value = Field(alias="R@1")
    r5: _Value = Field(alias="R@5")
    r10: _Value = Field(alias="R@10")

    def values(self) -> tuple[_Value, _Value, _Value]:
        """Return the three values in order."""
        return self.r1, self.r5, self.r10


class AtCutoffs(_ByCutoff[Percent]):
    """R@1, R@5 and R@10 in percent."""


class Intervals(_ByCutoff[tuple[Percent, Percent]]):
    """95 % intervals (low, high) of the recalls, in percent."""


class Direction(AtCutoffs):
    """Figures of one direction.

    Attributes:
        hits: expected number of hits as exact fractions, by cutoff; empty in a blind round.
        optimistic: recalls if every tie were won.
        pessimistic: recalls if every tie were lost.
        interval: Wilson's 95 % intervals; if the release is split by domain, for the effective
            number of queries, since hits cluster by owner.
        duplicate_aware: recalls if duplicates of the right caption or image are right too.
        median_rank: median rank, from 1, rounded down. None in a blind round, as all below.
        mean_rank: mean rank, from 1.
        mrr: mean reciprocal rank, in [0, 1].
        ndcg: mean nDCG@10, in [0, 1].
        tied_queries: number of queries whose right candidate ties with a wrong one.
    """

    hits: dict[str, str]
    optimistic: AtCutoffs
    pessimistic: AtCutoffs
    interval: Intervals
    duplicate_aware: AtCutoffs
    median_rank: Rank | None = Field(alias="medR")
    mean_rank: Rank | None = Field(alias="meanR")
    mrr: Share | None = Field(alias="MRR")
    ndcg: Share | None = Field(None, alias="nDCG@10")
    tied_queries: Count | None


class Ties(Record):
    """The rSum points that ties decide; ``unexplained_width`` is without ties of duplicates."""

    width: Points
    unexplained_width: Points


class Duplicates(Record):
    """Identical captions and images in the split.

    Attributes:
        captions: number of captions that occur more than once.
        images: number of images whose features occur more than once.
        ceiling_rsum: rSum of a perfect scorer that gives identical items equal scores.
        rsum: rSum of this submission if every duplicate of a right item counts as right.
    """

    captions: Count
    images: Count
    ceiling_rsum: Points
    rsum: Points


class Evaluator(Record):
    """The evaluator that computed the result."""

    name: Literal["now-leaderboard"] = "now-leaderboard"
    version: str = VERSION
    bootstrap_replicates: int = REPLICATES
    bootstrap_seed: int = SEED


class Release(Record):
    """The data that the submission was scored on.

    Attributes:
        origin: ``rebuilt`` by this toolkit; ``archive``: the authors' archive, without keys;
            ``field``: another data set in the layout of the field; ``blind``: a round whose pairing
            only its judge has; ``closed``: a round whose pairing has been published.
        fingerprint: fingerprint of the (split, track).
    """

    origin: Origin
    fingerprint: Sha256


class Note(Record):
    """An informational note on a matrix; ``code`` is a stable name, such as ``distances``."""

    code: Code
    message: Annotated[str, Field(max_length=300)]


class QueryRanks(Record):
    """Ranks of the queries of one direction.

    Attributes:
        greater: number of candidates above each query's best right one.
        equal: number of wrong candidates tied with it; empty if always 0.
        later: number of candidates in ``equal`` after all right ones; empty if always 0.
        right: number of right candidates at its similarity; empty if always 1.
    """

    greater: Counts
    equal: Counts = ()
    later: Counts = ()
    right: Counts = ()

    def read(self) -> Ranks:
        """Return the ranks as arrays."""
        n = len(self.greater)
        fields = ((self.greater, 0), (self.equal, 0), (self.later, 0), (self.right, 1))
        return Ranks(*(np.array(v, np.int64) if v else np.full(n, usual) for v, usual in fields))

    def fits(self, queries: int, candidates: int) -> bool:
        """Return whether each query has a rank, and no rank exceeds the number of candidates."""
        parts = self.equal, self.later, self.right
        if len(self.greater) != queries or any(len(part) not in {0, queries} for part in parts):
            return False
        ranks = self.read()
        return bool(
            (ranks.greater + ranks.equal + ranks.right <= candidates).all()
            and (ranks.right >= 1).all()
            and (ranks.later <= ranks.equal).all()
        )


def query_ranks(ranks: Ranks) -> QueryRanks:
    """Make the record of the ranks of one direction."""

    def packed(values: Integer[np.ndarray, " queries"], usual: int) -> Counts:
        return () if (values == usual).all() else tuple(values.tolist())

    return QueryRanks(
        greater=tuple(ranks.greater.tolist()),
        equal=packed(ranks.equal, 0),
        later=packed(ranks.later, 0),
        right=packed(ranks.right, 1),
    )


class RankRecord(Record):
    """All ranks that the figures follow from; captions are in the order of their images.

    Attributes:
        i2t: ranks of image queries.
        t2i: ranks of caption queries.
        duplicate_aware: i2t and t2i ranks if identical captions and images count as right; None
            if the split has no duplicates.
        explained: number of ties of each query with identical captions or images; None if all 0.
        depth: always None; part of the format's version 4.
        own: rank of every caption when its own image is the query, for nDCG; left out if each
            image has one caption.
        site_owners: number of the owner of each image's page, for intervals by owner; left out
            unless the release is split by domain.
    """

    i2t: QueryRanks
    t2i: QueryRanks
    duplicate_aware: tuple[QueryRanks, QueryRanks] | None = None
    explained: tuple[Counts, Counts] | None = None
    depth: None = None
    own: QueryRanks | None = Field(None, exclude_if=is_none)
    site_owners: Counts | None = Field(None, exclude_if=is_none)

    @property
    def size(self) -> tuple[int, int]:
        """Numbers of images and captions."""
        return len(self.i2t.greater), len(self.t2i.greater)

    def read(self) -> tuple[Ranks, Ranks]:
        """Return the ranks of both directions as arrays."""
        return self.i2t.read(), self.t2i.read()

    def owner(self) -> Labels:
        """Return the row of each caption's image."""
        images, captions = self.size
        return np.arange(captions) // (captions // images)

    def clusters(self) -> tuple[Labels, Labels] | tuple[None, None]:
        """Return the owner of each image's and each caption's page; None if not recorded."""
        if self.site_owners is None:
            return None, None
        owners = np.array(self.site_owners, np.int64)
        return owners, owners[self.owner()]

    def read_own(self) -> Ranks | None:
        """Return the rank of every caption when its own image is the query; None if unknown."""
        images, captions = self.size
        return (self.own or self.i2t).read() if self.own or images == captions else None

    def possible(self) -> bool:
        """Return whether a matrix can have these ranks: one per query, within the candidates."""
        images, captions = self.size
        if images == 0 or captions == 0 or captions % images:
            return False
        return (
            all(
                i2t.fits(images, captions) and t2i.fits(captions, images)
                for i2t, t2i in ((self.i2t, self.t2i), self.duplicate_aware or (self.i2t, self.t2i))
            )
            and (self.explained is None or tuple(map(len, self.explained)) == self.size)
            and (self.own is None or self._has_best(self.own))
            and (self.site_owners is None or len(self.site_owners) == images)
            and max(self.site_owners or (0,)) < images
        )

    def _has_best(self, own_captions: QueryRanks) -> bool:
        """Return whether each image's best caption has the rank that ``i2t`` has."""
        images, captions = self.size
        if not own_captions.fits(captions, captions):
            return False
        ranks, best = own_captions.read(), self.i2t.read()
        first = ranks.greater.reshape(images, -1).argmin(axis=1)
        ranks = ranks.take(first + np.arange(0, captions, captions // images))
        return all(
            np.array_equal(getattr(ranks, name), getattr(best, name))
            for name in ("greater", "equal", "right")
        )


class Within(Record):
    """Figures of queries that are ranked among the candidates of their own group only.

    Recalls and rSum are means over groups.

    Attributes:
        size: number of images of each group; left out if the groups differ in size.
        count: number of groups.
        sizes: number of images by group; left out if all groups have the same size.
        rsum_interval: 95 % interval by a bootstrap over groups (``folds``: over all images;
            ``across_owners``: over owners).
        chance: mean rSum by chance over groups; left out of ``folds``.
        ranks: ranks within the groups, one group after the other. None in a blind round.
    """

    size: Annotated[int, Field(ge=1)] | None = Field(None, exclude_if=is_none)
    count: Annotated[int, Field(ge=1)]
    sizes: Counts | None = Field(None, exclude_if=is_none)
    i2t: AtCutoffs
    t2i: AtCutoffs
    rsum: Points
    rsum_interval: tuple[Points, Points]
    chance: Points | None = Field(None, exclude_if=is_none)
    ranks: RankRecord | None = None

    @property
    def spans(self) -> Counts:
        """Number of images by group."""
        return self.sizes or (self.size or 0,) * self.count


_PACKED = {"within_site", "across_owners", "within_language"}  # one line each in the file


class Result(Description, Record):
    """``result.json``: every figure of a scored submission.

    Attributes:
        rsum: rSum, 0 to 600, ties by expectation, rounded once from the exact value.
        n_pairs: number of captions, each with its image.
        n_images: number of images.
        ranked: whether the submission may get a place on the board.
        reason: reason why it is not ranked.
        rsum_interval: 95 % interval by a bootstrap over images with their captions, or over owners
            of pages if the release is split by domain.
        rsum_deviation: standard error by the same bootstrap.
        rsum_argsort: rSum by a stable ``argsort(...)[::-1]``, as is usual in the field.
        references: rSum of trivial scorers, by name (``leaderboard.scoring.references``).
        notes: informational notes on the matrix; they do not affect the place.
        folds: figures within MS-COCO's 1K folds: 1,000 images with their captions each.
        within_site: figures among the pages of the same site; captions that occur twice on a site
            and sites of fewer than 10 pages are left out. None if the release has no sites.
        across_owners: figures among one page of each owner (registrable domain), the mean of 20
            draws; left out unless the release is split by domain.
        within_language: figures among the pages of the same language, for languages with at least
            10 pages; left out unless the release is split by domain.
        precision: float type of the stored matrix.
        payload_sha256: sha256 of the submission's zip.
        ranks: ranks that all figures follow from. None in a blind round.
    """

    format: Literal["now-result/4"] = "now-result/4"
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
    notes: tuple[Note, ...]
    folds: Within | None
    within_site: Within | None = Field(None, exclude_if=is_none)
    across_owners: Within | None = Field(None, exclude_if=is_none)
    within_language: Within | None = Field(None, exclude_if=is_none)
    precision: Precision
    payload_sha256: Sha256
    evaluator: Evaluator
    ranks: RankRecord | None

    def to_json(self) -> str:
        """Return the text of the result file: ranks last, one line per list and per group."""
        tree = self.model_dump(mode="json", by_alias=True)
        ranks, first = tree.pop("ranks"), ("format", "method")
        described = [name for name in Description.model_fields if name != "method"]
        order = [*first, *(name for name in tree if name not in {*first, *described}), *described]
        texts = [
            f'  "{name}": ' + (_packed(tree[name]) if name in _PACKED else _indented(tree[name]))
            for name in order
        ]
        lists = [f'    "{name}": {_packed(value)}' for name, value in (ranks or {}).items()]
        packed = "{\n" + ",\n".join(lists) + "\n  }" if ranks else "null"
        return "{\n" + ",\n".join([*texts, f'  "ranks": {packed}']) + "\n}\n"


def _indented(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2)
    return text.replace("\n", "\n  ")


def _packed(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
