"""The board: which results stand side by side, and in what order."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

from leaderboard.gallery import Origin
from leaderboard.metrics import CUTOFFS
from leaderboard.references import chance_rsum
from leaderboard.reported import read_reported
from leaderboard.store import Entry
from leaderboard.uncertainty import least_deviation
from now_builder.formats.captions import TOKENIZERS, Tokenizer

# The authors' test split, on which the paper's rows are.
PAPER_SPLIT = "test"
PAPER_PAIRS = 1000
_Z95 = 1.96


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the board.

    Attributes:
        evidence: ``scored`` from a file here, ``reported`` by the paper, or a ``reference``: what
            knowing nothing, or one thing, would give.
        place: From 1; equal scores share one. None where it is not ranked.
        low: Lower end of the 95 % interval of rSum; of the least plausible one if reported.
        high: Upper end.
        entry: The result behind a scored row.
    """

    evidence: Literal["scored", "reported", "reference"]
    method: str
    rsum: float
    low: float
    high: float
    recalls: tuple[float, ...] = ()
    ranked: bool = True
    place: int | None = None
    entry: Entry | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """Rows that may be compared with each other: one split of one release under one tokenizer.

    Attributes:
        fingerprint: Of the split; None where only the paper's rows are there.
        with_paper: Whether the paper's rows are among them.
        axis: Where the bars end, in rSum points.
    """

    split: str
    n_pairs: int
    fingerprint: str | None
    origin: Origin
    with_paper: bool
    rows: tuple[Row, ...]
    axis: float


@dataclass(frozen=True, slots=True)
class Track:
    """All sections of a tokenizer, the test split first, the paper's last."""

    name: Tokenizer
    sections: tuple[Section, ...]


def make_board(entries: Sequence[Entry]) -> tuple[Track, ...]:
    """Group results by track, split and release; rank each group by its exact rSum.

    Results on the published layout with as many test pairs as the paper's stand among the paper's
    rows; all others are on other data and stand apart.
    """
    return tuple(
        Track(track, tuple(_sections([e for e in entries if e.result.track == track], track)))
        for track in TOKENIZERS
    )


def _sections(entries: Iterable[Entry], track: Tokenizer) -> list[Section]:
    groups: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for entry in entries:
        groups[entry.result.split, entry.result.release.fingerprint].append(entry)
    sections = [_section(group, track) for group in groups.values()]
    if not any(section.with_paper for section in sections):
        sections.append(_make_section("archive", PAPER_SPLIT, None, _paper_rows(track)))
    return sorted(
        sections, key=lambda s: (s.with_paper, s.split != "test", s.fingerprint or "", s.n_pairs)
    )


def _section(entries: Sequence[Entry], track: Tokenizer) -> Section:
    first = entries[0].result
    with_paper = (first.release.origin, first.split, first.n_pairs) == (
        "archive",
        PAPER_SPLIT,
        PAPER_PAIRS,
    )
    rows = [_scored(entry) for entry in entries] + _agreed_references(entries)
    if with_paper:
        rows += [row for row in _paper_rows(track) if row.evidence == "reported"]
    return replace(
        _make_section(first.release.origin, first.split, first.release.fingerprint, rows),
        n_pairs=first.n_pairs,
        with_paper=with_paper,
    )


def _make_section(origin: Origin, split: str, fingerprint: str | None, rows: list[Row]) -> Section:
    return Section(
        split=split,
        n_pairs=PAPER_PAIRS,
        fingerprint=fingerprint,
        origin=origin,
        with_paper=True,
        rows=_placed(rows),
        axis=axis_of(max(row.high for row in rows)),
    )


def axis_of(highest: float) -> float:
    """Choose a round number of rSum points, at most 600, where bars that long may end."""
    for end in (60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 420.0, 480.0, 540.0):
        if highest <= end:
            return end
    return 600.0


def _placed(rows: list[Row]) -> tuple[Row, ...]:
    """Sort by rSum, the unranked last, and number the ranked: 1, 2, 2, 4."""

    def order(row: Row) -> tuple[bool, float, str, str]:
        return not row.ranked, -row.rsum, row.method, row.entry.name if row.entry else ""

    placed: list[Row] = []
    seen = 0
    for _, group in groupby(sorted(rows, key=order), key=lambda row: (row.ranked, row.rsum)):
        tied = list(group)
        competing = [row for row in tied if row.ranked and row.evidence != "reference"]
        placed += [replace(row, place=seen + 1) if row in competing else row for row in tied]
        seen += len(competing)
    return tuple(placed)


def _scored(entry: Entry) -> Row:
    result = entry.result
    return Row(
        evidence="scored",
        method=result.method.name,
        rsum=result.rsum,
        low=result.rsum_interval[0],
        high=result.rsum_interval[1],
        recalls=result.i2t.values() + result.t2i.values(),
        ranked=result.ranked,
        entry=entry,
    )


def _agreed_references(entries: Sequence[Entry]) -> list[Row]:
    """References on which all results that have them agree (a truth file may differ)."""
    values: dict[str, set[float]] = defaultdict(set)
    for entry in entries:
        for name, rsum in entry.result.references.items():
            values[name].add(rsum)
    return [reference(name, *found) for name, found in values.items() if len(found) == 1]


def reference(name: str, rsum: float) -> Row:
    """Make the row of a scorer that knows nothing, or one thing."""
    return Row(evidence="reference", method=name, rsum=rsum, low=rsum, high=rsum)


def _paper_rows(track: Tokenizer) -> list[Row]:
    rows = [reference("chance", chance_rsum(PAPER_PAIRS, PAPER_PAIRS))]
    for row in read_reported(track):
        ways = [dict(zip(CUTOFFS, way, strict=True)) for way in (row.i2t, row.t2i) if way]
        half = _Z95 * least_deviation([*ways], PAPER_PAIRS)
        rows.append(
            Row(
                evidence="reported",
                method=row.method,
                rsum=row.rsum,
                low=row.rsum - half,
                high=row.rsum + half,
                recalls=row.recalls,
            )
        )
    return rows
