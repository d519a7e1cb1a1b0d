"""Models of the API's responses about entries and boards, and how to make them."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from leaderboard.board.exports import FORMATS, ExportRow, rows_of
from leaderboard.board.tables import Board
from leaderboard.core.uncertainty import Discordance
from leaderboard.scoring.result import Flag
from leaderboard.service.database import EntryRow
from leaderboard.store.entries import Entry, Evidence, Reproduction, Withdrawal


class _View(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EntryView(_View):
    """Summary of an entry; ``result`` links to all figures.

    Attributes:
        rsum: None if withdrawn, as is its interval. Of the judge's run, if there is one.
        claimed_rsum: that of the entry's own file.
        flags: flags of its file, and those found by comparison with other entries.
        lists: whether it was submitted as ranked lists, which get no place.
        submitter: handle; None if unknown.
    """

    name: str
    track: str
    split: str
    method: str
    authors: tuple[str, ...]
    evidence: str
    signed: bool
    received_at: datetime | None
    rsum: float | None
    claimed_rsum: float | None
    rsum_interval: tuple[float, float] | None
    ranked: bool
    flags: tuple[Flag, ...]
    lists: bool
    submitter: str | None
    submitted_at: datetime | None
    withdrawal: Withdrawal | None
    reproductions: tuple[Reproduction, ...]
    page: str
    result: str


class OwnView(_View):
    """An entry in its owner's list."""

    name: str
    track: str
    split: str
    method: str
    rsum: float
    ranked: bool
    evidence: str
    flags: tuple[str, ...]
    submitted_at: datetime | None
    withdrawn_at: datetime | None


class OwnEntries(_View):
    """The caller's entries, newest first."""

    submissions: tuple[OwnView, ...]


class BoardView(_View):
    """Rows of a board in its JSON export, best first within each section."""

    rows: tuple[dict[str, Any], ...]


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
        low: lower end of the 95 % interval, by a paired bootstrap over images.
        high: upper end of that interval.
        p: two-sided p-value of the paired sign-flip test.
        i2t: McNemar's exact test of each recall, by cutoff.
        t2i: the same for caption queries.
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
    """Filter and format of a board's rows; None matches all.

    Attributes:
        external_data: whether external data was used; known only for scored rows.
    """

    format: Literal["json", "csv", "md", "tex", "bib"] = "json"
    tier: Evidence | Literal["reported"] | None = None
    ensemble: bool | None = None
    postprocessing: Literal["none", "per_query", "transductive"] | None = None
    external_data: bool | None = None

    def passes(self, row: ExportRow, entry: Entry | None) -> bool:
        """Return whether a row matches; unknown properties match only None."""
        known = (
            row.evidence,
            None if row.ensemble is None else row.ensemble > 1,
            row.post_processing,
            None if entry is None else entry.result.training.has_external_data,
        )
        asked = (self.tier, self.ensemble, self.postprocessing, self.external_data)
        return all(want is None or want == is_ for want, is_ in zip(asked, known, strict=True))


def view_entry(entry: Entry, flags: tuple[Flag, ...]) -> EntryView:
    """Make the view of an entry; flags are its own and those by comparison with other entries."""
    result, shown, filing = entry.result, entry.shown, entry.filing
    gone = entry.withdrawal is not None
    return EntryView(
        name=entry.name,
        track=result.track,
        split=result.split,
        method=result.method.name,
        authors=result.authors,
        evidence=entry.evidence,
        signed=entry.signed,
        received_at=entry.proof.received_at,
        rsum=None if gone else shown.rsum,
        claimed_rsum=None if gone else result.rsum,
        rsum_interval=None if gone else shown.rsum_interval,
        ranked=shown.ranked and not gone,
        flags=() if gone else flags,
        lists=shown.precision is None,
        submitter=filing.submitter if filing else None,
        submitted_at=filing.submitted_at if filing else None,
        withdrawal=entry.withdrawal,
        reproductions=tuple(run.model_copy(update={"result": None}) for run in entry.reproductions),
        page=f"/entries/{entry.name}.html",
        result=f"/v1/entries/{entry.name}/result",
    )


def view_own(row: EntryRow, flags: tuple[Flag, ...]) -> OwnView:
    """Make the view of an entry in its owner's list; a withdrawn entry shows no flags."""
    values = {name: getattr(row, name) for name in OwnView.model_fields.keys() - {"flags"}}
    live = () if row.withdrawn_at else flags
    return OwnView(**values, flags=tuple(flag.code for flag in live))


def export_board(board: Board, entries: Mapping[str, Entry], wanted: Filter) -> str:
    """Export the rows that match a filter; places are those among all rows."""
    shown = [row for row in rows_of(board) if wanted.passes(row, entries.get(row.entry or ""))]
    return FORMATS[wanted.format](shown)
