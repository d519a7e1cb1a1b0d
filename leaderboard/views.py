"""What the API shows of entries and boards, as models that the OpenAPI description names."""

from collections.abc import Iterable
from datetime import date, datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict

from leaderboard.board import Row, Section, Track
from leaderboard.index import Indexed
from leaderboard.result import Flag
from leaderboard.store import Entry, Reproduction, Withdrawal
from leaderboard.uncertainty import Comparison, Discordance


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


class RowView(_View):
    """A line of a board."""

    place: int | None
    method: str
    evidence: str
    rsum: float
    low: float
    high: float
    recalls: tuple[float, ...]
    ranked: bool
    entry: str | None


class SectionView(_View):
    """Rows that may be compared with each other."""

    split: str
    n_pairs: int
    fingerprint: str | None
    rows: tuple[RowView, ...]


class BoardView(_View):
    """A board."""

    board: str
    sections: tuple[SectionView, ...]


class BoardLink(_View):
    """A board in the list of boards."""

    board: str
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
    """Which rows of a board to show; None asks for all.

    Attributes:
        tier: Evidence.
        ensemble: Whether similarities of several networks were averaged.
        postprocessing: What was done to the similarities.
        external_data: Whether other data was used.
    """

    tier: str | None = None
    ensemble: bool | None = None
    postprocessing: Literal["none", "per_query", "transductive"] | None = None
    external_data: bool | None = None

    def passes(self, row: Row) -> bool:
        """Whether a row is to be shown; what a row does not say of itself passes no filter."""
        if self.tier not in {None, row.evidence}:
            return False
        asked = (self.ensemble, self.postprocessing, self.external_data)
        if asked == (None, None, None):
            return True
        if row.entry is None:
            return False
        result = row.entry.result
        size = result.training.ensemble_size
        known = (
            None if size is None else size > 1,
            result.postprocessing.kind,
            bool(result.training.external_data),
        )
        return all(a is None or a == k for a, k in zip(asked, known, strict=True))


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


def view_link(track: Track) -> BoardLink:
    """Name a board."""
    entries = sum(row.entry is not None for part in track.sections for row in part.rows)
    return BoardLink(board=track.name, entries=entries, href=f"/v1/boards/{track.name}")


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


def view_board(track: Track, wanted: Filter) -> BoardView:
    """Show a board."""
    return BoardView(
        board=track.name, sections=tuple(_view_section(part, wanted) for part in track.sections)
    )


def _view_section(section: Section, wanted: Filter) -> SectionView:
    return SectionView(
        split=section.split,
        n_pairs=section.n_pairs,
        fingerprint=section.fingerprint,
        rows=tuple(_view_row(row) for row in section.rows if wanted.passes(row)),
    )


def _view_row(row: Row) -> RowView:
    return RowView(
        place=row.place,
        method=row.method,
        evidence=row.evidence,
        rsum=row.rsum,
        low=row.low,
        high=row.high,
        recalls=row.recalls,
        ranked=row.ranked,
        entry=row.entry.name if row.entry else None,
    )
