"""Boards: results grouped into comparable sections and ranked, with the uncertainty of ranks."""

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, hypot
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Float

from leaderboard.board.reported import NoiseCondition, ReportedRow, read_reported
from leaderboard.core.tracks import Origin
from leaderboard.core.uncertainty import (
    intervals_of,
    resampled,
    sum_deviation,
    tied_with_first,
)
from leaderboard.metrics import hits_per_image
from leaderboard.scoring.references import REFERENCES, chance_rsum
from leaderboard.scoring.result import Folds, RankRecord, Result
from leaderboard.store.entries import Entry, Evidence, age
from now_builder.formats.benchmarks import BENCHMARKS, BOARD_FACTS, FOLD, BoardName
from now_builder.formats.captions import TOKENIZERS

Key: TypeAlias = tuple[object, ...]
RowEvidence = Evidence | Literal["reported", "reference"]
SortKey = Literal[
    "method", "evidence", "i2t-1", "i2t-5", "i2t-10", "t2i-1", "t2i-5", "t2i-10", "date"
]
RECALL_KEYS: tuple[SortKey, ...] = ("i2t-1", "i2t-5", "i2t-10", "t2i-1", "t2i-5", "t2i-10")
SORT_KEYS: tuple[SortKey, ...] = ("method", *RECALL_KEYS, "date", "evidence")
"""Orders of a board besides the order of places."""

_Z95 = 1.96
_BASE_STEP = 20.0
_INJECTED = frozenset(track for track, benchmark in BENCHMARKS.items() if not benchmark.web)
_PROOF = frozenset({"blind", "reproduced"})
_EVIDENCE = ("blind", "reproduced", "scored", "reported", "contradicted", "reference")
_PROTOCOLS = ("web", "none", "captions", "images", "either", "unknown", "unstated")


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a board: of an entry, or of reported figures, or of a reference.

    Attributes:
        evidence: ``blind``, ``reproduced``, ``contradicted`` or ``scored`` from a file here,
            ``reported`` by a paper, or a ``reference``: the score of a scorer that knows nothing,
            or one thing.
        low: lower end of the 95 % interval of rSum; without ranks, of the narrowest plausible one.
        resampled: whether that interval is a bootstrap of the ranks.
        recalls: six recalls in percent; empty if only their sum is known.
        place: place by rSum among proof, from 1; equal scores share a place. None for a claim, or
            if not ranked, or equal to an earlier entry.
        places: first and last place held under resampling. None without a place or ranks.
        tied: whether the row is not significantly below the first. None without a place or ranks.
        claimed: rSum of the entry's own file where the figures are those of the keeper's run.
        equal_to: name of an earlier entry with the same ranks. None without one.
    """

    evidence: RowEvidence
    method: str
    rsum: float
    low: float
    high: float
    recalls: tuple[float, ...] = ()
    ranked: bool = True
    place: int | None = None
    places: tuple[int, int] | None = None
    tied: bool | None = None
    entry: Entry | None = None
    reported: ReportedRow | None = None
    equal_to: str | None = None
    resampled: bool = False
    claimed: float | None = None

    @property
    def proof(self) -> bool:
        """Whether the evidence is proof (blind, reproduced), not a claim."""
        return self.evidence in _PROOF

    @property
    def date(self) -> str | None:
        """Day of the submission, or the year of the publication."""
        if self.reported is not None:
            return str(self.reported.source.year)
        filing = self.entry.filing if self.entry else None
        return filing.submitted_at.date().isoformat() if filing else None


@dataclass(frozen=True, slots=True)
class SectionKind:
    """Properties that comparable rows have in common.

    Attributes:
        fingerprint: fingerprint of the split; None if all rows are reported.
        folds: number of folds that the figures are averaged over.
    """

    split: str
    fingerprint: str | None
    origin: Origin
    noise: NoiseCondition
    n_images: int
    n_pairs: int
    folds: int = 1

    @property
    def name(self) -> str:
        """Name of the section in URLs, unique on the board."""
        mismatch = "" if self.noise.mismatch is None else f"-{round(100 * self.noise.mismatch)}"
        where = self.fingerprint[:16] if self.fingerprint else "reported"
        return f"{self.split}-{where}-{self.noise.protocol}{mismatch}-{self.n_images}"


@dataclass(frozen=True, slots=True)
class Section:
    """Rows that are comparable with each other.

    Attributes:
        published: whether this is the test split of the board's reported figures.
        rows: rows, proof first, then claims, each best first, its unranked rows last.
        axis: end of the bars' axis, in rSum points.
        base: start of that axis; greater than 0 if all ranked rows are far above 0.
        n_proof: number of rows in the part of proof: with the references, if there is any proof.
    """

    kind: SectionKind
    with_reported: bool
    published: bool
    rows: tuple[Row, ...]
    axis: float
    base: float = 0.0
    n_proof: int = 0

    @property
    def comparable(self) -> tuple[Row, ...]:
        """Rows with public ranks, best first, which can be compared query by query.

        None where figures are means over folds: pages compare the ranks in the whole split.
        """
        if self.kind.folds > 1:
            return ()
        return tuple(row for row in self.rows if _ranks(row, self.kind))

    @property
    def lead(self) -> Row | None:
        """The best placed row with public ranks."""
        return next((row for row in self.comparable if row.place is not None), None)

    def row_of(self, name: str) -> Row | None:
        """Find an entry's row."""
        return next((row for row in self.rows if row.entry and row.entry.name == name), None)


@dataclass(frozen=True, slots=True)
class Board:
    """All sections of a benchmark, its test split first, its dev split last."""

    name: BoardName
    sections: tuple[Section, ...]
    withdrawn: tuple[Entry, ...] = ()

    def section_of(self, name: str) -> Section | None:
        """Find the section of an entry."""
        return next((part for part in self.sections if part.row_of(name)), None)


def boards_of(result: Result) -> tuple[BoardName, ...]:
    """Return the boards that show a result; the first is that of its own ranks."""
    if result.track != "coco":
        return (result.track,)
    if result.n_images <= FOLD:
        return ("coco-1k",)
    return ("coco-5k", "coco-1k") if result.folds else ("coco-5k",)


def make_board(
    name: BoardName,
    entries: Iterable[Entry],
    equal: Mapping[str, str] | None = None,
) -> Board:
    """Group entries by split, release and noise condition; rank the proof in each by exact rSum.

    Results on the published layout with as many images and captions as the reported rows stand with
    them; results on other data get their own sections. Claims, withdrawn entries and ranked lists
    are not ranked. Training noise that no reported row has is stated by the submitter alone: its
    rows get no places. ``equal`` has the earlier entry of the same ranks, by name.
    """
    equal = equal or {}
    own = sorted(
        (entry for entry in entries if name in boards_of(entry.result)), key=lambda e: e.name
    )
    groups: dict[SectionKind, list[Row]] = defaultdict(list)
    for entry in own:
        if entry.withdrawal is None:
            row = _scored(entry, name, equal.get(entry.name))
            groups[_kind(entry.result, name)].append(row)
    reported: dict[NoiseCondition, list[ReportedRow]] = defaultdict(list)
    for printed in read_reported(name):
        reported[printed.noise].append(printed)
    facts = BOARD_FACTS[name]
    origin: Origin = "archive" if name in TOKENIZERS else "field"
    for noise in reported.keys() - {kind.noise for kind in groups if _is_published(kind, name)}:
        groups[SectionKind("test", None, origin, noise, *facts.test_size, facts.folds)] = []
    sections = [
        _section(kind, rows, reported, published=_is_published(kind, name))
        for kind, rows in groups.items()
    ]
    sections.sort(key=lambda part: _order(part, name))
    gone = tuple(entry for entry in own if entry.withdrawal is not None)
    return Board(name, tuple(sections), gone)


def sorted_rows(section: Section, key: SortKey | None = None) -> tuple[Row, ...]:
    """Sort the rows of each part by place, or by another column with the best or newest first.

    Rows without a value in that column come last.
    """
    parts = section.rows[: section.n_proof], section.rows[section.n_proof :]
    return tuple(row for part in parts for row in _sorted(list(part), key))


def _sorted(rows: list[Row], key: SortKey | None) -> list[Row]:
    if key == "method":
        rows.sort(key=lambda row: row.method.casefold())
    elif key == "evidence":
        rows.sort(key=lambda row: _EVIDENCE.index(row.evidence))
    elif key == "date":
        rows.sort(key=lambda row: row.date or "", reverse=True)
    elif key is not None:
        column = RECALL_KEYS.index(key)
        rows.sort(key=lambda row: -row.recalls[column] if row.recalls else 1.0)
    return rows


def axis_of(highest: float) -> float:
    """Return the smallest multiple of 60 rSum points that is at least ``highest``, at most 600."""
    return min(60.0 * max(1, ceil(highest / 60)), 600.0)


def _base_of(lowest: float, axis: float) -> float:
    base = min(_BASE_STEP * floor(lowest / _BASE_STEP), axis - 2 * _BASE_STEP)
    return base if base >= 0.75 * axis else 0.0


def spelled(method: str) -> str:
    """Return a method's name as pages spell it: PC² for PC2."""
    return re.sub(r"\bPC2\b", "PC²", method)


def reference(name: str, rsum: float) -> Row:
    """Make the row of a reference scorer."""
    return Row(evidence="reference", method=name, rsum=rsum, low=rsum, high=rsum)


def _noise(result: Result) -> NoiseCondition:
    """Return the noise condition under which a result was trained."""
    noise = result.training.noise
    mismatch = min(round(noise.mismatch, 2), 0.99) if noise else 0.0
    if noise is not None and mismatch:
        return NoiseCondition(protocol=noise.protocol, mismatch=mismatch)
    if result.track not in _INJECTED:
        return NoiseCondition(protocol="web")
    clean = NoiseCondition(protocol="none", mismatch=0.0)
    return clean if noise is not None else NoiseCondition(protocol="unstated")


def _kind(result: Result, board: BoardName) -> SectionKind:
    folds = result.folds if board == "coco-1k" else None
    return SectionKind(
        split=result.split,
        fingerprint=result.release.fingerprint,
        origin=result.release.origin,
        noise=_noise(result),
        n_images=result.n_images,
        n_pairs=result.n_pairs,
        folds=folds.count if folds else 1,
    )


def _is_published(kind: SectionKind, board: BoardName) -> bool:
    return (
        kind.origin in {"archive", "field"}
        and kind.split == "test"
        and (kind.n_images, kind.n_pairs) == BOARD_FACTS[board].test_size
        and kind.folds == BOARD_FACTS[board].folds
    )


def _order(section: Section, board: BoardName) -> tuple[object, ...]:
    kind, noise = section.kind, section.kind.noise
    return (
        kind.split != "test",
        not section.n_proof,
        board in TOKENIZERS and section.with_reported,
        not section.with_reported,
        _PROTOCOLS.index(noise.protocol),
        noise.mismatch or 0.0,
        -kind.n_images,
        kind.fingerprint or "",
    )


def _section(
    kind: SectionKind,
    scored: list[Row],
    reported: Mapping[NoiseCondition, list[ReportedRow]],
    *,
    published: bool,
) -> Section:
    known = kind.noise in reported
    printed = reported[kind.noise] if published and known else []
    rows = scored + _references(kind, scored) + [_reported(row, kind) for row in printed]
    axis = axis_of(max(row.high for row in rows))
    if known or not kind.noise.mismatch:
        rows = _placed(rows, kind)
    proven = any(row.proof for row in rows)

    def leading(row: Row) -> bool:
        return row.proof or (proven and row.evidence == "reference")

    return Section(
        kind=kind,
        with_reported=bool(printed),
        published=published,
        rows=_ordered(rows, leading),
        n_proof=sum(map(leading, rows)),
        axis=axis,
        base=_base_of(min(row.low for row in rows if row.evidence != "reference"), axis),
    )


def _scored(entry: Entry, board: BoardName, equal_to: str | None) -> Row:
    result = entry.shown
    folds = result.folds if board == "coco-1k" else None
    part: Result | Folds = folds or result
    low, high = result.rsum_interval
    if folds is not None and folds.rsum_interval is not None:
        low, high = folds.rsum_interval
    elif folds is not None:
        ways = ((folds.i2t, result.n_images), (folds.t2i, result.n_pairs))
        half = _least_half_width([(way.values(), n) for way, n in ways])
        low, high = folds.rsum - half, folds.rsum + half
    return Row(
        evidence=entry.evidence,
        method=spelled(result.method.name),
        rsum=part.rsum,
        low=low,
        high=high,
        recalls=part.i2t.values() + part.t2i.values(),
        ranked=result.ranked and result.precision is not None,
        entry=entry,
        equal_to=equal_to,
        resampled=folds is None or folds.rsum_interval is not None,
        claimed=_rsum(entry.result, board) if entry.run else None,
    )


def _rsum(result: Result, board: BoardName) -> float:
    folds = result.folds if board == "coco-1k" else None
    return folds.rsum if folds else result.rsum


def _reported(row: ReportedRow, kind: SectionKind) -> Row:
    sizes = (kind.n_images, kind.n_pairs)
    ways = [(way, n) for way, n in zip((row.i2t, row.t2i), sizes, strict=True) if way]
    half = _least_half_width(ways)
    return Row(
        evidence="reported",
        method=row.method,
        rsum=row.rsum,
        low=row.rsum - half,
        high=row.rsum + half,
        recalls=row.recalls,
        reported=row,
    )


def _least_half_width(ways: Iterable[tuple[tuple[float, float, float], int]]) -> float:
    """Return a lower bound: the directions are taken as independent, though they correlate."""
    return _Z95 * hypot(*(sum_deviation(way, queries) for way, queries in ways))


def _references(kind: SectionKind, scored: Sequence[Row]) -> list[Row]:
    """Make the rows of chance, which is computed, and of the references on which results agree.

    Results may have been scored with different attributes.
    """
    images, pairs = kind.n_images // kind.folds, kind.n_pairs // kind.folds
    chance = reference("chance", chance_rsum(images, pairs))
    if kind.folds > 1:
        return [chance]
    values: dict[str, set[float]] = defaultdict(set)
    for row in scored:
        for name, rsum in (row.entry.shown.references if row.entry else {}).items():
            values[name].add(rsum)
    rows = [chance]
    for name in REFERENCES[1:]:
        rows += [reference(name, *values[name])] if len(values[name]) == 1 else []
    return rows


def _ranks(row: Row, kind: SectionKind) -> RankRecord | None:
    """Return the ranks behind a ranked row's figures, those within folds if the figures are."""
    if row.entry is None or not row.ranked:
        return None
    result = row.entry.shown
    if kind.folds > 1:
        return result.folds.ranks if result.folds else None
    return result.ranks


def hits_of(rows: Iterable[Row], kind: SectionKind) -> Float[np.ndarray, "rows images"]:
    """Return the expected hits of ranked rows by image, its captions' on average among them."""
    records = (ranks for row in rows if (ranks := _ranks(row, kind)))
    return np.stack([hits_per_image(*record.read(), record.owner()) for record in records])


def equal_ranks(entries: Iterable[Entry]) -> dict[str, str]:
    """Return the earlier entry whose ranks an entry repeats, one by one, by the names of both.

    Withdrawn entries count as earlier ones. Entries whose ranks are all one number (all perfect,
    all tied) are equal trivially and left out.
    """
    first: dict[object, str] = {}
    found = {}
    for entry in sorted(entries, key=age):
        ranks = entry.shown.ranks
        if ranks is None or len({*ranks.i2t.greater, *ranks.t2i.greater}) == 1:
            continue
        key = entry.result.release.fingerprint, ranks.i2t, ranks.t2i
        earlier = first.setdefault(key, entry.name)
        if earlier != entry.name:
            found[entry.name] = earlier
    return found


def _placed(rows: list[Row], kind: SectionKind) -> list[Row]:
    """Number the proof by rSum, 1, 2, 2, 4, and add place intervals and ties.

    Place intervals are those among rows with ranks, shifted by the other rows whose interval lies
    above the whole of a row's own (for the first place) or overlaps it (for the last).
    """
    ranked = [row for row in rows if row.proof and row.ranked and not row.equal_to]
    scores = sorted(-row.rsum for row in ranked)
    known = [row for row in ranked if _ranks(row, kind)]
    placed = {id(row): replace(row, place=bisect_left(scores, -row.rsum) + 1) for row in ranked}
    if known:
        hits = hits_of(known, kind)
        intervals = intervals_of(resampled(hits)).tolist()
        tied = tied_with_first(hits).tolist()
        rivals = [row for row in ranked if not _ranks(row, kind)]
        for row, (first, last), even in zip(known, intervals, tied, strict=True):
            above = sum(rival.low > row.high for rival in rivals)
            overlapping = sum(rival.high >= row.low for rival in rivals)
            interval = first + above, last + overlapping
            placed[id(row)] = replace(placed[id(row)], places=interval, tied=even)
    return [placed.get(id(row), row) for row in rows]


def _ordered(rows: Sequence[Row], leading: Callable[[Row], bool]) -> tuple[Row, ...]:
    """Sort by rSum: proof first; in each part what repeats, is contradicted or unranked last."""

    def order(row: Row) -> tuple[object, ...]:
        name = row.entry.name if row.entry else ""
        doubted = bool(row.equal_to) or row.evidence == "contradicted"
        return not leading(row), not row.ranked, doubted, -row.rsum, row.method, name

    return tuple(sorted(rows, key=order))
