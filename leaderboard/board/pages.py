"""The site: every page and file of the board, and its static folder."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment
from markupsafe import Markup

from leaderboard.board import display_text
from leaderboard.board.charts import progress_chart, rank_chart, recall_chart
from leaderboard.board.display_text import WAYS
from leaderboard.board.exports import EXPORTED, FORMATS, rows_of
from leaderboard.board.groups import groups_of, seeds_of
from leaderboard.board.reported import read_sources, short_name
from leaderboard.board.tables import (
    RECALLS,
    SectionKind,
    axis_of,
    base_of,
    boards_of,
    equal_ranks,
    make_board,
    spelled,
    trusted_references,
)
from leaderboard.metrics import CUTOFFS, expected_hits
from leaderboard.scoring.result import VERSION, RankRecord, Result
from leaderboard.store.dataset import DatasetReport
from leaderboard.store.entries import Entry, age
from leaderboard.submission.archive import Description
from now_builder.errors import ConfigError
from now_builder.formats.benchmarks import BOARDS, BoardName
from now_builder.formats.io import atomic_folder, remove_leftovers
from now_builder.program.html import page_style, policy_hash, template_environment

GENERATOR = "now-leaderboard"
GROUPED: Mapping[str, str] = {"languages": "language", "sites": "site"}
"""Groups of queries that have figures of their own: a field of the data set's report each."""

_NEWEST, _LEADERS, _OPEN_TABLES = 8, 3, 4
_DESCRIBED = {*Description.model_fields, "precision"} - {"environment"}
Row = Mapping[str, Any]
Section = tuple[SectionKind, list[dict[str, Any]]]


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
    known = sorted(entries, key=lambda entry: entry.name)
    live = [entry for entry in known if entry.withdrawal is None]
    reports = sorted(reports, key=lambda report: report.fingerprint)
    tracks = {track.fingerprint: (track, report) for report in reports for track in report.tracks}
    data = {name: f"data/{report.fingerprint[:16]}.html" for name, (_, report) in tracks.items()}
    references = {name: track.references for name, (track, _) in tracks.items()}
    queries = {
        name: {by: getattr(report.queries[track.split], by) for by in GROUPED}
        for name, (track, report) in tracks.items()
        if track.split in report.queries
    }
    equal = equal_ranks(known)
    boards = {name: make_board(name, known, equal, references) for name in BOARDS}
    sections = {
        name: [(kind, list(rows)) for kind, rows in groupby(rows_of(b), lambda row: row["kind"])]
        for name, b in boards.items()
    }
    yield "index.html", _index(sections, live)
    yield "404.html", _render("404.html.j2", root="")
    yield "progress.html", _progress(sections)
    for name, board in boards.items():
        withdrawn = [entry for entry in known
                     if entry.withdrawal and name in boards_of(entry.result)]  # fmt: skip
        yield f"boards/{name}.html", _board(name, sections[name], withdrawn, data)
        yield from ((f"boards/{name}.{kind}", write(board)) for kind, write in FORMATS.items())
    for report in reports:
        page = _render("data.html.j2", root="../", d=report)
        yield f"data/{report.fingerprint[:16]}.html", page
    for entry in known:
        own = boards_of(entry.result)[0]
        if entry.withdrawal is not None:
            page = _render("withdrawn.html.j2", root="../", entry=entry, board=own)
            yield f"entries/{entry.name}.html", page
            continue
        rows = next(rows for _, rows in sections[own]
                    if any(row["entry"] == entry.name for row in rows))  # fmt: skip
        row = next(row for row in rows if row["entry"] == entry.name)
        fingerprint = entry.result.release.fingerprint
        trusted = trusted_references(entry, references.get(fingerprint, {}))
        labels = queries.get(fingerprint, {})
        groups = {by: groups_of(entry.shown.ranks, labels[by]) if entry.shown.ranks else []
                  for by in labels}  # fmt: skip
        yield from _entry(own, row, seeds_of(rows).get(entry.name), trusted, groups, data)


def _entry(
    board: BoardName,
    row: Row,
    seeds: str | None,
    references: Mapping[str, float],
    groups: Mapping[str, list[dict[str, Any]]],
    data: Mapping[str, str],
) -> Iterator[tuple[str, str]]:
    """Yield the page and the files of an entry."""
    entry: Entry = row["item"]
    result, name = entry.shown, entry.name
    low, high = result.rsum_interval
    own = {"method": result.method.name, "evidence": row["evidence"], "rsum": result.rsum}
    ladder = [own | {"low": low, "high": high}] + [
        {"method": known, "evidence": "reference", "rsum": rsum, "low": None, "high": None}
        for known, rsum in references.items()
    ]
    ladder.sort(key=lambda one: -one["rsum"])
    page = _render(
        "entry.html.j2",
        root="../",
        board=board,
        data=data,
        entry=entry,
        row=row,
        seeds=seeds,
        ladder=ladder,
        axis=axis_of(max(one["high"] or one["rsum"] for one in ladder)),
        best=max(references.items(), key=lambda item: item[1]),
        groups=[(GROUPED[by], found) for by, found in groups.items() if found],
        curves=recall_chart(result.ranks, WAYS) if result.ranks else None,
        ranks=rank_chart(result.ranks, WAYS) if result.ranks else None,
        changed=_described_otherwise(entry.result, result),
    )
    yield f"entries/{name}.html", page
    tree = {name: row[name] for name in EXPORTED} | dict(groups)
    yield f"entries/{name}.json", json.dumps(tree, ensure_ascii=False, indent=1) + "\n"
    yield f"results/{name}.json", entry.result.to_json()
    if entry.run:
        yield f"results/{name}.run.json", result.to_json()
    if result.ranks:
        yield f"ranks/{name}.csv", _hits_csv(result.ranks)


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


def _index(sections: Mapping[BoardName, Sequence[Section]], live: Sequence[Entry]) -> str:
    cards = []
    for name, parts in sections.items():
        rows = [row for _, part in parts for row in part]
        proof = sum(row["proof"] for row in rows)
        counts = {
            "proof": proof,
            "scored": sum(bool(row["entry"]) for row in rows) - proof,
            "reported": sum(bool(row["source"]) for row in rows),
        }
        printed = next((row for row in rows if row["source"]), None)
        cards.append((name, _leaders(parts), counts, printed))
    newest = sorted(live, key=age, reverse=True)[:_NEWEST]
    return _render(
        "index.html.j2",
        root="",
        boards=cards,
        newest=[(entry, boards_of(entry.result)[0]) for entry in newest],
        n_entries=len(live),
    )


def _leaders(
    parts: Sequence[Section],
) -> list[tuple[SectionKind, list[dict[str, Any]], int, float, float]]:
    """Return the leading proof of up to two test sections, number of further ties, axis, chance."""
    placed = [(kind, [row for row in rows if row["place"]], rows) for kind, rows in parts
              if kind.split == "test"]  # fmt: skip
    placed = [part for part in placed if part[1]]
    found = []
    for kind, rows, whole in placed[:1] + [part for part in placed[1:] if part[0].published][:1]:
        group = rows[:1] + [row for row in rows[1:] if row["tied"] and rows[0]["tied"]]
        chance = next(row["rsum"] for row in whole if row["evidence"] == "reference")
        axis = axis_of(max(row["high"] or row["rsum"] for row in whole))
        found.append((kind, group[:_LEADERS], len(group[_LEADERS:]), axis, chance))
    return found


def _progress(sections: Mapping[BoardName, Sequence[Section]]) -> str:
    boards = []
    for name, parts in sections.items():
        charts = [(kind, progress_chart(f"{name}-{kind.name}", rows)) for kind, rows in parts
                  if kind.split == "test"]  # fmt: skip
        boards.append((name, [pair for pair in charts if pair[1]]))
    boards.sort(key=lambda pair: not pair[1])
    return _render("progress.html.j2", root="", boards=boards)


def _board(
    name: BoardName,
    parts: Sequence[Section],
    withdrawn: Sequence[Entry],
    data: Mapping[str, str],
) -> str:
    rows = [row for _, part in parts for row in part]
    texts = [row["footnote"] for row in rows if row["source"]]
    found = []
    for kind, part in parts:
        proven = any(row["proof"] for row in part)
        leading = [row for row in part if row["proof"] or (proven and not row["item"])]
        axis = axis_of(max(row["high"] or row["rsum"] for row in part))
        base = base_of(min(row["low"] or row["rsum"] for row in part if row["item"]), axis)
        claims = part[len(leading) :]
        found.append((kind, (leading, claims), axis, base, seeds_of(part)))
    evidence = {row["evidence"] for row in rows}
    return _render(
        "board.html.j2",
        root="../",
        board=name,
        sections=found,
        many=_OPEN_TABLES,
        footnotes={text: n for n, text in enumerate(dict.fromkeys(filter(None, texts)), 1)},
        tiers=[tier for tier in display_text.EVIDENCE if tier in evidence],
        withdrawn=withdrawn,
        data=data,
    )


def _render(template: str, **values: object) -> str:
    return _templates().get_template(template).render(**values) + "\n"


@cache
def _templates() -> Environment:
    """Return the templates with what all pages use."""
    found = template_environment("leaderboard.board")
    found.filters.update(
        figure="{:.1f}".format,
        signed=lambda value: f"{value:+.1f}".replace("-", "−"),
        share=_share,
        thousands="{:,}".format,
        listed=display_text.listed,
        spelled=spelled,
        points=lambda points: " ".join(f"{x:g},{y:g}" for x, y in points),
    )
    found.globals.update(
        generator=GENERATOR,
        evaluator=VERSION,
        policy=Markup(_policy()),  # noqa: S704 - our own text, whose quotes must stay
        style=Markup(_text("style.css")),  # noqa: S704 - our own file
        script=Markup(_text("board.js")),  # noqa: S704 - our own file
        boards_known=BOARDS,
        cutoffs=CUTOFFS,
        recalls=RECALLS,
        formats=list(FORMATS),
        display_text=display_text,
        sources=read_sources(),
        short_name=short_name,
    )
    return found


@cache
def _text(name: str) -> str:
    return files("leaderboard.board").joinpath("templates", name).read_text(encoding="utf-8")


def _share(value: float, axis: float, base: float = 0.0) -> str:
    """Return the position of a value on the axis, in percent."""
    return f"{max(0.0, min(100.0, 100 * (value - base) / (axis - base))):.2f}"


def _policy() -> str:
    """Return the policy of every page: its own style and script, no more."""
    return (
        f"default-src 'none'; style-src {policy_hash(page_style())}"
        f" {policy_hash(_text('style.css'))}; script-src {policy_hash(_text('board.js'))};"
        " base-uri 'none'; form-action 'none'"
    )
