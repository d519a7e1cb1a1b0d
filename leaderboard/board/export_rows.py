"""The rows of a board for its exports: those of its pages, without the references."""

from collections.abc import Iterable
from dataclasses import replace

from leaderboard.board.exports import PUBLISHED, ExportRow
from leaderboard.board.reported import ReportedRow
from leaderboard.board.tables import Board, Row, Section, make_board
from leaderboard.store.entries import Entry
from now_builder.formats.benchmarks import BoardName


def export_rows(board: BoardName, entries: Iterable[Entry]) -> list[ExportRow]:
    """Return the rows of a board, best first within each comparable section.

    Args:
        board: name of the board; ``coco-1k`` takes the folds of a result on MS-COCO, ``coco-5k``
            the whole.
        entries: entries of a store; those of other boards and withdrawn ones are ignored.
    """
    return rows_of(make_board(board, entries))


def rows_of(board: Board) -> list[ExportRow]:
    """Return the export rows of a board."""
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
    if row.reported is not None:
        known = row.low < row.high
        return replace(
            from_reported(row.reported),
            place=row.place,
            low=row.low if known else None,
            high=row.high if known else None,
        )
    if row.entry is None:
        raise ValueError(f"{row.method}: found a reference, expected an entry or a reported row")
    result, known = row.entry.shown, section.kind.folds == 1
    return ExportRow(
        board=board,
        noise=section.kind.noise.title,
        method=row.method,
        evidence=row.evidence,
        rsum=row.rsum,
        data=_data_of(section),
        place=row.place,
        place_interval=row.places,
        low=row.low if known else None,
        high=row.high if known else None,
        recalls=row.recalls,
        ensemble=result.training.ensemble_size,
        post_processing=result.postprocessing.kind,
        date=row.date,
        entry=row.entry.name,
        url=result.links.paper or result.links.code,
        authors=result.authors,
        footnote=result.reason,
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
    kinds = {"rebuilt": "rebuilt release", "blind": "blind round", "closed": "blind round"}
    return f"{kinds.get(kind.origin, 'copy')} {kind.fingerprint[:8]}, {kind.split} split"
