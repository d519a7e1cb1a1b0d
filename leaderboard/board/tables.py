"""The board: which results stand side by side, in what order, and how sure that order is."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import floor, hypot
from typing import Literal

import numpy as np

from leaderboard.board.reported import Board as BoardName
from leaderboard.board.reported import Noise, ReportedRow, read_reported
from leaderboard.core.uncertainty import least_deviation, rank_intervals, tied_with_first
from leaderboard.metrics import CUTOFFS, hits_per_image
from leaderboard.scoring.references import chance_rsum
from leaderboard.scoring.result import Flag, Folds, RankRecord, Result
from leaderboard.store.entries import Entry, Evidence
from leaderboard.submission.gallery import FOLD, Origin
from now_builder.formats.captions import TOKENIZERS

RowEvidence = Evidence | Literal["reported", "reference"]
SortKey = Literal[
    "method", "evidence", "i2t-1", "i2t-5", "i2t-10", "t2i-1", "t2i-5", "t2i-10", "date"
]
RECALL_KEYS: tuple[SortKey, ...] = ("i2t-1", "i2t-5", "i2t-10", "t2i-1", "t2i-5", "t2i-10")
SORT_KEYS: tuple[SortKey, ...] = ("method", *RECALL_KEYS, "date", "evidence")
"""Orders that a board comes in besides that of its places."""

_Z95 = 1.96
_BASE_STEP = 20.0
_EVIDENCE = ("blind", "reproduced", "scored", "reported", "reference")
_PROTOCOLS = ("web", "none", "captions", "images", "either", "unknown", "unstated")
# Images and captions of the test splits that the reported figures were measured on.
_SIZES: dict[BoardName, tuple[int, int]] = {
    "jieba": (1000, 1000),
    "bpe": (1000, 1000),
    "bert": (1000, 1000),
    "flickr30k": (1000, 5000),
    "coco-1k": (5000, 25000),
    "coco-5k": (5000, 25000),
    "cc152k": (1000, 1000),
}


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the board.

    Attributes:
        flags: Of its result, and those that other entries give it.
        evidence: ``blind``, ``reproduced`` or ``scored`` from a file here, ``reported`` by a paper,
            or a ``reference``: what knowing nothing, or one thing, would give.
        low: Lower end of the 95 % interval of rSum; of the least plausible one where there are no
            ranks.
        high: Upper end.
        recalls: Six, in percent; none where only the sum is known.
        place: From 1; equal scores share one. None where it is not ranked.
        places: The first and the last place that it holds under resampling. None without ranks.
        tied: Whether it is not significantly below the best scored row; None without ranks.
        entry: The result behind a scored row.
        reported: The figures behind a reported one.
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
    flags: tuple[Flag, ...] = ()

    @property
    def date(self) -> str | None:
        """When it came onto the board, or the year in which a paper printed it."""
        if self.reported is not None:
            return str(self.reported.source.year)
        filing = self.entry.filing if self.entry else None
        return filing.submitted_at.date().isoformat() if filing else None


@dataclass(frozen=True, slots=True)
class Kind:
    """What rows must share to be compared.

    Attributes:
        fingerprint: Of the split; None where only reported rows are there.
        folds: How many folds the figures are averaged over.
    """

    split: str
    fingerprint: str | None
    origin: Origin
    noise: Noise
    n_images: int
    n_pairs: int
    folds: int = 1

    @property
    def name(self) -> str:
        """A name for addresses, which no other section of the board has."""
        ratio = "" if self.noise.ratio is None else f"-{round(100 * self.noise.ratio)}"
        where = self.fingerprint[:16] if self.fingerprint else "reported"
        return f"{self.split}-{where}-{self.noise.protocol}{ratio}-{self.n_images}"


@dataclass(frozen=True, slots=True)
class Section:
    """Rows that may be compared with each other.

    Attributes:
        with_reported: Whether reported rows are among them.
        published: Whether it is the test split that reported figures of this board are of.
        rows: Best first.
        axis: Where the bars end, in rSum points.
        base: Where they begin: not at 0 where all rows that compete stand far above it.
    """

    kind: Kind
    with_reported: bool
    published: bool
    rows: tuple[Row, ...]
    axis: float
    base: float = 0.0

    @property
    def name(self) -> str:
        """A name for addresses, which no other section of the board has."""
        return self.kind.name

    @property
    def split(self) -> str:
        """The split that it was measured on."""
        return self.kind.split

    @property
    def n_pairs(self) -> int:
        """Captions, each with its image."""
        return self.kind.n_pairs

    @property
    def fingerprint(self) -> str | None:
        """Of the split; None where only reported rows are there."""
        return self.kind.fingerprint

    @property
    def comparable(self) -> tuple[Row, ...]:
        """Rows whose ranks are public, best first: any two of them can be compared by query."""
        return tuple(row for row in self.rows if _ranks(row, self.kind) is not None)

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
        """Find the section that an entry stands in."""
        return next((part for part in self.sections if part.row_of(name)), None)


def boards_of(result: Result) -> tuple[BoardName, ...]:
    """Name the boards that a result stands on, the one of its own ranks first."""
    if result.track != "coco":
        return (result.track,)
    if result.n_images <= FOLD:
        return ("coco-1k",)
    return ("coco-5k", "coco-1k") if result.folds else ("coco-5k",)


def make_board(
    name: BoardName, entries: Iterable[Entry], flags: Mapping[str, tuple[Flag, ...]] | None = None
) -> Board:
    """Group the results of a board by split, release and noise; rank each group by exact rSum.

    Results on as many images and captions of the published layout as the reported ones stand among
    these; all others are on other data and stand apart. Withdrawn entries stand nowhere.

    Args:
        name: Of the board.
        entries: Of any boards.
        flags: By entry, what other entries show about it.
    """
    told = flags or {}
    own = sorted(
        (entry for entry in entries if name in boards_of(entry.result)), key=lambda e: e.name
    )
    groups: dict[Kind, list[Row]] = defaultdict(list)
    for entry in own:
        if entry.withdrawal is None:
            row = replace(_scored(entry, name), flags=entry.result.flags + told.get(entry.name, ()))
            groups[_kind(entry.result, name)].append(row)
    left = _reported_by_noise(name)
    missing = set(left)
    sections = []
    for kind, rows in groups.items():
        published = _is_published(kind, name)
        reported = left.get(kind.noise, []) if published else []
        missing -= {kind.noise} if reported else set()
        sections.append(_section(kind, rows, reported, published=published))
    for noise in missing:
        images, pairs = _SIZES[name]
        origin: Origin = "archive" if name in TOKENIZERS else "field"
        kind = Kind("test", None, origin, noise, images, pairs, _folds(name))
        sections.append(_section(kind, [], left[noise], published=True))
    sections.sort(key=lambda part: _order(part, name))
    gone = tuple(entry for entry in own if entry.withdrawal is not None)
    return Board(name, tuple(sections), gone)


def sorted_rows(section: Section, key: SortKey | None = None) -> tuple[Row, ...]:
    """Give the rows by place, or by another column: the best, or the newest, first.

    What lacks the column comes last.
    """
    if key is None:
        return section.rows
    rows = list(section.rows)
    if key == "method":
        rows.sort(key=lambda row: row.method.casefold())
    elif key == "evidence":
        rows.sort(key=lambda row: _EVIDENCE.index(row.evidence))
    elif key == "date":
        rows.sort(key=lambda row: row.date or "", reverse=True)
    else:
        column = RECALL_KEYS.index(key)
        rows.sort(key=lambda row: -row.recalls[column] if row.recalls else 1.0)
    return tuple(rows)


def axis_of(highest: float) -> float:
    """Choose a round number of rSum points, at most 600, where bars that long may end."""
    for end in (60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 420.0, 480.0, 540.0):
        if highest <= end:
            return end
    return 600.0


def _base_of(lowest: float, axis: float) -> float:
    base = min(_BASE_STEP * floor(lowest / _BASE_STEP), axis - 2 * _BASE_STEP)
    return base if base >= 0.75 * axis else 0.0


def reference(name: str, rsum: float) -> Row:
    """Make the row of a scorer that knows nothing, or one thing."""
    return Row(evidence="reference", method=name, rsum=rsum, low=rsum, high=rsum)


def noise_of(result: Result) -> Noise:
    """Say what was wrong with the training pairs, as finely as rows are told apart by it."""
    noise = result.training.noise
    ratio = min(round(noise.mismatch, 2), 0.99) if noise else 0.0
    if noise is not None and ratio:
        return Noise(protocol=noise.protocol, ratio=ratio)
    if result.track not in {"flickr30k", "coco"}:
        return Noise(protocol="web")
    return Noise(protocol="none", ratio=0.0) if noise else Noise(protocol="unstated")


def _kind(result: Result, board: BoardName) -> Kind:
    folds = result.folds if board == "coco-1k" else None
    return Kind(
        split=result.split,
        fingerprint=result.release.fingerprint,
        origin=result.release.origin,
        noise=noise_of(result),
        n_images=result.n_images,
        n_pairs=result.n_pairs,
        folds=folds.count if folds else 1,
    )


def _folds(board: BoardName) -> int:
    return _SIZES[board][0] // FOLD if board == "coco-1k" else 1


def _is_published(kind: Kind, board: BoardName) -> bool:
    return (
        kind.origin in {"archive", "field"}
        and kind.split == "test"
        and (kind.n_images, kind.n_pairs) == _SIZES[board]
        and kind.folds == _folds(board)
    )


def _reported_by_noise(board: BoardName) -> dict[Noise, list[ReportedRow]]:
    groups: dict[Noise, list[ReportedRow]] = defaultdict(list)
    for row in read_reported(board):
        groups[row.noise].append(row)
    return groups


def _order(section: Section, board: BoardName) -> tuple[object, ...]:
    kind, noise = section.kind, section.kind.noise
    return (
        kind.split != "test",
        board in TOKENIZERS and section.with_reported,
        not section.with_reported,
        _PROTOCOLS.index(noise.protocol),
        noise.ratio or 0.0,
        -kind.n_images,
        kind.fingerprint or "",
    )


def _section(
    kind: Kind, scored: list[Row], reported: list[ReportedRow], *, published: bool
) -> Section:
    rows = scored + _references(kind, scored) + [_reported(row, kind) for row in reported]
    axis = axis_of(max(row.high for row in rows))
    return Section(
        kind=kind,
        with_reported=bool(reported),
        published=published,
        rows=_placed(_with_places(rows, kind)),
        axis=axis,
        base=_base_of(min(row.low for row in rows if row.evidence != "reference"), axis),
    )


def _scored(entry: Entry, board: BoardName) -> Row:
    result = entry.result
    folds = result.folds if board == "coco-1k" else None
    part: Result | Folds = folds or result
    low, high = result.rsum_interval
    if folds is not None:
        ways = ((folds.i2t, result.n_images), (folds.t2i, result.n_pairs))
        half = _least_half_width([(way.values(), n) for way, n in ways])
        low, high = folds.rsum - half, folds.rsum + half
    return Row(
        evidence=entry.evidence,
        method=result.method.name,
        rsum=part.rsum,
        low=low,
        high=high,
        recalls=part.i2t.values() + part.t2i.values(),
        ranked=result.ranked,
        entry=entry,
    )


def _reported(row: ReportedRow, kind: Kind) -> Row:
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
    deviations = [
        least_deviation([dict(zip(CUTOFFS, way, strict=True))], queries) for way, queries in ways
    ]
    return _Z95 * hypot(*deviations)


def _references(kind: Kind, scored: Sequence[Row]) -> list[Row]:
    """References on which all results that have them agree (a truth file may differ)."""
    if not scored or kind.folds > 1:
        images, pairs = kind.n_images // kind.folds, kind.n_pairs // kind.folds
        return [reference("chance", chance_rsum(images, pairs))]
    values: dict[str, set[float]] = defaultdict(set)
    for row in scored:
        for name, rsum in (row.entry.result.references if row.entry else {}).items():
            values[name].add(rsum)
    return [reference(name, *found) for name, found in values.items() if len(found) == 1]


def _ranks(row: Row, kind: Kind) -> RankRecord | None:
    """Give the ranks that a row's own figures follow from, if they are public and to be ranked."""
    if row.entry is None or not row.ranked or kind.folds > 1:
        return None
    return row.entry.result.ranks


def _with_places(rows: list[Row], kind: Kind) -> list[Row]:
    """Say of each row with ranks which places it holds and whether it is level with the best.

    Places are those among the rows with ranks, and behind every other row whose interval lies above
    the whole of its own, or may.
    """
    known = [record for row in rows if (record := _ranks(row, kind))]
    if not known:
        return rows
    hits = np.stack([hits_per_image(*record.read(), record.owner()) for record in known])
    places = iter(zip(rank_intervals(hits).tolist(), tied_with_first(hits).tolist(), strict=True))
    others = [row for row in rows if _competes(row) and _ranks(row, kind) is None]
    return [
        _with_place(row, others, *next(places)) if _ranks(row, kind) is not None else row
        for row in rows
    ]


def _with_place(row: Row, others: Sequence[Row], among: list[int], tied: bool) -> Row:  # noqa: FBT001
    above = sum(other.low > row.high for other in others)
    perhaps = sum(other.high >= row.low for other in others)
    return replace(row, places=(among[0] + above, among[1] + perhaps), tied=tied)


def _competes(row: Row) -> bool:
    return row.ranked and row.evidence != "reference"


def _placed(rows: list[Row]) -> tuple[Row, ...]:
    """Sort by rSum, the unranked last, and number the ranked: 1, 2, 2, 4."""

    def order(row: Row) -> tuple[bool, float, str, str]:
        return not row.ranked, -row.rsum, row.method, row.entry.name if row.entry else ""

    placed: list[Row] = []
    seen = 0
    for _, group in groupby(sorted(rows, key=order), key=lambda row: (row.ranked, row.rsum)):
        tied = list(group)
        competing = [row for row in tied if _competes(row)]
        placed += [replace(row, place=seen + 1) if _competes(row) else row for row in tied]
        seen += len(competing)
    return tuple(placed)
