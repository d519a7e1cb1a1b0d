"""Write a table from one DataFrame as Markdown, LaTeX, CSV and HTML."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from leaderboard.board.display_text import REFERENCES
from leaderboard.board.reported import read_reported, short_name
from leaderboard.board.tables import boards_of
from leaderboard.core.uncertainty import p_against_first
from leaderboard.metrics import CUTOFFS, hits_per_image
from leaderboard.scoring.result import Result
from leaderboard.store.entries import read_result
from now_builder.formats.benchmarks import BOARD_FACTS
from now_builder.formats.io import write_text
from now_builder.program.html import template_environment
from pc2_baseline.runs.measured_run import Measured, Run, sibling

LEGEND = (
    "Recalls in percent on the test split, at the epoch selected on dev; ± is the standard "
    "deviation (n − 1) over the seeds. Within sites (languages): rSum among the pages of the "
    "query's site (language), averaged over sites (languages). Dev rSum: at the same epoch, to "
    "compare settings. Networks: number of averaged networks; one network, two networks: the first "
    "of them. Behind: rSum points below the best row; p: paired sign-flip test over the test "
    "images, or their owners if the release is split by domain, on the mean of the seeds, with "
    "Holm's correction; it does not cover the choice of seeds. Seconds: all epochs with their "
    "evaluation on dev. Memory: peak of the training process. AUROC: division at that epoch; once: "
    "on captions that stand once on their site. Copies, URL kind, language: AUROC of counting "
    "alone on the same pairs, which a division must exceed. Rows marked as reported are from "
    "papers; references use only the information in their names."
)
RECALLS = tuple(f"{way}_R@{cutoff}" for way in ("i2t", "t2i") for cutoff in CUTOFFS)
WITHIN = ("within_site", "within_language")
"""Fields of a result with a mean rSum over groups."""

HEADINGS = {
    **{name: f"{'Image to text' if name[0] == 'i' else 'Text to image'} {name[4:]}"
       for name in RECALLS},
    "rsum": "rSum", "within_site_rsum": "within sites", "within_language_rsum": "within languages",
    "dev_rsum": "dev rSum", "one_network_rsum": "rSum, one network",
    "two_networks_rsum": "rSum, two networks", "networks": "networks", "behind": "behind",
    "p": "p", "seconds": "seconds", "memory_gb": "memory, GiB", "gpu_memory_gb": "GPU memory, GiB",
    "auroc": "AUROC", "once_auroc": "AUROC, once", "copies_auroc": "copies",
    "url_kind_auroc": "URL kind", "language_auroc": "language",
}  # fmt: skip
FIGURES = [name for name in HEADINGS if name not in {"networks", "behind", "p"}]
"""Figures of a run: columns of ``table.csv``, each followed by its deviation (``_sd``)."""

_BOLD = {name for name in FIGURES if "R@" in name or name.endswith("rsum")} - {"dev_rsum"}
_RARE = {name for name in FIGURES if name.startswith(("within", "gpu")) or "auroc" in name}
_DIGITS = {"seconds": 0, "networks": 0, "memory_gb": 2, "gpu_memory_gb": 2, "p": 3,
           **{name: 3 for name in FIGURES if "auroc" in name}}  # fmt: skip
_ROW = ["track", "method"]
_TEX = str.maketrans({
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "±": r"$\pm$",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
})  # fmt: skip


def write_table(
    out: Path,
    release: Path,
    rows: Sequence[tuple[str, str]],
    records: Mapping[Run, Measured],
    failures: Mapping[Run, str],
) -> str:
    """Write ``table.md``, ``.tex``, ``.csv`` and ``.html``; return the Markdown.

    ``rows`` (track and method) come first; a row may have no runs.
    """
    table = summarise(release, rows, records, failures)
    figures = [part for name in FIGURES for part in (name, f"{name}_sd")]
    columns = [*_ROW, "evidence", "networks", "seeds", *figures, "behind", "p", "notes"]
    text = table[columns].to_csv(index=False, lineterminator="\n")
    markdown, latex, pages = "", "% \\usepackage{booktabs}\n", []
    for title, part in table.groupby("section", sort=False):
        cells, best = _cells(part)
        shared = cells["Method"].groupby(part.notes, sort=False).agg(", ".join)
        notes = [f"{names}: {note}" for note, names in shared.items() if note]
        plain = _marked(cells, best, lambda text: text.replace("|", "\\|"), "**{}**")
        lines = [[*plain], ["---", *["--:"] * (plain.shape[1] - 1)], *plain.to_numpy().tolist()]
        markdown += f"### {title}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)
        markdown += "\n" + "".join(f"- {note}\n" for note in notes) + "\n" * bool(notes)
        tex = _marked(cells, best, lambda text: text.translate(_TEX), r"\textbf{{{}}}")
        align = "l" + "r" * (tex.shape[1] - 1)
        latex += f"% {title}\n{tex.to_latex(index=False, escape=False, column_format=align)}"
        latex += "".join(f"% {note}\n" for note in notes)
        page = _marked(cells, best, escape, "<b>{}</b>")
        pages.append((title, page.to_html(index=False, escape=False, border=0), notes))
    template = template_environment("pc2_baseline.runs").get_template("table.html.j2")
    write_text(out / "table.tex", latex)
    write_text(out / "table.csv", text)
    write_text(out / "table.html", template.render(tables=pages, legend=LEGEND))
    write_text(out / "table.md", markdown := f"{markdown}{LEGEND}\n")
    return markdown


def summarise(
    release: Path,
    rows: Sequence[tuple[str, str]],
    records: Mapping[Run, Measured],
    failures: Mapping[Run, str],
) -> pd.DataFrame:
    """Return a line for each row: mean and deviation of its runs, and the test against the best.

    Rows reported in papers for a track's test split follow, then references.
    """
    results = {
        run: read_result(sibling(run.folder, ".result.json"))
        for run in sorted(records, key=lambda run: run.seed)
    }
    rows = list(dict.fromkeys([*rows, *(run.row for run in results)]))
    figures = [_figures(run, records[run], result) for run, result in results.items()]
    by_run = pd.DataFrame(figures, columns=[*_ROW, "seeds", "networks", *FIGURES])
    grouped = by_run.astype(dict.fromkeys(FIGURES, float)).groupby(_ROW, sort=False)
    mean, deviation = grouped[FIGURES].mean(), grouped[FIGURES].std().add_suffix("_sd")
    names = grouped["seeds"].agg(" ".join), grouped["networks"].first()
    lines = pd.concat([*names, mean, deviation], axis=1)
    lines = lines.reindex(pd.MultiIndex.from_tuples(rows, names=_ROW))
    lines[["evidence", "behind", "p"]] = "scored", np.nan, np.nan
    notes = [(run.row, f"seed {run.seed} failed: {why}") for run, why in failures.items()]
    notes += [(run.row, f"not ranked: {one.reason}") for run, one in results.items() if one.reason]
    lines["notes"] = [
        "; ".join(dict.fromkeys(note for row, note in notes if row == one)) for one in rows
    ]
    parts = []
    for track, part in lines.reset_index().groupby("track", sort=False):
        title = f"{release.name}, {track}"
        by_method = [
            [result for run, result in results.items() if run.row == (track, method)]
            for method in part.method
        ]
        if of_rows := [of_row for of_row in by_method if of_row]:
            scored, first = part.rsum.notna(), of_rows[0][0]
            hits = np.stack([mean_hits(of_row) for of_row in of_rows])
            part.loc[scored, "behind"] = 100 * (hits.mean(axis=1).max() - hits.mean(axis=1))
            owners = first.ranks.clusters()[0] if first.ranks else None
            part.loc[scored, "p"] = p_against_first(
                hits if owners is None else np.stack([np.bincount(owners, row) for row in hits])
            )
            title = _title(release, first)
        others = pd.DataFrame(other_rows(of_rows[0][0]) if of_rows else [])
        parts += [part.assign(section=title), others.assign(track=track, section=title)]
    table = pd.concat(parts, ignore_index=True)
    return table.astype({"networks": "Int64"}).fillna({"seeds": "", "notes": ""})


def _figures(run: Run, record: Measured, result: Result) -> dict[str, Any]:
    """Return the cells of a run by column."""
    within = {f"{name}_rsum": group.rsum for name in WITHIN if (group := getattr(result, name))}
    counted = {f"{name}_auroc": value for name, value in record.counted_auroc.items()}
    recalls = dict(zip(RECALLS, (*result.i2t.values(), *result.t2i.values()), strict=True))
    row = dict(zip((*_ROW, "seeds"), (*run.row, str(run.seed)), strict=True))
    return row | recalls | within | counted | dict(record)


def _title(release: Path, result: Result) -> str:
    """Return the title of a section: its board, release and size."""
    images, captions = f"{result.n_images:,}", f"{result.n_pairs:,}"
    pairs = f"{captions} pairs" if images == captions else f"{images} images, {captions} captions"
    board = BOARD_FACTS[boards_of(result)[0]].title
    title = f"{board}: {release.resolve().name}, test split, {pairs}"
    if sites := result.within_site:
        title += f"; within {sites.count} sites, by chance {sites.chance:.1f}"
    if languages := result.within_language:
        title += f"; within {languages.count} languages, by chance {languages.chance:.1f}"
    return title


def mean_hits(results: Iterable[Result]) -> Float[np.ndarray, " images"]:
    """Return the hits of each image, averaged over results on the same split."""
    ranks = [result.ranks for result in results if result.ranks is not None]
    return np.asarray(np.mean([hits_per_image(*one.read(), one.owner()) for one in ranks], axis=0))


def other_rows(result: Result) -> list[dict[str, Any]]:
    """Return the rows reported in papers for a published test split, then references."""
    board, noise = boards_of(result)[0], result.training.noise
    share = round(noise.mismatch, 2) if noise else None
    condition = ("web" if noise is None else noise.protocol if share else "none", share)
    size = (result.n_images, result.n_pairs)
    published = size == tuple(BOARD_FACTS[board].test_size)
    published &= result.release.origin in {"archive", "field"}
    reported: list[dict[str, Any]] = [
        {
            "method": row.method, "evidence": "reported", "networks": row.ensemble,
            "notes": "; ".join(filter(None, (f"{short_name(row.source)}, {row.table}",
                                             row.footnote))),
            "rsum": row.rsum, **dict(zip(RECALLS, row.recalls, strict=False)),
        }
        for row in (read_reported(board) if published else ())
        if (row.noise.protocol, row.noise.mismatch) == condition
    ]  # fmt: skip
    references: list[dict[str, Any]] = [
        {"method": REFERENCES.get(name, name), "evidence": "reference", "rsum": rsum}
        for name, rsum in result.references.items()
    ]
    return [row for rows in (reported, references)
            for row in sorted(rows, key=lambda row: -row["rsum"])]  # fmt: skip


def _cells(part: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return a section's cells as text, without empty rare columns, and mark the best ones."""
    scored = part.evidence == "scored"
    failed = part.rsum.isna() & (part.notes != "")
    marks = part.evidence.mask(scored, "").mask(failed, "failed")
    cells = pd.DataFrame({"Method": part.method + marks.map(lambda mark: mark and f" ({mark})")})
    best = pd.DataFrame({"Method": part.method != part.method})
    for name, heading in HEADINGS.items():
        if name in _RARE and part[name].isna().all():
            continue
        number = f"{{:,.{_DIGITS.get(name, 1)}f}}"
        cells[heading] = _texts(part[name], number)
        highest = number.format(part.loc[scored, name].max())
        best[heading] = scored & (name in _BOLD) & (cells[heading] == highest)
        if f"{name}_sd" in part:
            cells[heading] += _texts(part[f"{name}_sd"], f" ± {number}")
    first = part.behind == 0
    cells["p"] = (
        cells["p"].mask(part.p < 0.001, "< 0.001").mask(first, "")
    )  # no test against itself
    cells["behind"] = cells["behind"].mask(first, "best")
    cells["seeds"] = part.seeds.map(lambda seeds: str(len(seeds.split()))).where(scored, "")
    return cells, best.reindex(columns=cells.columns, fill_value=False)


def _texts(values: pd.Series, pattern: str) -> pd.Series:
    return values.map(lambda value: "" if pd.isna(value) else pattern.format(value))


def _marked(
    cells: pd.DataFrame, best: pd.DataFrame, escaped: Callable[[str], str], bold: str
) -> pd.DataFrame:
    """Escape all cells for a format, and make the best ones bold."""
    plain = cells.map(escaped)
    return plain.mask(best, plain.map(bold.format)).rename(columns=escaped)
