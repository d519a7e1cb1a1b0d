"""What the API shows of entries and boards, as models that the OpenAPI description names."""

from collections.abc import Iterable, Mapping
from datetime import date, datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from leaderboard.board.export_rows import rows_of
from leaderboard.board.exports import FORMATS, TITLES, ExportRow
from leaderboard.board.reported import BoardName
from leaderboard.board.tables import Board, boards_of
from leaderboard.core.uncertainty import Comparison, Discordance
from leaderboard.scoring.result import Flag
from leaderboard.service.index import Indexed
from leaderboard.store.entries import Entry, Reproduction, Withdrawal


class _View(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EntryView(_View):
    """An entry, without its figures in full: ``result`` has them.

    Attributes:
        submitter: None while the entry is anonymous, or where nobody is on record.
        page: Address for people.
        result: Address of ``result.json``.
    """

    name: str
    track: str
    split: str
    method: str
    authors: tuple[str, ...]
    evidence: str
    rsum: float
    rsum_interval: tuple[float, float]
    ranked: bool
    flags: tuple[Flag, ...]
    submitter: str | None
    submitted_at: datetime | None
    anonymous_until: date | None
    withdrawal: Withdrawal | None
    reproductions: tuple[Reproduction, ...]
    page: str
    result: str


class OwnView(_View):
    """An entry as its owner sees it in the list."""

    name: str
    track: str
    split: str
    method: str
    rsum: float
    ranked: bool
    evidence: str
    submitted_at: datetime | None
    anonymous_until: date | None
    withdrawn_at: datetime | None


class OwnEntries(_View):
    """The entries of who asks, the newest first."""

    submissions: tuple[OwnView, ...]


class BoardRow(_View):
    """A row of a board; see :class:`leaderboard.board.exports.ExportRow`."""

    board: str
    noise: str
    data: str
    place: int | None
    place_low: int | None
    place_high: int | None
    method: str
    evidence: str
    rsum: float | None
    low: float | None
    high: float | None
    i2t_r1: float | None
    i2t_r5: float | None
    i2t_r10: float | None
    t2i_r1: float | None
    t2i_r5: float | None
    t2i_r10: float | None
    ensemble: int | None
    post_processing: str | None
    date: str | None
    entry: str | None
    url: str | None
    authors: tuple[str, ...]
    source: dict[str, Any] | None
    table: str | None
    footnote: str | None


class BoardView(_View):
    """A board: groups of rows under one noise, scored on one data set, the best first in each."""

    rows: tuple[BoardRow, ...]


class BoardLink(_View):
    """A board in the list of boards."""

    board: str
    title: str
    entries: int
    href: str


class Boards(_View):
    """All boards."""

    boards: tuple[BoardLink, ...]


class ComparisonView(_View):
    """Entry ``a`` less entry ``b`` on the same queries, in rSum points.

    Attributes:
        low: Lower end of the 95 % interval, by a paired bootstrap over images.
        high: Upper end.
        p: Of the paired sign-flip test, two-sided.
        i2t: McNemar's exact test of each recall, by cutoff.
        t2i: The same.
    """

    a: str
    b: str
    difference: float
    low: float
    high: float
    p: float
    i2t: dict[int, Discordance]
    t2i: dict[int, Discordance]


class Filter(_View):
    """Which rows of a board to show, and how; None asks for all.

    Attributes:
        format: Of the answer.
        tier: Evidence.
        ensemble: Whether similarities of several networks were averaged.
        postprocessing: What was done to the similarities.
        external_data: Whether other data was used; only scored rows say so.
    """

    format: Literal["json", "csv", "md", "tex", "bib"] = "json"
    tier: Literal["scored", "reproduced", "blind", "reported"] | None = None
    ensemble: bool | None = None
    postprocessing: Literal["none", "per_query", "transductive"] | None = None
    external_data: bool | None = None

    def passes(self, row: ExportRow, entry: Entry | None) -> bool:
        """Whether a row is to be shown; one that does not say what is asked is not."""
        known = (
            row.evidence,
            None if row.ensemble is None else row.ensemble > 1,
            row.post_processing,
            None if entry is None else bool(entry.result.training.external_data),
        )
        asked = (self.tier, self.ensemble, self.postprocessing, self.external_data)
        return all(want is None or want == is_ for want, is_ in zip(asked, known, strict=True))


MEDIA_TYPES = {
    "json": "application/json",
    "csv": "text/csv; charset=utf-8",
    "md": "text/markdown; charset=utf-8",
    "tex": "application/x-tex; charset=utf-8",
    "bib": "application/x-bibtex; charset=utf-8",
}


def view_entry(entry: Entry) -> EntryView:
    """Show an entry."""
    result, filing = entry.shown, entry.filing
    told = entry.disclosure or filing
    return EntryView(
        name=entry.name,
        track=result.track,
        split=result.split,
        method=result.method.name,
        authors=result.authors,
        evidence=entry.evidence,
        rsum=result.rsum,
        rsum_interval=result.rsum_interval,
        ranked=result.ranked,
        flags=result.flags,
        submitter=told.submitter if told else None,
        submitted_at=filing.submitted_at if filing else None,
        anonymous_until=filing.anonymous_until if filing else None,
        withdrawal=entry.withdrawal,
        reproductions=entry.reproductions,
        page=f"/entries/{entry.name}.html",
        result=f"/v1/entries/{entry.name}/result",
    )


def view_link(board: BoardName, entries: Iterable[Entry]) -> BoardLink:
    """Name a board."""
    count = sum(board in boards_of(entry.result) for entry in entries)
    return BoardLink(board=board, title=TITLES[board], entries=count, href=f"/v1/boards/{board}")


def view_comparison(found: Comparison, a: str, b: str) -> ComparisonView:
    """Show a comparison."""
    return ComparisonView(
        a=a,
        b=b,
        **{
            field: getattr(found, field)
            for field in ("difference", "low", "high", "p", "i2t", "t2i")
        },
    )


def view_own(rows: Iterable[Indexed]) -> OwnEntries:
    """Show a user's entries."""
    return OwnEntries(
        submissions=tuple(
            OwnView(**{field: getattr(row, field) for field in OwnView.model_fields})
            for row in rows
        )
    )


def export_board(board: Board, entries: Mapping[str, Entry], wanted: Filter) -> str:
    """Write the rows that pass a filter; places are those among all rows."""
    shown = [row for row in rows_of(board) if wanted.passes(row, entries.get(row.entry or ""))]
    return FORMATS[wanted.format](shown)
