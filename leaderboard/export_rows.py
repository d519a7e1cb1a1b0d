"""The rows of a board for its exports: reported and scored ones, placed where they compare."""

from collections.abc import Iterable
from dataclasses import replace

from leaderboard.exports import PUBLISHED, ExportRow
from leaderboard.metrics import CUTOFFS
from leaderboard.reported import Board, Noise, ReportedRow, read_reported
from leaderboard.result import Result
from leaderboard.store import Entry
from leaderboard.uncertainty import least_deviation

# Boards with one caption an image, on 1,000 pairs: web noise, and an interval of reported rows.
_WEB: frozenset[Board] = frozenset({"jieba", "bpe", "bert", "cc152k"})
_WEB_PAIRS = 1000
_Z95 = 1.96


def export_rows(board: Board, entries: Iterable[Entry]) -> list[ExportRow]:
    """Give a board's rows, best first in each group that may be compared.

    Args:
        board: Its id. ``coco-1k`` takes the folds of a result on MS-COCO, ``coco-5k`` the whole.
        entries: Of a store; those of other boards, and the withdrawn, are left out.
    """
    groups: dict[tuple[str, str], list[tuple[ExportRow, bool]]] = {}
    rows = [(from_reported(row), True) for row in read_reported(board)]
    for entry in entries:
        row = from_entry(entry, board)
        if row is not None:
            rows.append((row, entry.result.ranked))
    for row, ranked in rows:
        groups.setdefault((row.data, row.noise), []).append((row, ranked))
    return [row for group in groups.values() for row in _placed(group)]


def from_reported(row: ReportedRow) -> ExportRow:
    """Make the row of a published figure."""
    half = None
    if row.board in _WEB and row.i2t and row.t2i:
        ways = [dict(zip(CUTOFFS, way, strict=True)) for way in (row.i2t, row.t2i)]
        half = _Z95 * least_deviation([*ways], _WEB_PAIRS)
    return ExportRow(
        board=row.board,
        noise=row.noise.title,
        method=row.method,
        evidence="reported",
        rsum=row.rsum,
        low=None if half is None else row.rsum - half,
        high=None if half is None else row.rsum + half,
        recalls=row.recalls,
        ensemble=row.ensemble,
        url=row.source.url,
        authors=row.source.authors,
        source=row.source,
        table=row.table,
        footnote=row.footnote,
    )


def from_entry(entry: Entry, board: Board) -> ExportRow | None:
    """Make the row of a scored entry; None where it is not on the board."""
    result = entry.shown
    track, _, protocol = board.partition("-")
    if result.track != track or entry.withdrawal or (protocol == "1k" and not result.folds):
        return None
    whole = result.folds if protocol == "1k" and result.folds else result
    low, high = result.rsum_interval if whole is result else (None, None)
    return ExportRow(
        board=board,
        noise=_noise_of(result, board),
        method=result.method.name,
        evidence=entry.evidence,
        rsum=whole.rsum,
        data=_data_of(result),
        low=low,
        high=high,
        recalls=whole.i2t.values() + whole.t2i.values(),
        ensemble=result.training.ensemble_size,
        post_processing=result.postprocessing.kind,
        date=entry.filing.submitted_at.date().isoformat() if entry.filing else None,
        entry=entry.name,
        url=result.links.paper or result.links.code,
        authors=result.authors,
        footnote=result.reason,
    )


def _noise_of(result: Result, board: Board) -> str:
    noise = result.training.noise
    ratio = round(noise.ratio, 2) if noise else 0.0
    if board in _WEB and not ratio:
        return Noise(protocol="web").title
    if noise is None:
        return "noise not stated"
    if noise.protocol == "either":
        return f"{Noise(protocol='web').title}, {100 * ratio:.0f} % more shuffled"
    return Noise(protocol=noise.protocol if ratio else "none", ratio=ratio).title


def _data_of(result: Result) -> str:
    """Say what was scored on; a copy of the published data is known by its size alone."""
    published = result.release.origin == "field" or (
        result.release.origin == "archive" and result.n_pairs == _WEB_PAIRS
    )
    if published and result.split == "test":
        return PUBLISHED
    kind = {"rebuilt": "rebuilt release", "blind": "blind round"}.get(result.release.origin, "copy")
    return f"{kind} {result.release.fingerprint[:8]}, {result.split} split"


def _placed(group: list[tuple[ExportRow, bool]]) -> list[ExportRow]:
    """Sort by rSum, the unranked last, and number the ranked: 1, 2, 2, 4."""
    group = sorted(group, key=lambda pair: (not pair[1], -pair[0].rsum))
    rsums = [row.rsum for row, ranked in group if ranked]
    return [
        replace(row, place=1 + sum(other > row.rsum for other in rsums)) if ranked else row
        for row, ranked in group
    ]
