"""The site: every page and file of the board by its path, rendered on request."""

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import cache, cached_property
from importlib.resources import files
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
from jinja2 import Environment
from markupsafe import Markup

from leaderboard.board import display_text
from leaderboard.board.board_cache import BoardCache, Key
from leaderboard.board.display_text import WAYS
from leaderboard.board.exports import (
    FORMATS,
    ExportRow,
    badge_json,
    badge_of,
    badge_svg,
    export_row,
    rows_of,
    to_bibtex,
)
from leaderboard.board.reported import short_name
from leaderboard.board.tables import (
    SORT_KEYS,
    Board,
    Row,
    Section,
    SortKey,
    axis_of,
    boards_of,
    make_board,
    reference,
    sorted_rows,
    spelled,
)
from leaderboard.metrics import CUTOFFS, expected_hits
from leaderboard.scoring.result import VERSION, Flag, Result
from leaderboard.site.charts import curves_of, progress_chart, rank_chart, recall_chart
from leaderboard.site.comparison import make_comparison
from leaderboard.store.dataset import DatasetReport
from leaderboard.store.entries import Entry
from leaderboard.store.relative import relative_flags
from now_builder.errors import ConfigError
from now_builder.formats.benchmarks import BOARDS, BoardName
from now_builder.formats.io import replacing_folder
from now_builder.program.html import template_environment

GENERATOR = "now-leaderboard"
ALL_PAIRS = 12
"""Number of rows of a section up to which the static site compares all pairs."""

NEWEST = 8
_OPEN_TABLES = 4
_AUTHORS = 12
LEADERS = 3
LINKS = {"paper": "Paper", "code": "Code", "weights": "Weights", "model_card": "Model card"}

SiteFile = tuple[str, str]
"""A file's text and its media type."""

MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "json": "application/json",
    "csv": "text/csv; charset=utf-8",
    "md": "text/markdown; charset=utf-8",
    "tex": "application/x-tex; charset=utf-8",
    "bib": "application/x-bibtex; charset=utf-8",
    "svg": "image/svg+xml; charset=utf-8",
}
_NAME = "(?P<name>[0-9a-f]{12})"
_BOARD = f"(?P<board>{'|'.join(BOARDS)})"


@dataclass(frozen=True, slots=True)
class Place:
    """Board, section and row of an entry."""

    board: Board
    section: Section
    row: Row


class Site:
    """All pages of the leaderboard, deterministic to the byte and rendered on request.

    Args:
        entries: all entries, withdrawn ones too, in any order.
        today: end of lines over time; None for the last row's date.
        reports: reports on the data sets of the entries.
        judge_key: name of the key of the store's signatures; without one every page says that it
            is not signed.
        cache: values computed for earlier states of the store.
    """

    def __init__(
        self,
        entries: Iterable[Entry],
        today: date | None = None,
        reports: Iterable[DatasetReport] = (),
        judge_key: str | None = None,
        *,
        cache: BoardCache | None = None,
    ) -> None:
        self._judge_key = judge_key
        self._entries = {entry.name: entry for entry in sorted(entries, key=lambda e: e.name)}
        self._today = today
        self._cache = cache or BoardCache()
        self._reports = {report.fingerprint[:16]: report for report in reports}
        self._data = {
            track.fingerprint: data_path(report)
            for report in self._reports.values()
            for track in report.tracks
        }
        self._boards: dict[BoardName, Board] = {}
        self._routes: dict[str, Callable[..., str | None]] = {
            r"index\.html": self._index,
            r"progress\.html": self._progress,
            r"404\.html": self.not_found,
            rf"boards/{_BOARD}(\.by-(?P<key>{'|'.join(SORT_KEYS)}))?\.html": self._board_page,
            rf"boards/{_BOARD}\.(?P<kind>{'|'.join(FORMATS)})": self._export,
            r"data/(?P<name>[0-9a-f]{16})\.html": self._data_page,
            rf"entries/{_NAME}\.html": self._entry_page,
            rf"results/{_NAME}\.json": self._result,
            rf"ranks/{_NAME}\.csv": self._ranks,
            rf"badges/{_NAME}\.(?P<kind>svg|json)": self._badge,
            rf"compare/{_NAME}\.\.(?P<other>[0-9a-f]{{12}})\.html": self._compare,
        }

    def get(self, path: str) -> SiteFile | None:
        """Render the file at a path such as ``boards/jieba.html``; None if there is none."""
        for pattern, render in self._routes.items():
            if found := re.fullmatch(pattern, path):
                text = render(**found.groupdict())
                kind = path.rpartition(".")[2]
                return None if text is None else (text, MEDIA_TYPES[kind])
        return None

    def paths(self) -> list[str]:
        """List every file of the static site, with the comparisons that a page links to."""
        found = ["index.html", "progress.html", "404.html"]
        for name in BOARDS:
            found.append(f"boards/{name}.html")
            found += [f"boards/{name}.by-{key}.html" for key in SORT_KEYS]
            found += [f"boards/{name}.{kind}" for kind in FORMATS]
        found += [data_path(report) for report in self._reports.values()]
        for entry in self._entries.values():
            found.append(f"entries/{entry.name}.html")
            if entry.withdrawal is None:
                found.append(f"results/{entry.name}.json")
                found += [f"badges/{entry.name}.{kind}" for kind in ("svg", "json")]
                found += [f"ranks/{entry.name}.csv"] if entry.result.ranks else []
        pairs = {
            compare_path(a, b)
            for name in BOARDS
            for section in self.board(name).sections
            for a, b in _linked_pairs(section)
        }
        return found + sorted(pairs)

    def board(self, name: BoardName) -> Board:
        """Return a board, made on first use."""
        with self._cache.lock:
            if name not in self._boards:
                entries = self._entries.values()
                self._boards[name] = make_board(name, entries, self._flags, self._cache)
            return self._boards[name]

    @cached_property
    def _flags(self) -> dict[str, tuple[Flag, ...]]:
        with self._cache.lock:
            return relative_flags(self._entries.values(), self._cache.pairs)

    def flags_of(self, entry: Entry) -> tuple[Flag, ...]:
        """Return the flags of an entry's file, and those by comparison with other entries."""
        return entry.result.current_flags + self._flags.get(entry.name, ())

    def not_found(self, depth: int = 0) -> str:
        """Render the page for missing addresses, ``depth`` folders below the root."""
        return self._render("404.html.j2", root="../" * depth)

    def _render(self, template: str, **values: object) -> str:
        return _render(template, judge_key=self._judge_key, **values)

    def _index(self) -> str:
        boards = [self.board(name) for name in BOARDS]
        live = [entry for entry in self._entries.values() if entry.withdrawal is None]
        newest = sorted(live, key=_arrival, reverse=True)[:NEWEST]
        return self._render(
            "index.html.j2",
            root="",
            boards=[(board, _leaders(board), _count(board)) for board in boards],
            newest=[(entry, boards_of(entry.result)[0], self.flags_of(entry)) for entry in newest],
            n_entries=len(live),
        )

    def _progress(self) -> str:
        boards = []
        for name in BOARDS:
            tests = [part for part in self.board(name).sections if part.kind.split == "test"]
            charts = [progress_chart(f"{name}-{p.kind.name}", p, self._today) for p in tests]
            drawn = [pair for pair in zip(tests, charts, strict=True) if pair[1]]
            boards.append((name, drawn))
        return self._render("progress.html.j2", root="", boards=boards)

    def _board_page(self, board: BoardName, key: SortKey | None) -> str:
        found = self.board(board)
        known = {row.evidence for row in _rows(found)}
        footnotes = _footnotes(_rows(found))
        with self._cache.lock:
            before = self._cache.rendered.get(board, {})
            cells = Cells(found, before, footnotes)
            self._cache.rendered[board] = cells.rendered
        return self._render(
            "board.html.j2",
            cells=cells,
            root="../",
            board=found,
            key=key,
            sections=[(section, sorted_rows(section, key)) for section in found.sections],
            many=_OPEN_TABLES,
            footnotes=footnotes,
            tiers=[tier for tier in display_text.EVIDENCE if tier in known],
            data=self._data,
        )

    def _export(self, board: BoardName, kind: str) -> str:
        return FORMATS[kind](rows_of(self.board(board)))

    def _data_page(self, name: str) -> str | None:
        report = self._reports.get(name)
        return self._render("data.html.j2", root="../", d=report) if report else None

    def _place(self, name: str) -> Place | None:
        entry = self._entries.get(name)
        if entry is None or entry.withdrawal is not None:
            return None
        board = self.board(boards_of(entry.result)[0])
        section = board.section_of(name)
        row = section.row_of(name) if section else None
        return Place(board, section, row) if section and row else None

    def _entry_page(self, name: str) -> str | None:
        entry = self._entries.get(name)
        if entry is None:
            return None
        place, board = self._place(name), boards_of(entry.result)[0]
        if place is None:
            return self._render("withdrawn.html.j2", root="../", entry=entry, board=board)
        values = _entry_values(entry, place)
        return self._render("entry.html.j2", root="../", board=board, data=self._data, **values)

    def _result(self, name: str) -> str | None:
        place = self._place(name)
        return place.row.entry.result.to_json() if place and place.row.entry else None

    def _ranks(self, name: str) -> str | None:
        place = self._place(name)
        return _ranks_csv(place.row.entry.result) if place and place.row.entry else None

    def _badge(self, name: str, kind: str) -> str | None:
        place = self._place(name)
        if place is None:
            return None
        badge = badge_of(export_row(place.row, place.section, place.board.name))
        return badge_svg(badge) if kind == "svg" else badge_json(badge)

    def _compare(self, name: str, other: str) -> str | None:
        place, against = self._place(name), self._place(other)
        if place is None or against is None or name >= other:
            return None
        section, board = place.section, place.board.name
        if section.kind.name != against.section.kind.name or board != against.board.name:
            return None
        found = make_comparison(section, place.row, against.row)
        if found is None:
            return None
        return self._render("compare.html.j2", root="../", c=found, section=section, board=board)


class Cells:
    """The cells of a board's rows as HTML, without the place; known cells are reused.

    Attributes:
        rendered: the cells of entries, by all that they show.
    """

    def __init__(
        self, board: Board, before: Mapping[Key, Markup], footnotes: Mapping[str, int]
    ) -> None:
        self.rendered: dict[Key, Markup] = {}
        self._before, self._footnotes = before, footnotes
        self._macro = _templates().get_template("row.html.j2").module.cells  # type: ignore[attr-defined]
        self._leads = {section.kind: _lead(section) for section in board.sections}

    def __call__(self, section: Section, row: Row) -> Markup:
        """Render the cells of a row."""
        tie = self._tie(section, row)
        if row.entry is None:
            return self._render(row, section, tie)
        shown = row.method, row.evidence, row.signed, row.flags, row.date
        key = (row.entry.name, *shown, section.kind.folds, section.axis, section.base, tie)
        if key not in self.rendered:
            known = self._before.get(key)
            self.rendered[key] = known or self._render(row, section, tie)
        return self.rendered[key]

    def _render(self, row: Row, section: Section, tie: tuple[str, str] | None) -> Markup:
        return Markup(self._macro(row, section, tie, self._footnotes))  # noqa: S704 - a macro's

    def _tie(self, section: Section, row: Row) -> tuple[str, str] | None:
        """Return the address and the text of the link to the row that a row is tied with."""
        lead, text = self._leads[section.kind]
        if not row.tied or not row.entry or lead in {None, row.entry.name}:
            return None
        return compare_path(row.entry.name, lead or ""), text


def _lead(section: Section) -> tuple[str | None, str]:
    """Return the leading entry of a section, and the text for entries tied with it."""
    lead, first = section.lead, [row for row in section.rows if row.place == 1]
    behind = any(row.evidence == "reported" for row in first)
    name = lead.entry.name if lead and lead.entry else None
    return name, "tied with the best file" if behind else "tied with the first"


def export_site(
    folder: Path,
    entries: Iterable[Entry],
    reports: Iterable[DatasetReport] = (),
    judge_key: str | None = None,
) -> int:
    """Write the site as a static folder; an old one is replaced atomically.

    Returns:
        The number of files.

    Raises:
        ConfigError: If ``folder`` exists and was not written by this function.
    """
    _check_replaceable(folder)
    site = Site(entries, reports=reports, judge_key=judge_key)
    paths = site.paths()
    with replacing_folder(folder) as fresh:
        for name in paths:
            page = site.get(name)
            if page is None:
                raise ValueError(f"{name}: named by the site, but not there")
            path = fresh / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(page[0], encoding="utf-8", newline="")
    return len(paths)


def data_path(report: DatasetReport) -> str:
    """Return the path of a data set's report."""
    return f"data/{report.fingerprint[:16]}.html"


def compare_path(name: str, other: str) -> str:
    """Return the path of the comparison of two entries."""
    first, second = sorted((name, other))
    return f"compare/{first}..{second}.html"


def _check_replaceable(site: Path) -> None:
    index = site / "index.html"
    if not site.exists() or (site.is_dir() and not any(site.iterdir())):
        return
    mark = f'<meta name="generator" content="{GENERATOR}">'
    if not index.is_file() or mark not in index.read_text(encoding="utf-8", errors="replace"):
        raise ConfigError(
            f"{site}: found files that export-site did not write, expected a new or empty folder,"
            " or an earlier site: all in it is replaced"
        )


def policy() -> str:
    """Return the content security policy of every page: its own style and script, nothing else."""
    return (
        f"default-src 'none'; style-src '{_digest('style.css')}';"
        f" script-src '{_digest('board.js')}'; base-uri 'none'; form-action 'none'"
    )


def _digest(name: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(_text(name).encode()).digest()).decode()}"


def _linked_pairs(section: Section) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a section that pages link to: all, or with the first and with the next.

    Pairs with the best placed entry are included, since ties refer to it; entries with proof may
    be listed above it.
    """
    names = [row.entry.name for row in section.comparable if row.entry]
    if len(names) <= ALL_PAIRS:
        yield from combinations(names, 2)
        return
    for first in {names[0], _lead(section)[0] or names[0]}:
        yield from ((first, name) for name in names if name != first)
    yield from pairwise(names)


def _neighbours(place: Place) -> list[Row]:
    """Return the first row of the section and the rows beside an entry, best first."""
    rows = place.section.comparable
    at = next((n for n, row in enumerate(rows) if row is place.row), None)
    if at is None:
        return []
    beside = {0, at - 1, at + 1} if at else {1, 2}
    return [rows[n] for n in sorted(beside) if 0 <= n < len(rows) and n != at]


def _leaders(board: Board) -> list[tuple[Section, tuple[Row, ...], int, Row | None]]:
    """Return up to two test sections with leading rows, number of further ties, and chance."""
    tests = [part for part in board.sections if part.kind.split == "test"]
    placed = [
        (part, sorted((r for r in part.rows if r.place is not None), key=lambda r: r.place or 0))
        for part in tests
    ]
    parts = [(part, rows) for part, rows in placed if rows]
    found = []
    for section, rows in parts[:1] + [pair for pair in parts[1:] if pair[0].with_reported][:1]:
        group = [rows[0], *(row for row in rows[1:] if row.tied and rows[0].tied)]
        chance = next((row for row in section.rows if _is_chance(row)), None)
        found.append((section, tuple(group[:LEADERS]), len(group[LEADERS:]), chance))
    return found


def _is_chance(row: Row) -> bool:
    return row.evidence == "reference" and row.method == "chance"


def _arrival(entry: Entry) -> tuple[int, datetime, str]:
    """Return a sort key: the judge's order of arrival, unsigned entries before by date."""
    at = entry.filing.submitted_at if entry.filing else datetime.min.replace(tzinfo=UTC)
    return entry.proof.arrival or 0, at, entry.name


def _rows(board: Board) -> list[Row]:
    return [row for section in board.sections for row in section.rows]


def _count(board: Board) -> tuple[int, int]:
    """Count the scored and the reported rows of a board."""
    rows = _rows(board)
    return sum(bool(row.entry) for row in rows), sum(bool(row.reported) for row in rows)


def _footnotes(rows: Iterable[Row]) -> dict[str, int]:
    """Number the footnotes of reported rows in their order, each text once."""
    texts = [row.reported.footnote for row in rows if row.reported]
    return {text: n for n, text in enumerate(dict.fromkeys(filter(None, texts)), 1)}


def _entry_values(entry: Entry, place: Place) -> dict[str, object]:
    result, section = entry.result, place.section
    own = Row(place.row.evidence, result.method.name, result.rsum, *result.rsum_interval)
    ladder = [own, *(reference(name, rsum) for name, rsum in result.references.items())]
    ladder.sort(key=lambda row: -row.rsum)
    record, exported = result.ranks, export_row(place.row, section, place.board.name)
    curves = curves_of(record, ("a", "b"), WAYS) if record else []
    urls = result.links.model_dump()
    return {
        "entry": entry,
        "r": result,
        "row": place.row,
        "section": section,
        "ladder": ladder,
        "axis": axis_of(max(row.high for row in ladder)),
        "ways": list(zip(WAYS, (result.i2t, result.t2i), strict=True)),
        "curves": recall_chart("curves", "Recall at K, both ways", curves) if record else None,
        "ranks": rank_chart("ranks", record, WAYS) if record else None,
        "neighbours": _neighbours(place),
        "links": [(name, url) for field, name in LINKS.items() if (url := urls[field])],
        "environment": ", ".join(
            f"{name} {version}"
            for name, version in result.environment.model_dump(exclude_none=True).items()
        ),
        "bibtex": to_bibtex([_shortened(exported)]),
        "badge": Markup(badge_svg(badge_of(exported))),  # noqa: S704 - escaped where it is drawn
    }


def _shortened(row: ExportRow) -> ExportRow:
    """Cut a long list of authors as BibTeX does, with "and others"."""
    if len(row.authors) <= _AUTHORS:
        return row
    return replace(row, authors=(*row.authors[:_AUTHORS], "others"))


def _ranks_csv(result: Result) -> str | None:
    """Write the expected hits of every query as CSV, captions in the order of their images.

    Not the ranks, from which lists could be rebuilt; the result file has those.
    """
    if result.ranks is None:
        return None
    lines = ["direction,row," + ",".join(f"hit_at_{cutoff}" for cutoff in CUTOFFS)]
    for name, way in zip(("i2t", "t2i"), result.ranks.read(), strict=True):
        hits = np.stack([expected_hits(way, cutoff) for cutoff in CUTOFFS], axis=1).tolist()
        lines += [
            ",".join([name, str(row), *(f"{hit:.6g}" for hit in each)])
            for row, each in enumerate(hits)
        ]
    return "\n".join(lines) + "\n"


def _render(template: str, **values: object) -> str:
    return _templates().get_template(template).render(values) + "\n"


@cache
def _templates() -> Environment:
    templates = template_environment("leaderboard.site")
    templates.filters.update(
        figure="{:.1f}".format,
        signed=lambda value: f"{value:+.1f}".replace("-", "−"),
        p_value=lambda value: "< 0.001" if value < 0.001 else f"{value:.3f}",
        share=_share,
        thousands="{:,}".format,
        listed=display_text.listed,
        spelled=spelled,
        points=lambda points: " ".join(f"{x:g},{y:g}" for x, y in points),
    )
    templates.globals.update(
        generator=GENERATOR,
        evaluator=VERSION,
        policy=Markup(policy()),  # noqa: S704 - our own text, whose quotes must stay
        style=Markup(_text("style.css")),  # noqa: S704 - our own file
        script=Markup(_text("board.js")),  # noqa: S704 - our own file
        boards_known=BOARDS,
        cutoffs=CUTOFFS,
        formats=list(FORMATS),
        display_text=display_text,
        compare_path=compare_path,
        short_name=short_name,
    )
    return templates


@cache
def _text(name: str) -> str:
    return files("leaderboard.site").joinpath("templates", name).read_text(encoding="utf-8")


def _share(value: float, axis: float, base: float = 0.0) -> str:
    """Return the position of a value on the axis, in percent."""
    return f"{max(0.0, min(100.0, 100 * (value - base) / (axis - base))):.2f}"
