"""The rows of a board for its exports: those of its pages, without the references."""

from dataclasses import replace

from leaderboard.board.exports import PUBLISHED, ExportRow
from leaderboard.board.reported import ReportedRow
from leaderboard.board.tables import Board, Row, Section
from now_builder.formats.benchmarks import BoardName


def rows_of(board: Board) -> list[ExportRow]:
    """Return the export rows of a board, best first within each comparable section."""
    return [
        export_row(row, section, board.name)
        for section in board.sections
        for row in section.rows
        if row.evidence != "reference"
    ]


def export_row(row: Row, section: Section, board: BoardName) -> ExportRow:
    """Make the export row of a scored entry or of a reported row.

    Raises:
        ValueError: If the row is a reference.
    """
    known = row.resampled if row.entry else row.low < row.high
    low, high = (row.low, row.high) if known else (None, None)
    if row.reported is not None:
        return replace(from_reported(row.reported), place=row.place, low=low, high=high)
    if row.entry is None:
        raise ValueError(f"{row.method}: found a reference, expected an entry or a reported row")
    result = row.entry.result
    return ExportRow(
        board=board,
        noise=section.kind.noise.title,
        method=row.method,
        evidence=row.evidence,
        rsum=row.rsum,
        data=_data_of(section),
        place=row.place,
        place_interval=row.places,
        low=low,
        high=high,
        recalls=row.recalls,
        ensemble=result.training.ensemble_size,
        post_processing=result.postprocessing.kind,
        date=row.date,
        entry=row.entry.name,
        url=result.links.paper or result.links.code,
        authors=result.authors,
        footnote=result.reason,
        flags=tuple(flag.code for flag in row.flags),
        signed=row.signed,
        lists=result.precision is None,
    )


def from_reported(row: ReportedRow) -> ExportRow:
    """Make the export row of a reported row."""
    return ExportRow(
        board=row.board,
        noise=row.noise.title,
        method=row.method,
        evidence="reported",
        rsum=row.rsum,
        recalls=row.recalls,
        ensemble=row.ensemble,
        url=row.source.url,
        authors=row.source.authors,
        source=row.source,
        table=row.table,
        footnote=row.footnote,
    )


def _data_of(section: Section) -> str:
    kind = section.kind
    if section.published or kind.fingerprint is None:
        return PUBLISHED
    kinds = {"rebuilt": "rebuilt release", "blind": "blind round", "closed": "closed blind round"}
    return f"{kinds.get(kind.origin, 'copy')} {kind.fingerprint[:8]}, {kind.split} split"
