"""The site: every page and file of the board, and its static folder."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment
from markupsafe import Markup

from leaderboard.board import display_text
from leaderboard.board.charts import Series, progress_chart, rank_chart, recall_chart
from leaderboard.board.display_text import WAYS
from leaderboard.board.exports import EXPORTED, FORMATS, rows_of
from leaderboard.board.reported import read_sources, short_name
from leaderboard.board.tables import (
    SectionKind,
    axis_of,
    base_of,
    boards_of,
    make_board,
    seeds_of,
    spelled,
    trusted_references,
)
from leaderboard.metrics import CUTOFFS, RECALLS, expected_hits
from leaderboard.scoring.groups import groups_of
from leaderboard.scoring.result import VERSION, RankRecord, Result
from leaderboard.store.dataset import DatasetReport
from leaderboard.store.entries import Entry, age, equal_ranks
from leaderboard.submission.archive import Description
from now_builder.errors import ConfigError
from now_builder.formats.benchmarks import BOARDS, BoardName
from now_builder.formats.captions import TOKENIZERS
from now_builder.formats.io import atomic_folder, remove_leftovers
from now_builder.program.html import page_style, policy_hash, template_environment

GENERATOR = "now-leaderboard"
GROUPED: Mapping[str, str] = {"languages": "language", "sites": "site"}
"""Groups of queries that have figures of their own: field of the data set's report, and title."""

_NEWEST, _LEADERS, _OPEN_TABLES = 5, 3, 4
_DESCRIBED = {*Description.model_fields, "precision"} - {"environment"}
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Section:
    """Comparable rows of a board, as a page shows them.

    Attributes:
        references: rSum of the reference scorers, by name; marked as lines in the bars.
        base: rSum at the left end of the bars.
        axis: rSum at their right end.
    """

    kind: SectionKind
    rows: list[Row]
    references: Mapping[str, float]
    base: float
    axis: float

    @property
    def parts(self) -> tuple[list[Row], list[Row]]:
        """The proof and the claims."""
        proof = [row for row in self.rows if row["proof"]]
        return proof, self.rows[len(proof) :]

    @property
    def placed(self) -> list[Row]:
        """The rows that have a place; none on a development split."""
        return [row for row in self.rows if row["place"]] if self.kind.split == "test" else []

    @property
    def tied(self) -> list[Row]:
        """The first row and all that are tied with it."""
        first, *others = self.placed
        return [first] + [row for row in others if row["tied"] and first["tied"]]


def _sections(board: pd.DataFrame) -> list[Section]:
    """Divide a board into its sections."""
    sections = []
    for kind, group in groupby(rows_of(board), lambda row: row["kind"]):
        rows, references = [], {}
        for row in group:
            if row["evidence"] == "reference":
                references[row["method"]] = row["rsum"]
            else:
                rows.append(row)
        highest = max(row["high"] or row["rsum"] for row in rows)
        axis = axis_of(max(highest, *references.values()))
        base = base_of(min(row["low"] or row["rsum"] for row in rows), axis)
        sections.append(Section(kind, rows, references, base, axis))
    return sections


def export_site(
    folder: Path,
    entries: Iterable[Entry],
    reports: Iterable[DatasetReport] = (),
    *,
    space: bool = False,
) -> int:
    """Write the site as a static folder; an old one is replaced atomically.

    With ``space`` it has the ``README.md`` that makes a static Space of it on the Hugging Face hub.

    Returns:
        The number of files.

    Raises:
        ConfigError: If ``folder`` exists and was not written by this function.
    """
    remove_leftovers(folder.parent, folder.name)  # puts back what a kill took away
    index, mark = folder / "index.html", f'<meta name="generator" content="{GENERATOR}">'
    used = folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))
    if used and not (index.is_file() and mark in index.read_text("utf-8", errors="replace")):
        raise ConfigError(
            f"{folder}: found files that export-site did not write, expected a new or empty folder,"
            " or an earlier site: all in it is replaced"
        )
    count = 0
    with atomic_folder(folder) as fresh:
        for name, text in render_site(entries, reports):
            path = fresh / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="")
            count += 1
        if space:
            (fresh / "README.md").write_text(_text("space.md"), encoding="utf-8")
    return count + space


def render_site(
    entries: Iterable[Entry], reports: Iterable[DatasetReport] = ()
) -> Iterator[tuple[str, str]]:
    """Yield path and text of every file of the site, deterministic to the byte.

    Args:
        entries: all entries, withdrawn ones too, in any order.
        reports: reports on the data sets of the entries.
    """
    entries = sorted(entries, key=lambda entry: entry.name)
    reports = sorted(reports, key=lambda report: report.fingerprint)
    tracks = {track.fingerprint: (track, report) for report in reports for track in report.tracks}
    data = {name: f"data/{report.fingerprint[:16]}.html" for name, (_, report) in tracks.items()}
    references = {name: track.references for name, (track, _) in tracks.items()}
    queries = {
        name: {by: getattr(report.queries[track.split], by) for by in GROUPED}
        for name, (track, report) in tracks.items()
        if track.split in report.queries
    }
    equal = equal_ranks(entries)
    boards = {name: make_board(name, entries, equal, references) for name in BOARDS}
    sections = {name: _sections(board) for name, board in boards.items()}
    yield "index.html", _index(sections, entries)
    yield "404.html", _render("404.html.j2", root="")
    yield "reading.html", _render("reading.html.j2", root="")
    yield "progress.html", _progress(sections)
    for name, board in boards.items():
        withdrawn = [entry for entry in entries
                     if entry.withdrawal and name in boards_of(entry.result)]  # fmt: skip
        yield f"boards/{name}.html", _board(name, sections[name], withdrawn, data)
        yield from ((f"boards/{name}.{kind}", write(board)) for kind, write in FORMATS.items())
    for report in reports:
        page = _render("data.html.j2", root="../", d=report)
        yield f"data/{report.fingerprint[:16]}.html", page
    for entry in entries:
        board_name = boards_of(entry.result)[0]
        if entry.withdrawal is not None:
            page = _render("withdrawn.html.j2", root="../", entry=entry, board=board_name)
            yield f"entries/{entry.name}.html", page
            continue
        row, section = next((row, section) for section in sections[board_name]
                            for row in section.rows if row["entry"] == entry.name)  # fmt: skip
        fingerprint = entry.result.release.fingerprint
        labels, ranks = queries.get(fingerprint, {}), entry.shown.ranks
        groups = {by: groups_of(ranks, labels[by]) for by in labels} if ranks else {}
        yield from _entry(
            board_name,
            row,
            groups,
            seeds=seeds_of(section.rows).get(entry.name),
            references=trusted_references(entry, references.get(fingerprint, {})),
            data=data,
        )


def _entry(
    board: BoardName,
    row: Row,
    groups: Mapping[str, list[dict[str, Any]]],
    *,
    references: Mapping[str, float],
    **shown: object,
) -> Iterator[tuple[str, str]]:
    """Yield the page and the files of an entry."""
    entry: Entry = row["item"]
    result, name = entry.shown, entry.name
    low, high = result.rsum_interval
    ladder: list[Row] = [{"method": None, "rsum": result.rsum, "low": low, "high": high}]
    ladder += [{"method": name, "rsum": rsum, "low": None} for name, rsum in references.items()]
    ladder.sort(key=lambda step: -step["rsum"])
    page = _render(
        "entry.html.j2",
        root="../",
        board=board,
        entry=entry,
        row=row,
        ladder=ladder,
        axis=axis_of(max(high, ladder[0]["rsum"])),
        best=max(references.items(), key=lambda item: item[1]),
        groups=[(GROUPED[by], rows) for by, rows in groups.items() if rows],
        charts=[(draw(result.ranks, WAYS), title) for draw, title in _CHARTS if result.ranks],
        changed=_described_otherwise(entry.result, result),
        **shown,
    )
    yield f"entries/{name}.html", page
    tree = {name: row[name] for name in EXPORTED} | dict(groups)
    yield f"entries/{name}.json", json.dumps(tree, ensure_ascii=False, indent=1) + "\n"
    yield f"results/{name}.json", entry.result.to_json()
    if entry.run:
        yield f"results/{name}.run.json", result.to_json()
    if result.ranks:
        yield f"ranks/{name}.csv", _hits_csv(result.ranks)


_CHARTS = (
    (recall_chart, "Recall at K, with pointwise 95 % bands"),
    (rank_chart, "Queries by the rank of their correct match, in percent"),
)


def _hits_csv(record: RankRecord) -> str:
    """Write the expected hits of every query, captions in the order of their images.

    The ranks are left out; the result file has them.
    """
    ways = {
        way: pd.DataFrame({f"hit_at_{cutoff}": expected_hits(ranks, cutoff) for cutoff in CUTOFFS})
        for way, ranks in zip(("i2t", "t2i"), record.read(), strict=True)
    }
    table = pd.concat(ways, names=["direction", "row"])
    return table.to_csv(float_format="%.6g", lineterminator="\n")


def _described_otherwise(claim: Result, run: Result) -> list[tuple[str, str, str]]:
    """List the fields of a claim's description that its keeper's run does not share."""
    one, other = (_flat(item.model_dump(mode="json", include=_DESCRIBED)) for item in (claim, run))
    return [
        (field, one.get(field, "–"), other.get(field, "–"))
        for field in {**one, **other}
        if one.get(field) != other.get(field)
    ]


def _flat(tree: dict[str, Any]) -> dict[str, str]:
    """Return the fields that are stated, as text, by their path in the tree."""
    (flat,) = pd.json_normalize(tree, sep=": ").to_dict("records")
    return {
        str(name).replace("_", " "): (
            display_text.listed(value, 12) if isinstance(value, list) else str(value)
        )
        for name, value in flat.items()
        if value not in (None, [], "")
    }


def _index(sections: Mapping[BoardName, Sequence[Section]], entries: Sequence[Entry]) -> str:
    cards = []
    for name, parts in sections.items():
        rows = [row for section in parts for row in section.rows]
        proof = sum(row["proof"] for row in rows)
        counts = {
            "proven": proof,
            "claimed": sum(bool(row["entry"]) for row in rows) - proof,
            "reported": sum(bool(row["source"]) for row in rows),
        }
        placed = [section for section in parts if section.placed]
        leading = placed[:1] + [section for section in placed[1:] if section.kind.published][:1]
        printed = next((row for row in rows if row["source"]), None)
        cards.append((name, leading, counts, printed))
    proven = [(name, section) for name, leading, *_ in cards for section in leading
              if name in TOKENIZERS]  # fmt: skip
    live = [entry for entry in entries if entry.withdrawal is None]
    newest = sorted(live, key=age, reverse=True)[:_NEWEST]
    return _render(
        "index.html.j2",
        root="",
        best=max(proven, key=lambda pair: _weight(pair[1]), default=None),
        boards=cards,
        most=_LEADERS,
        newest=[(entry, boards_of(entry.result)[0]) for entry in newest],
        n_entries=len(live),
    )


def _weight(section: Section) -> tuple[bool, int, float]:
    """Return how much a proven result weighs: the authors' test set, then size, then rSum."""
    return section.kind.published, section.kind.n_pairs, section.placed[0]["rsum"]


def _progress(sections: Mapping[BoardName, Sequence[Section]]) -> str:
    """Draw one chart for each data set, Noise of Web first."""
    charts = []
    for now, names in groupby(sections, lambda name: name in TOKENIZERS):
        for boards in ([*names],) if now else ([name] for name in names):
            series = [
                Series(*display_text.series_of(section.kind, name), section.rows)
                for name in boards
                for section in sections[name]
                if section.kind.split == "test"
            ]
            chart = progress_chart(boards[0], series, display_text.SERIES[now])
            charts.append((boards, chart))
    return _render("progress.html.j2", root="", charts=charts)


def _board(
    name: BoardName,
    sections: Sequence[Section],
    withdrawn: Sequence[Entry],
    data: Mapping[str, str],
) -> str:
    rows = [row for section in sections for row in section.rows]
    footnotes = dict.fromkeys(row["footnote"] for row in rows if row["source"] and row["footnote"])
    evidence = {row["evidence"] for row in rows}
    return _render(
        "board.html.j2",
        root="../",
        board=name,
        sections=sections,
        seeds=[seeds_of(section.rows) for section in sections],
        many=_OPEN_TABLES,
        footnotes={text: number for number, text in enumerate(footnotes, 1)},
        tiers=[tier for tier in display_text.EVIDENCE if tier in evidence],
        withdrawn=withdrawn,
        data=data,
    )


def _render(template: str, **values: object) -> str:
    return _templates().get_template(template).render(**values) + "\n"


@cache
def _templates() -> Environment:
    """Return the templates, with the filters and texts that all pages use."""
    environment = template_environment("leaderboard.board")
    environment.filters.update(
        figure="{:.1f}".format,
        signed=lambda value: f"{value:+.1f}".replace("-", "−"),
        share=_share,
        thousands="{:,}".format,
        listed=display_text.listed,
        spelled=spelled,
        points=lambda points: " ".join(f"{x:g},{y:g}" for x, y in points),
    )
    environment.globals.update(
        generator=GENERATOR,
        evaluator=VERSION,
        policy=Markup(_policy()),  # noqa: S704 - our own text, whose quotes must stay
        script=Markup(_text("board.js")),  # noqa: S704 - our own file
        boards_known=BOARDS,
        cutoffs=CUTOFFS,
        recalls=RECALLS,
        formats=list(FORMATS),
        display_text=display_text,
        sources=read_sources(),
        short_name=short_name,
    )
    return environment


@cache
def _text(name: str) -> str:
    return files("leaderboard.board").joinpath("templates", name).read_text(encoding="utf-8")


def _share(value: float, axis: float, base: float = 0.0) -> str:
    """Return the position of a value on the axis, in percent."""
    return f"{max(0.0, min(100.0, 100 * (value - base) / (axis - base))):.2f}"


def _policy() -> str:
    """Return the content security policy of every page: its own style and script, nothing else."""
    return (
        f"default-src 'none'; style-src {policy_hash(page_style())};"
        f" script-src {policy_hash(_text('board.js'))}; base-uri 'none'; form-action 'none'"
    )
