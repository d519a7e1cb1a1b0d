"""Reported rows: figures printed in papers, with their source and known misprints.

The tests check the packaged files: recalls add up, sources are known, no row is there twice.
"""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from pydantic import Field

from now_builder.config import Strict, build
from now_builder.formats.benchmarks import BoardName

Protocol = Literal["none", "captions", "images", "either", "web", "unknown", "unstated"]
Recall3 = tuple[float, float, float]

FOLDER = "reported"
_SOURCES = "sources.toml"
_TABLES = ("now.toml", "flickr30k.toml", "coco.toml", "cc152k.toml")


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
        why: the source's statement, the figure that the board uses, and the reason.
    """

    source: str
    table: str
    i2t: Recall3 | None = None
    t2i: Recall3 | None = None
    rsum: float | None = None
    why: str


class ReportedRow(Strict):
    """A row of a published table.

    Attributes:
        source: publication of the figures, possibly a later paper that cites the method.
        i2t: image to text, R@1, R@5, R@10 in percent; None if only the sum is known.
        rsum: rSum as printed; the sum of the recalls if the table prints none.
        ensemble: number of networks whose similarities are averaged; None if unknown.
        corrections: other figures printed for the row.
    """

    board: BoardName
    noise: NoiseCondition
    source: Source
    table: str
    method: str
    i2t: Recall3 | None = None
    t2i: Recall3 | None = None
    rsum: float
    ensemble: int | None = Field(default=None, ge=1)
    note: str | None = None
    corrections: tuple[Correction, ...] = ()

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
    sources = [build(Source, tree, _SOURCES) for tree in _read(_SOURCES)["sources"]]
    return {source.key: source for source in sources}


@cache
def read_reported(board: BoardName | None = None) -> tuple[ReportedRow, ...]:
    """Read the packaged rows of one board, or of all."""
    if board is not None:
        return tuple(row for row in read_reported() if row.board == board)
    reported = []
    for name in _TABLES:
        for table in _read(name)["tables"]:
            shared = {**table, "source": read_sources()[table["source"]]}
            rows = shared.pop("rows")
            for row in rows:
                rsum = round(sum(row.get("i2t", []) + row.get("t2i", [])), 1)
                reported.append(build(ReportedRow, {"rsum": rsum, **shared, **row}, name))
    return tuple(reported)


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


def _read(name: str) -> dict[str, Any]:
    text = files("leaderboard.board").joinpath(FOLDER, name).read_text(encoding="utf-8")
    return tomllib.loads(text)
