"""Reported rows: figures printed in papers, with their source and known misprints."""

import tomllib
from collections import Counter
from functools import cache
from importlib.resources import files
from typing import Literal

from pydantic import Field, model_validator

from now_builder.config import Strict, build
from now_builder.errors import FormatError
from now_builder.formats.benchmarks import BOARD_FACTS, BoardName

Protocol = Literal["none", "captions", "images", "either", "web", "unknown", "unstated"]
Recall3 = tuple[float, float, float]

FOLDER = "reported"
_SOURCES = "sources.toml"
_TABLES = ("now.toml", "flickr30k.toml", "coco.toml", "cc152k.toml")

# Where a test query counts for 0.1 points or more, one-decimal recalls are exact; elsewhere they
# are rounded, and so is their sum.
_EXACT = frozenset(name for name, facts in BOARD_FACTS.items() if max(facts.test_size) <= 1000)
_EXACT_TOLERANCE = 0.05
_ROUNDED_TOLERANCE = 0.1
_SLACK = 1e-6


class NoiseCondition(Strict):
    """The noise of the training pairs. Rows under different noise are not comparable.

    Attributes:
        protocol: ``captions`` gives single captions to other images, so that an image mostly
            keeps some of its own; ``images`` gives all captions of an image away together, which
            is harder; ``either`` is the same where an image has one caption, on top of the noise
            of the web; ``web`` is noise as found; ``unknown`` where the table, its released code
            and the tables that it cites do not agree; ``unstated`` if a submission states none.
        mismatch: Share of wrong pairs, in [0, 1); None for noise as found.
    """

    protocol: Protocol
    mismatch: float | None = Field(default=None, ge=0, lt=1)

    @model_validator(mode="after")
    def _agree(self) -> "NoiseCondition":
        silent = self.mismatch is None
        expected = {"none": self.mismatch == 0, "web": silent, "unstated": silent}
        if not expected.get(self.protocol, bool(self.mismatch)):
            raise ValueError(
                f"protocol {self.protocol!r} does not go with mismatch {self.mismatch}"
            )
        return self

    @property
    def title(self) -> str:
        """The condition as text."""
        share = f"{100 * (self.mismatch or 0):.0f} %"
        return {
            "none": "no noise added",
            "web": "noise of the web",
            "captions": f"{share} noise, captions shuffled one by one",
            "images": f"{share} noise, images shuffled with all their captions",
            "either": f"noise of the web, {share} more shuffled",
            "unstated": "noise not stated",
            "unknown": f"{share} noise, protocol not established",
        }[self.protocol]


class Source(Strict):
    """A publication, at the address where the figures were read.

    Authors are ``Family, Given``; none if the publication names none.
    """

    key: str
    kind: Literal["article", "inproceedings", "misc"]
    title: str
    authors: tuple[str, ...]
    venue: str
    pages: str | None = None
    year: int
    url: str


class Correction(Strict):
    """A row as printed elsewhere, in another table or cell; the board does not use it.

    Attributes:
        i2t: recalls as printed; None if they are not at issue or not printed.
        why: what the source says, which figure the board uses, and the reason.
    """

    source: str
    table: str
    i2t: Recall3 | None = None
    t2i: Recall3 | None = None
    rsum: float | None = None
    why: str


class _Figures(Strict):
    method: str
    i2t: Recall3 | None = None
    t2i: Recall3 | None = None
    rsum: float | None = None
    ensemble: int | None = Field(default=None, ge=1)
    note: str | None = None
    corrections: tuple[Correction, ...] = ()


class _Table(Strict):
    board: BoardName
    noise: NoiseCondition
    source: str
    table: str
    rows: tuple[_Figures, ...]


class _File(Strict):
    tables: tuple[_Table, ...]


class _SourceFile(Strict):
    sources: tuple[Source, ...]


class ReportedRow(Strict):
    """A row of a published table.

    Attributes:
        i2t: image to text, R@1, R@5, R@10 in percent; None if only the sum is known.
        rsum: rSum as printed; the sum of the recalls if the table prints none.
        source: publication of the figures, possibly a later paper that cites the method.
        ensemble: number of networks whose similarities are averaged; None if unknown.
        corrections: other figures printed for the row.
    """

    board: BoardName
    method: str
    noise: NoiseCondition
    i2t: Recall3 | None
    t2i: Recall3 | None
    rsum: float
    source: Source
    table: str
    ensemble: int | None
    note: str | None
    corrections: tuple[Correction, ...]

    @property
    def recalls(self) -> tuple[float, ...]:
        """The six recalls; empty if only their sum is known."""
        return self.i2t + self.t2i if self.i2t and self.t2i else ()

    @property
    def footnote(self) -> str | None:
        """The note and all corrections in one line."""
        parts = [f"{self.note[0].upper()}{self.note[1:]}."] if self.note else []
        parts += [_correction_text(correction) for correction in self.corrections]
        return " ".join(parts) or None


@cache
def read_sources() -> dict[str, Source]:
    """Read the packaged publications, by key."""
    found = build(_SourceFile, _read(_SOURCES), _SOURCES).sources
    return {source.key: source for source in found}


@cache
def read_reported(board: BoardName | None = None) -> tuple[ReportedRow, ...]:
    """Read the packaged rows of one board, or of all.

    Raises:
        FormatError: If the recalls of a row do not add up to its rSum, a row is there twice, or a
            table names an unknown source.
    """
    if board is not None:
        return tuple(row for row in read_reported() if row.board == board)
    rows = [row for name in _TABLES for row in parse_reported(_read(name), name)]
    counts = Counter((row.board, row.noise, row.method, row.source.key) for row in rows)
    for (name, _, method, source), count in counts.items():
        if count > 1:
            raise FormatError(FOLDER, f"{name} {method} from {source}: found twice")
    return tuple(rows)


def parse_reported(tree: dict[str, object], origin: str) -> list[ReportedRow]:
    """Parse the rows of a file's tables; ``origin`` names it in messages.

    Raises:
        ConfigError: If a field is missing, unknown or of the wrong kind.
        FormatError: If recalls do not add up, or a source is unknown.
    """
    return [
        _row(table, figures, origin)
        for table in build(_File, tree, origin).tables
        for figures in table.rows
    ]


def _row(table: _Table, figures: _Figures, origin: str) -> ReportedRow:
    name = f"{table.board} {figures.method}"
    sources = read_sources()
    for key in (table.source, *(correction.source for correction in figures.corrections)):
        if key not in sources:
            raise FormatError(origin, f"{name}: found source {key!r}, expected one of {_SOURCES}")
    tolerance = _EXACT_TOLERANCE if table.board in _EXACT else _ROUNDED_TOLERANCE
    rsum = _checked_sum(figures, f"{origin}, {name}", tolerance)
    for correction in figures.corrections:
        if correction.i2t and correction.rsum is not None:
            _checked_sum(correction, f"{origin}, {name}, correction", tolerance)
    return ReportedRow(
        **figures.model_dump(exclude={"rsum", "corrections"}),
        board=table.board,
        noise=table.noise,
        rsum=rsum,
        source=sources[table.source],
        table=table.table,
        corrections=figures.corrections,
    )


def _checked_sum(figures: _Figures | Correction, name: str, tolerance: float) -> float:
    if (figures.i2t is None) != (figures.t2i is None):
        raise FormatError(name, "found recalls of one direction, expected both or none")
    if figures.i2t is None or figures.t2i is None:
        if figures.rsum is None:
            raise FormatError(name, "found neither recalls nor rsum")
        return figures.rsum
    total = round(sum(figures.i2t + figures.t2i), 1)
    if figures.rsum is not None and abs(total - figures.rsum) > tolerance + _SLACK:
        raise FormatError(name, f"found rsum {figures.rsum}, its recalls add up to {total}")
    return total if figures.rsum is None else figures.rsum


def _correction_text(correction: Correction) -> str:
    where = f"{short_name(read_sources()[correction.source])}, {correction.table}"
    if correction.i2t and correction.t2i:
        ways = (" ".join(map("{:.1f}".format, way)) for way in (correction.i2t, correction.t2i))
        printed = f"prints {' / '.join(ways)}"
    elif correction.rsum is not None:
        printed = f"prints rSum {correction.rsum:.1f}"
    else:
        return f"{where}: {correction.why}"
    return f"{where} {printed}. {correction.why}"


def short_name(source: Source) -> str:
    """Return a short citation: first author, or title, and year."""
    name = source.authors[0].partition(",")[0] if source.authors else source.title.partition(":")[0]
    others = " et al." if len(source.authors) > 1 else ""
    return f"{name}{others} {source.year}"


def _read(name: str) -> dict[str, object]:
    text = files("leaderboard.board").joinpath(FOLDER, name).read_text(encoding="utf-8")
    return tomllib.loads(text)
