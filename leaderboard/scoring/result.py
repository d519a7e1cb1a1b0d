"""``result.json``: every figure of a scored submission, and the ranks behind them."""

import json
from typing import Annotated, Literal

import numpy as np
from jaxtyping import Integer
from pydantic import ConfigDict, Field

from leaderboard.core.rounds import Origin, ScoredSplit, Track
from leaderboard.core.uncertainty import REPLICATES, SEED
from leaderboard.metrics import Labels, Ranks
from leaderboard.submission.archive import Description, Precision
from now_builder.config import Sha256, Strict

VERSION = "2"
"""Version of the evaluator, raised whenever a score could change."""

Percent = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
Points = Annotated[float, Field(ge=0, le=600, allow_inf_nan=False)]
Rank = Annotated[float, Field(ge=1, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=2**40)]
Counts = tuple[Count, ...]
Code = Annotated[str, Field(pattern=r"^[a-z0-9-]{1,40}$")]


def is_none(value: object) -> bool:
    """Return whether a value is None: such fields are left out."""
    return value is None


class Record(Strict):
    """A frozen part of a result, whose fields have aliases."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class AtCutoffs(Record):
    """R@1, R@5 and R@10 in percent."""

    r1: Percent = Field(alias="R@1")
    r5: Percent = Field(alias="R@5")
    r10: Percent = Field(alias="R@10")

    def values(self) -> tuple[float, float, float]:
        """Return them in order."""
        return self.r1, self.r5, self.r10


class Intervals(Record):
    """95 % intervals of the recalls, in percent: low, high."""

    r1: tuple[Percent, Percent] = Field(alias="R@1")
    r5: tuple[Percent, Percent] = Field(alias="R@5")
    r10: tuple[Percent, Percent] = Field(alias="R@10")

    def values(self) -> tuple[tuple[float, float], ...]:
        """Return them in order."""
        return self.r1, self.r5, self.r10


class Direction(AtCutoffs):
    """Figures of one direction.

    Attributes:
        hits: expected hits as exact fractions, by cutoff; empty in a blind round, whose pairing
            they could reveal.
        optimistic: recalls if every tie were won.
        pessimistic: recalls if every tie were lost.
        interval: Wilson's 95 % intervals; for as many queries as the owners are worth if the
            release is split by domain.
        duplicate_aware: recalls if identical captions and images are right too.
        median_rank: median rank, from 1, rounded as the field does.
        mean_rank: mean rank, from 1.
        mrr: mean reciprocal rank, in [0, 1].
        ndcg: mean nDCG@10, in [0, 1], ties by expectation.
        tied_queries: number of queries whose right candidate ties with a wrong one. It, the
            ranks' median and mean, MRR and nDCG are None in a blind round.
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
    """The rSum points that ties decide: the optimistic value less the pessimistic one.

    Attributes:
        unexplained_width: the same without ties between identical captions or images.
    """

    width: Points
    unexplained_width: Points


class Duplicates(Record):
    """Identical captions and images in the split.

    Attributes:
        captions: number of captions that occur more than once.
        images: number of images whose features occur more than once.
        ceiling_rsum: rSum of a perfect scorer that gives identical items equal scores.
        rsum: rSum of this submission if every one of them counts as right.
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
        origin: ``rebuilt`` by this toolkit; ``archive``: the published layout without keys;
            ``field``: another data set as the field stores it; ``blind``: a round whose pairing
            only its judge has; ``closed``: the same after publication.
        fingerprint: fingerprint of the (split, track).
    """

    origin: Origin
    fingerprint: Sha256


class Note(Record):
    """A note on a matrix for readers; it changes neither score nor place.

    Attributes:
        code: stable name for programs, such as ``distances``.
        message: the measured value and the threshold.
    """

    code: Code
    message: Annotated[str, Field(max_length=300)]


class QueryRanks(Record):
    """Ranks of the queries of one direction; a field that is constant is left out.

    Attributes:
        greater: number of candidates above each query's best right one.
        equal: number of wrong candidates tied with it; empty if there are none.
        later: number of those that come later in the gallery; empty if all are 0.
        right: number of right candidates at its similarity; empty if always 1.
    """

    greater: Counts
    equal: Counts = ()
    later: Counts = ()
    right: Counts = ()

    def read(self) -> Ranks:
        """Return them as arrays."""
        n = len(self.greater)
        filled = ((self.equal, 0), (self.later, 0), (self.right, 1))
        return Ranks(
            np.array(self.greater, np.int64),
            *(np.array(given, np.int64) if given else np.full(n, usual) for given, usual in filled),
        )

    def fits(self, queries: int, candidates: int) -> bool:
        """Return whether there is a rank for each of the queries, within the candidates."""
        parts = self.equal, self.later, self.right
        if len(self.greater) != queries or any(len(part) not in {0, queries} for part in parts):
            return False
        ranks = self.read()
        return bool(
            (ranks.greater + ranks.equal + ranks.right <= candidates).all()
            and (ranks.right >= 1).all()
            and (ranks.later <= ranks.equal).all()
        )


def query_ranks(ranks: Ranks, order: Labels) -> QueryRanks:
    """Make the record of the ranks of one direction."""

    def packed(values: Integer[np.ndarray, " queries"], usual: int) -> Counts:
        return () if (values == usual).all() else tuple(values[order].tolist())

    return QueryRanks(
        greater=tuple(ranks.greater[order].tolist()),
        equal=packed(ranks.equal, 0),
        later=packed(ranks.later, 0),
        right=packed(ranks.right, 1),
    )


class RankRecord(Record):
    """Every rank behind the figures; captions are in the order of their images.

    Attributes:
        i2t: ranks of image queries.
        t2i: ranks of caption queries.
        duplicate_aware: the same if identical captions and images count as right; None if
            the split has none.
        explained: ties of each query that identical captions or images force; None if none.
        depth: always None: part of the format's version 4.
        own: ranks of all captions among those of their images' queries, for nDCG; left out if an
            image has one caption, whose rank is in ``i2t``.
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
        """Return the owner of each image's page and of each caption's; None if not recorded."""
        if self.site_owners is None:
            return None, None
        owners = np.array(self.site_owners, np.int64)
        return owners, owners[self.owner()]

    def read_own(self) -> Ranks | None:
        """Return the ranks of all captions of each image; None if they are not in the record."""
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

    def _has_best(self, own: QueryRanks) -> bool:
        """Return whether the best of the ranks of all captions of each image is that of ``i2t``."""
        images, captions = self.size
        if not own.fits(captions, captions):
            return False
        ranks, best = own.read(), self.i2t.read()
        first = ranks.greater.reshape(images, -1).argmin(axis=1)
        first += np.arange(0, captions, captions // images)
        pairs = zip(*((way.greater, way.equal, way.right) for way in (ranks, best)), strict=True)
        return all((found[first] == wanted).all() for found, wanted in pairs)


class Within(Record):
    """Figures of queries that are ranked among the candidates of their own group alone.

    Recalls and rSum are means over groups.

    Attributes:
        size: number of images of each group; left out if they differ.
        count: number of groups.
        sizes: number of images of each group; left out if they are equal.
        rsum_interval: 95 % interval, bootstrap over groups; of ``folds`` over all images, of
            ``across_owners`` over owners.
        chance: rSum by chance, the mean over groups; left out of ``folds``.
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
        """Number of images of each group."""
        return self.sizes or (self.size or 0,) * self.count


_PACKED = {"within_site", "across_owners", "within_language"}


class Result(Description, Record):
    """``result.json``: every figure of a scored submission. Immutable.

    Attributes:
        rsum: rSum, 0 to 600, ties by expectation, rounded once from the exact value.
        n_pairs: number of captions, each with its image.
        n_images: number of images: the same, or a fifth if an image has five captions.
        ranked: whether it may get a place on the board.
        reason: why it is not ranked.
        rsum_interval: 95 % interval, bootstrap over images with their captions, directions jointly;
            over owners of pages if the release is split by domain.
        rsum_deviation: standard error by the same bootstrap.
        rsum_argsort: rSum by a stable ``argsort(...)[::-1]``: the field's value.
        references: rSum of trivial scorers that know nothing (``chance``), the language, the site,
            both, language and topic, or the text that OCR reads on the screenshot.
        notes: notes on the matrix; they cost no place.
        folds: figures within MS-COCO's 1K folds: 1,000 images with their captions each.
        within_site: figures of pages among those of their own site whose caption stands once on it,
            on sites with at least 10 of them; left out, as the next two, if the release tells none.
        across_owners: figures among one page of each owner (registrable domain), the mean of 20
            draws; left out unless the release is split by domain.
        within_language: figures among the pages of the same language, of at least 10 pages; left
            out unless the release is split by domain.
        precision: float type of the stored matrix.
        payload_sha256: sha256 of the submission's zip.
        ranks: the ranks behind all figures. None in a blind round: they would reveal the pairing.
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
        """Return the text of the result file, with the ranks last, one list per line.

        Figures within sites, owners and languages, ranks included, are one line each.
        """
        tree = self.model_dump(mode="json", by_alias=True)
        ranks, first = tree.pop("ranks"), ("format", "method")
        described = [name for name in Description.model_fields if name != "method"]
        order = [*first, *(name for name in tree if name not in {*first, *described}), *described]
        texts = [
            f'  "{name}": ' + (_packed(tree[name]) if name in _PACKED else _indented(tree[name]))
            for name in order
        ]
        lines = ",\n".join(
            f'    "{name}": {_packed(value)}' for name, value in (ranks or {}).items()
        )
        packed = "{\n" + lines + "\n  }" if ranks else "null"
        return "{\n" + ",\n".join([*texts, f'  "ranks": {packed}']) + "\n}\n"


def _indented(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2)
    return text.replace("\n", "\n  ")


def _packed(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
