"""The site: every page and file of the board by its path, rendered on request."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import combinations, pairwise

import numpy as np
from markupsafe import Markup

from leaderboard.board import display_text
from leaderboard.board.display_text import WAYS
from leaderboard.board.exports import (
    FORMATS,
    badge_json,
    badge_of,
    badge_svg,
    export_row,
    rows_of,
    to_bibtex,
)
from leaderboard.board.groups import group_rows, groups_of, missed_of, seeds_of
from leaderboard.board.tables import (
    SORT_KEYS,
    Board,
    Row,
    Section,
    SectionKind,
    SortKey,
    axis_of,
    boards_of,
    equal_ranks,
    hits_of,
    make_board,
    reference,
    sorted_rows,
)
from leaderboard.metrics import CUTOFFS, expected_hits
from leaderboard.scoring.result import Result
from leaderboard.site.charts import curves_of, progress_chart, rank_chart, recall_chart
from leaderboard.site.comparison import make_comparison
from leaderboard.site.environment import compare_path, templates
from leaderboard.store.dataset import DatasetReport, Queries
from leaderboard.store.entries import Entry, age
from now_builder.formats.benchmarks import BOARDS, BoardName

_ALL_PAIRS = 12
"""Number of rows of a section up to which the static site compares all pairs."""

_NEWEST, _LEADERS, _AUTHORS, _OPEN_TABLES, _MISSED = 8, 3, 12, 4, 200
GROUPINGS: Mapping[str, str] = {"languages": "language", "sites": "site"}
"""Groups of queries that have figures of their own: a field of the data set's report each."""

_LINKS = {"paper": "Paper", "code": "Code", "weights": "Weights", "model_card": "Model card"}

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

Place = tuple[BoardName, Section, Row]
"""Board, section and row of an entry."""


class Site:
    """All pages of the leaderboard, deterministic to the byte and rendered on request.

    Args:
        entries: all entries, withdrawn ones too, in any order.
        reports: reports on the data sets of the entries.
    """

    def __init__(
        self,
        entries: Iterable[Entry],
        reports: Iterable[DatasetReport] = (),
    ) -> None:
        self._entries = {entry.name: entry for entry in sorted(entries, key=lambda e: e.name)}
        self._reports = {report.fingerprint[:16]: report for report in reports}
        self._data = {
            track.fingerprint: data_path(report)
            for report in self._reports.values()
            for track in report.tracks
        }
        self._queries = {
            track.fingerprint: split.queries
            for report in self._reports.values()
            for track in report.tracks
            for split in report.splits
            if split.split == track.split and split.queries
        }
        self._boards: dict[BoardName, Board] = {}
        self._routes: dict[str, Callable[..., str | None]] = {
            r"index\.html": self._index,
            r"progress\.html": self._progress,
            r"404\.html": self.not_found,
            rf"boards/{_BOARD}(\.by-(?P<key>{'|'.join(SORT_KEYS)}))?\.html": self._board_page,
            rf"boards/{_BOARD}\.(?P<by>{'|'.join(GROUPINGS)})\.html": self._groups_page,
            rf"boards/{_BOARD}\.(?P<kind>{'|'.join(FORMATS)})": self._export,
            r"data/(?P<name>[0-9a-f]{16})\.html": self._data_page,
            rf"entries/{_NAME}\.html": self._entry_page,
            rf"entries/{_NAME}\.queries\.html": self._queries_page,
            rf"results/{_NAME}(?P<run>\.run)?\.json": self._result,
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
        paths = ["index.html", "progress.html", "404.html"]
        for name in BOARDS:
            paths.append(f"boards/{name}.html")
            paths += [f"boards/{name}.by-{key}.html" for key in SORT_KEYS]
            paths += [f"boards/{name}.{kind}" for kind in FORMATS]
            labelled = self._labelled(self.board(name))
            paths += [f"boards/{name}.{by}.html" for by in GROUPINGS if labelled]
            paths += [
                f"entries/{row.entry.name}.queries.html"
                for section, _ in labelled
                for row in section.rows
                if row.entry and row.entry.shown.ranks
            ]
        paths += [data_path(report) for report in self._reports.values()]
        for entry in self._entries.values():
            paths.append(f"entries/{entry.name}.html")
            if entry.withdrawal is None:
                paths.append(f"results/{entry.name}.json")
                paths += [f"badges/{entry.name}.{kind}" for kind in ("svg", "json")]
                paths += [f"ranks/{entry.name}.csv"] if entry.result.ranks else []
                paths += [f"results/{entry.name}.run.json"] if entry.run else []
        pairs = {
            compare_path(a, b)
            for name in BOARDS
            for section in self.board(name).sections
            for a, b in _linked_pairs(section)
        }
        return paths + sorted(pairs)

    def board(self, name: BoardName) -> Board:
        """Return a board, made on first use."""
        if name not in self._boards:
            self._boards[name] = make_board(name, self._entries.values(), self._equal)
        return self._boards[name]

    @cached_property
    def _equal(self) -> dict[str, str]:
        return equal_ranks(self._entries.values())

    def not_found(self, depth: int = 0) -> str:
        """Render the page for missing addresses, ``depth`` folders below the root."""
        return self._render("404.html.j2", root="../" * depth)

    def _render(self, template: str, **values: object) -> str:
        page = templates().get_template(template)
        return page.render(**values) + "\n"

    def _index(self) -> str:
        boards = [self.board(name) for name in BOARDS]
        live = [entry for entry in self._entries.values() if entry.withdrawal is None]
        newest = sorted(live, key=age, reverse=True)[:_NEWEST]
        return self._render(
            "index.html.j2",
            root="",
            boards=[(board, _leaders(board), _count(board), _printed(board)) for board in boards],
            newest=[(entry, boards_of(entry.result)[0]) for entry in newest],
            n_entries=len(live),
        )

    def _progress(self) -> str:
        boards = []
        for name in BOARDS:
            tests = [part for part in self.board(name).sections if part.kind.split == "test"]
            charts = [progress_chart(f"{name}-{p.kind.name}", p) for p in tests]
            drawn = [pair for pair in zip(tests, charts, strict=True) if pair[1]]
            boards.append((name, drawn))
        boards.sort(key=lambda pair: not pair[1])
        return self._render("progress.html.j2", root="", boards=boards)

    def _board_page(self, board: BoardName, key: SortKey | None) -> str:
        found = self.board(board)
        known = {row.evidence for row in _rows(found)}
        footnotes = _footnotes(_rows(found))
        return self._render(
            "board.html.j2",
            cells=self._cells(found, footnotes),
            root="../",
            board=found,
            groupings=GROUPINGS if self._labelled(found) else {},
            key=key,
            sections=[
                (section, sorted_rows(section, key), self._picked(section))
                for section in found.sections
            ],
            many=_OPEN_TABLES,
            footnotes=footnotes,
            tiers=[tier for tier in display_text.EVIDENCE if tier in known],
            data=self._data,
        )

    def _picked(self, section: Section) -> frozenset[str]:
        """Return the entries that a reader may pick to compare: any two have a page."""
        names = _comparable(section)
        return frozenset(names if len(names) <= _ALL_PAIRS else ())

    def _cells(
        self, board: Board, footnotes: Mapping[str, int]
    ) -> Callable[[Section, Row], Markup]:
        """Return a function that renders the cells of a row but its place."""
        macro = templates().get_template("row.html.j2").module.cells  # type: ignore[attr-defined]
        leads = {part.kind: part.lead.entry if part.lead else None for part in board.sections}
        seeds = {part.kind: seeds_of(part.rows) for part in board.sections}

        def cells(section: Section, row: Row) -> Markup:
            tie = _tie(row, leads[section.kind])
            spread = seeds[section.kind].get(row.entry.name) if row.entry else None
            return Markup(macro(row, section, tie, footnotes, spread))  # noqa: S704 - a macro's

        return cells

    def _queries_of(self, kind: SectionKind) -> Queries | None:
        """Return what is known of the queries of a section, if they are one to a pair."""
        found = self._queries.get(kind.fingerprint or "")
        return found if found and {kind.n_images, kind.n_pairs} == {len(found.sites)} else None

    def _labelled(self, board: Board) -> list[tuple[Section, Queries]]:
        """Return the sections of a board of whose queries languages and sites are known."""
        found = ((part, self._queries_of(part.kind)) for part in board.sections)
        return [(part, queries) for part, queries in found if queries]

    def _groups_page(self, board: BoardName, by: str) -> str | None:
        tables = []
        for section, queries in self._labelled(self.board(board)):
            parts, rows = group_rows(getattr(queries, by)), section.comparable
            hits = hits_of(rows, section.kind)
            sums = [[100 * own[part].mean() for part in parts.values()] for own in hits]
            tables.append((section, parts, list(zip(rows, sums, strict=True))))
        if not tables:
            return None
        return self._render(
            "groups.html.j2", root="../", board=board, by=by, tables=tables, groupings=GROUPINGS
        )

    def _queries_page(self, name: str) -> str | None:
        place, entry = self._place(name), self._live(name)
        queries = self._queries_of(place[1].kind) if place else None
        if place is None or entry is None or queries is None or entry.shown.ranks is None:
            return None
        missed = missed_of(entry.shown.ranks)
        return self._render(
            "queries.html.j2",
            root="../",
            board=place[0],
            row=place[2],
            queries=queries,
            missed=missed[:_MISSED],
            count=len(missed),
        )

    @cached_property
    def _persons(self) -> dict[str, tuple[int, int]]:
        """Number each entry among its submitter's on the same queries, withdrawn ones too."""
        own: dict[tuple[str, str], list[str]] = defaultdict(list)
        for entry in sorted(self._entries.values(), key=age):
            if entry.filing and entry.filing.submitter:
                own[entry.filing.submitter, entry.result.release.fingerprint].append(entry.name)
        return {name: (n, len(names)) for names in own.values() for n, name in enumerate(names, 1)}

    def _export(self, board: BoardName, kind: str) -> str:
        return FORMATS[kind](rows_of(self.board(board)))

    def _data_page(self, name: str) -> str | None:
        report = self._reports.get(name)
        return self._render("data.html.j2", root="../", d=report) if report else None

    def _place(self, name: str) -> Place | None:
        entry = self._live(name)
        board = boards_of(entry.result)[0] if entry else None
        section = self.board(board).section_of(name) if board else None
        row = section.row_of(name) if section else None
        return (board, section, row) if board and section and row else None

    def _live(self, name: str) -> Entry | None:
        entry = self._entries.get(name)
        return entry if entry and entry.withdrawal is None else None

    def _entry_page(self, name: str) -> str | None:
        entry = self._entries.get(name)
        if entry is None:
            return None
        place, board = self._place(name), boards_of(entry.result)[0]
        if place is None:
            return self._render("withdrawn.html.j2", root="../", entry=entry, board=board)
        values = _entry_values(entry, place)
        queries, record = self._queries_of(place[1].kind), entry.shown.ranks
        values["groups"] = [
            (title, groups_of(record, getattr(queries, by)))
            for by, title in GROUPINGS.items()
            if queries and record
        ]
        values["filed"] = self._persons.get(name)
        values["seeds"] = seeds_of(place[1].rows).get(name)
        return self._render("entry.html.j2", root="../", board=board, data=self._data, **values)

    def _result(self, name: str, run: str | None) -> str | None:
        entry = self._live(name)
        if entry is None or not run:
            return entry.result.to_json() if entry else None
        result = entry.run and entry.run.result
        return result.to_json() if result else None

    def _ranks(self, name: str) -> str | None:
        entry = self._live(name)
        return _ranks_csv(entry.shown) if entry else None

    def _badge(self, name: str, kind: str) -> str | None:
        place = self._place(name)
        if place is None:
            return None
        badge = badge_of(export_row(*place))
        return badge_svg(badge) if kind == "svg" else badge_json(badge)

    def _compare(self, name: str, other: str) -> str | None:
        place, against = self._place(name), self._place(other)
        if place is None or against is None or name == other:
            return None
        (board, section, row), (its_board, its_section, its_row) = place, against
        if section.kind.name != its_section.kind.name or board != its_board:
            return None
        pair = make_comparison(section, row, its_row)
        if pair is None:
            return None
        return self._render("compare.html.j2", root="../", c=pair, section=section, board=board)


def _tie(row: Row, lead: Entry | None) -> str | None:
    """Return the address of the comparison with the first entry, if a row is tied with it."""
    if not row.tied or not row.entry or lead is None or lead.name == row.entry.name:
        return None
    return compare_path(row.entry.name, lead.name)


def data_path(report: DatasetReport) -> str:
    """Return the path of a data set's report."""
    return f"data/{report.fingerprint[:16]}.html"


def _comparable(section: Section) -> list[str]:
    return [row.entry.name for row in section.comparable if row.entry]


def _linked_pairs(section: Section) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a section that pages link to: all, or with the first and with the next."""
    names = _comparable(section)
    if len(names) <= _ALL_PAIRS:
        yield from combinations(names, 2)
        return
    yield from ((names[0], name) for name in names[1:])
    yield from pairwise(names)


def _neighbours(place: Place) -> list[Row]:
    """Return the first of the proof or the claims, as the entry is, and the rows beside it."""
    _, section, own = place
    rows = [row for row in section.comparable if row.proof == own.proof]
    at = next((n for n, row in enumerate(rows) if row is own), None)
    if at is None:
        return []
    beside = {0, at - 1, at + 1} if at else {1, 2}
    return [rows[n] for n in sorted(beside) if 0 <= n < len(rows) and n != at]


def _leaders(board: Board) -> list[tuple[Section, tuple[Row, ...], int, Row | None]]:
    """Return the leading proof of up to two test sections, number of further ties, and chance."""
    tests = [part for part in board.sections if part.kind.split == "test"]
    placed = [(part, [row for row in part.rows if row.place is not None]) for part in tests]
    parts = [(part, rows) for part, rows in placed if rows]
    found = []
    for section, rows in parts[:1] + [pair for pair in parts[1:] if pair[0].with_reported][:1]:
        group = [rows[0], *(row for row in rows[1:] if row.tied and rows[0].tied)]
        references = (row for row in section.rows if row.evidence == "reference")
        chance = next((row for row in references if row.method == "chance"), None)
        found.append((section, tuple(group[:_LEADERS]), len(group[_LEADERS:]), chance))
    return found


def _rows(board: Board) -> list[Row]:
    return [row for section in board.sections for row in section.rows]


def _count(board: Board) -> dict[str, int]:
    """Count the rows of a board: proof, claims from files, and those of papers."""
    rows = _rows(board)
    proof, reported = sum(row.proof for row in rows), sum(bool(row.reported) for row in rows)
    entries = sum(bool(row.entry) for row in rows)
    return {"proof": proof, "scored": entries - proof, "reported": reported}


def _printed(board: Board) -> Row | None:
    """Return the best reported row of the first section that has any."""
    return next((row for row in _rows(board) if row.reported), None)


def _footnotes(rows: Iterable[Row]) -> dict[str, int]:
    """Number the footnotes of reported rows in their order, each text once."""
    texts = [row.reported.footnote for row in rows if row.reported]
    return {text: n for n, text in enumerate(dict.fromkeys(filter(None, texts)), 1)}


def _entry_values(entry: Entry, place: Place) -> dict[str, object]:
    result, (_, section, row) = entry.shown, place
    own = Row(row.evidence, result.method.name, result.rsum, *result.rsum_interval)
    ladder = [own, *(reference(name, rsum) for name, rsum in result.references.items())]
    ladder.sort(key=lambda row: -row.rsum)
    record, exported = result.ranks, export_row(*place)
    if len(exported.authors) > _AUTHORS:  # as BibTeX writes "and others"
        exported = replace(exported, authors=(*exported.authors[:_AUTHORS], "others"))
    curves = curves_of(record, ("a", "b"), WAYS) if record else []
    urls = result.links.model_dump()
    return {
        "entry": entry,
        "r": result,
        "row": row,
        "section": section,
        "ladder": ladder,
        "axis": axis_of(max(row.high for row in ladder)),
        "ways": list(zip(WAYS, (result.i2t, result.t2i), strict=True)),
        "curves": recall_chart("curves", "Recall at K, both ways", curves) if record else None,
        "ranks": rank_chart("ranks", record, WAYS) if record else None,
        "neighbours": _neighbours(place),
        "links": [(name, url) for field, name in _LINKS.items() if (url := urls[field])],
        "environment": ", ".join(
            f"{name} {version}"
            for name, version in result.environment.model_dump(exclude_none=True).items()
        ),
        "bibtex": to_bibtex([exported]),
        "badge": Markup(badge_svg(badge_of(exported))),  # noqa: S704 - escaped where it is drawn
    }


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
