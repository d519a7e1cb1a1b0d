"""The files of a table, written from one DataFrame: Markdown, LaTeX, CSV and a page of HTML."""

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
from pc2_baseline.runs.measured_run import Measured, Run, beside

LEGEND = (
    "Recalls in percent on the test split, at the epoch that dev chose; ± is the standard "
    "deviation (n − 1) over the seeds. Within sites: rSum among the pages of the query's own "
    "site, the mean over sites. Dev rSum: of that epoch, to compare settings by. "
    "Networks: how many are averaged; one network: the first of several; two: its first two. "
    "Behind: rSum points below the best row, and p of the paired sign-flip test over "
    "the test images, or their owners if the release is split by domain, on the mean of the seeds, "
    "with Holm's correction; it does not cover the choice of seeds. Seconds: all epochs, choosing "
    "on dev included. Memory: the largest size of the process in training. AUROC: of the division "
    "at that epoch. Rows marked as reported are printed in papers; references know nothing but "
    "what they are named after."
)
RECALLS = tuple(f"{way}_R@{cutoff}" for way in ("i2t", "t2i") for cutoff in CUTOFFS)
MEASURED = ("one_network_rsum", "two_networks_rsum", "dev_rsum", "seconds", "memory_gb",
            "gpu_memory_gb", "auroc")  # fmt: skip
FIGURES = (*RECALLS, "rsum", "within_site_rsum", *MEASURED)
"""Names of the figures of a run, each a column of ``table.csv``, with ``_sd`` behind the next."""

HEADINGS = {
    **{name: f"{'Image to text' if name[0] == 'i' else 'Text to image'} {name[4:]}"
       for name in RECALLS},
    "rsum": "rSum", "within_site_rsum": "within sites", "dev_rsum": "dev rSum",
    "one_network_rsum": "rSum, one network",
    "two_networks_rsum": "rSum, two networks", "networks": "networks", "behind": "behind",
    "p": "p", "seconds": "seconds", "memory_gb": "memory, GiB", "gpu_memory_gb": "GPU memory, GiB",
    "auroc": "AUROC",
}  # fmt: skip
_BOLD = (*RECALLS, "rsum", "within_site_rsum", "one_network_rsum", "two_networks_rsum")
_RARE = ("within_site_rsum", "gpu_memory_gb", "auroc")
_DIGITS = {"seconds": 0, "networks": 0, "memory_gb": 2, "gpu_memory_gb": 2, "auroc": 3, "p": 3}
_TEX = str.maketrans({
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "±": r"$\pm$",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
})  # fmt: skip


def write_table(
    out: Path,
    release: Path,
    asked: Sequence[tuple[str, str]],
    records: Mapping[Run, Measured],
    failures: Mapping[Run, str],
) -> str:
    """Write ``table.md``, ``.tex``, ``.csv`` and ``.html``; return the Markdown.

    Rows (track and method) that are asked for come first; a row may be without runs.
    """
    table = summarise(release, asked, records, failures)
    columns = ["track", "method", "evidence", "networks", "seeds"]
    columns += [part for name in FIGURES for part in (name, f"{name}_sd")]
    text = table[[*columns, "behind", "p", "notes"]].to_csv(index=False, lineterminator="\n")
    markdown, latex, pages = "", "% \\usepackage{booktabs}\n", []
    for title, part in table.groupby("section", sort=False):
        cells, best = _cells(part)
        shared = cells["Method"].groupby(part.notes, sort=False).agg(", ".join)
        below = [f"{names}: {note}" for note, names in shared.items() if note]
        own = _marked(cells, best, lambda text: text.replace("|", "\\|"), "**{}**")
        lines = [[*own], ["---", *["--:"] * (own.shape[1] - 1)], *own.to_numpy().tolist()]
        markdown += f"### {title}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)
        markdown += "\n" + "".join(f"- {note}\n" for note in below) + "\n" * bool(below)
        own = _marked(cells, best, lambda text: text.translate(_TEX), r"\textbf{{{}}}")
        align = "l" + "r" * (own.shape[1] - 1)
        latex += f"% {title}\n{own.to_latex(index=False, escape=False, column_format=align)}"
        latex += "".join(f"% {note}\n" for note in below)
        own = _marked(cells, best, escape, "<b>{}</b>")
        pages.append((title, own.to_html(index=False, escape=False, border=0), below))
    template = template_environment("pc2_baseline.runs").get_template("table.html.j2")
    write_text(out / "table.tex", latex)
    write_text(out / "table.csv", text)
    write_text(out / "table.html", template.render(tables=pages, legend=LEGEND))
    write_text(out / "table.md", f"{markdown}{LEGEND}\n")
    return f"{markdown}{LEGEND}\n"


def summarise(
    release: Path,
    asked: Sequence[tuple[str, str]],
    records: Mapping[Run, Measured],
    failures: Mapping[Run, str],
) -> pd.DataFrame:
    """Return a line for each row: mean and deviation of its runs, and the test against the best.

    Below those of a track are the rows that papers report for its test split, and references.
    """
    runs = sorted(records, key=lambda run: run.seed)
    rows = list(dict.fromkeys([*asked, *(run.row for run in runs)]))
    results: dict[tuple[str, str], list[Result]] = {row: [] for row in rows}
    figures = []
    for run in runs:
        result = read_result(beside(run.folder, ".result.json"))
        results[run.row].append(result)
        recalls = dict(zip(RECALLS, (*result.i2t.values(), *result.t2i.values()), strict=True))
        key = {"track": run.row[0], "method": run.row[1], "seeds": str(run.seed)}
        within = result.within_site
        recalls["within_site_rsum"] = within.rsum if within else np.nan
        figures.append(key | recalls | dict(records[run]))
    by_run = pd.DataFrame(figures, columns=["track", "method", "seeds", "networks", *FIGURES])
    own = by_run.astype(dict.fromkeys(FIGURES, float)).groupby(["track", "method"], sort=False)
    mean, sd = own[list(FIGURES)].mean(), own[list(FIGURES)].std().add_suffix("_sd")
    lines = pd.concat([own["seeds"].agg(" ".join), own["networks"].first(), mean, sd], axis=1)
    lines = lines.reindex(pd.MultiIndex.from_tuples(rows, names=["track", "method"]))
    lines[["evidence", "behind", "p"]] = "scored", np.nan, np.nan
    said: dict[tuple[str, str], list[str]] = {row: [] for row in rows}
    for run, why in failures.items():
        said[run.row].append(f"seed {run.seed} failed: {why}")
    for row, texts in said.items():
        texts += [f"not ranked: {result.reason}" for result in results[row] if result.reason]
    lines["notes"] = ["; ".join(dict.fromkeys(texts)) for texts in said.values()]
    parts = []
    for track in dict.fromkeys(track for track, _ in rows):
        part = lines.loc[[track]].reset_index()
        title = f"{release.name}, {track}"
        scored = part.rsum.notna()
        if scored.any():
            of_rows = [results[track, method] for method in part.method[scored]]
            hits = np.stack([mean_hits(each) for each in of_rows])
            part.loc[scored, "behind"] = 100 * (hits.mean(axis=1).max() - hits.mean(axis=1))
            first = of_rows[0][0]
            owners = first.ranks.clusters()[0] if first.ranks else None
            part.loc[scored, "p"] = p_against_first(
                hits if owners is None else np.stack([np.bincount(owners, row) for row in hits])
            )
            images, captions = f"{first.n_images:,}", f"{first.n_pairs:,}"
            size = f"{captions} pairs" if images == captions else (
                f"{images} images, {captions} captions")  # fmt: skip
            board = BOARD_FACTS[boards_of(first)[0]].title
            title = f"{board}: {release.resolve().name}, test split, {size}"
            if first.within_site:
                count, chance = first.within_site.count, first.within_site.chance
                title += f"; within {count} sites, by chance {chance:.1f}"
            part = pd.concat([part, pd.DataFrame(other_rows(first)).assign(track=track)])
        parts.append(part.assign(section=title))
    table = pd.concat(parts, ignore_index=True)
    return table.astype({"networks": "Int64"}).fillna({"seeds": "", "notes": ""})


def mean_hits(results: Iterable[Result]) -> Float[np.ndarray, " images"]:
    """Return the hits of each image, averaged over results on the same split."""
    ranks = [result.ranks for result in results if result.ranks is not None]
    return np.asarray(np.mean([hits_per_image(*own.read(), own.owner()) for own in ranks], axis=0))


def other_rows(result: Result) -> list[dict[str, Any]]:
    """Return the rows that papers report for a published test split, and below them references."""
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
    """Return the cells of a section as text, and which are the best; no empty rare column."""
    scored = part.evidence == "scored"
    failed = part.rsum.isna() & (part.notes != "")
    kinds = part.evidence.mask(scored, "").mask(failed, "failed")
    cells = pd.DataFrame({"Method": part.method + kinds.map(lambda kind: kind and f" ({kind})")})
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
    cells["p"] = cells["p"].mask(part.p < 0.001, "< 0.001").mask(first, "")  # none with itself
    cells["behind"] = cells["behind"].mask(first, "best")
    cells["seeds"] = part.seeds.map(lambda seeds: str(len(seeds.split()))).where(scored, "")
    return cells, best.reindex(columns=cells.columns, fill_value=False)


def _texts(values: pd.Series, pattern: str) -> pd.Series:
    return values.map(lambda value: "" if pd.isna(value) else pattern.format(value))


def _marked(
    cells: pd.DataFrame, best: pd.DataFrame, escaped: Callable[[str], str], bold: str
) -> pd.DataFrame:
    """Escape all cells for a format, and put the best into bold."""
    plain = cells.map(escaped)
    return plain.mask(best, plain.map(bold.format)).rename(columns=escaped)
