"""The files of a table, written from one DataFrame: Markdown, LaTeX, CSV and a page of HTML."""

from collections.abc import Callable, Iterable, Sequence
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
from pc2_baseline.runs.measured_run import Measured, beside

LEGEND = (
    "Recalls in percent on the test split, at the epoch that dev chose; ± is the standard "
    "deviation (n − 1) over the seeds. Dev rSum: of that epoch, to compare settings by. "
    "Networks: how many are averaged; one network: the first of several; two: its first two. "
    "Behind: rSum points below the best row, and p of the paired sign-flip test over "
    "the test images, on the mean of the seeds, with Holm's correction; it does not cover the "
    "choice of seeds. Seconds: all epochs, choosing on dev included. Memory: the largest size "
    "of the process in training. AUROC: of the division at that epoch. Rows marked as reported "
    "are printed in papers; references know nothing but what they are named after."
)
RECALLS = tuple(f"{way}_R@{cutoff}" for way in ("i2t", "t2i") for cutoff in CUTOFFS)
SCORES = (*RECALLS, "rsum")
MEASURED = ("one_network_rsum", "two_networks_rsum", "dev_rsum", "seconds", "memory_gb",
            "gpu_memory_gb", "auroc")  # fmt: skip
FIGURES = (*SCORES, *MEASURED)
"""Names of the figures of a run, each a column of ``table.csv``, with ``_sd`` behind the next."""

HEADINGS = {
    **{name: f"{'Image to text' if name[0] == 'i' else 'Text to image'} {name[4:]}"
       for name in RECALLS},
    "rsum": "rSum", "dev_rsum": "dev rSum", "one_network_rsum": "rSum, one network",
    "two_networks_rsum": "rSum, two networks", "networks": "networks", "behind": "behind",
    "p": "p", "seconds": "seconds", "memory_gb": "memory, GiB", "gpu_memory_gb": "GPU memory, GiB",
    "auroc": "AUROC",
}  # fmt: skip
_RARE = ("gpu_memory_gb", "auroc")
_DIGITS = {"seconds": 0, "memory_gb": 2, "gpu_memory_gb": 2, "auroc": 3}
_BOLD = (*SCORES, "one_network_rsum", "two_networks_rsum")
_TEX = str.maketrans({
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "±": r"$\pm$",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
})  # fmt: skip

FinishedRun = tuple[str, str, int, Path, Measured]
"""Track, method, seed, folder and record of a run."""


def write_table(
    out: Path,
    release: Path,
    asked: Sequence[tuple[str, str]],
    runs: Sequence[FinishedRun],
    notes: Iterable[tuple[tuple[str, str], str]],
) -> str:
    """Write ``table.md``, ``.tex``, ``.csv`` and ``.html``; return the Markdown.

    Rows (track and method) that are asked for come first; a row may be without runs.
    """
    rows = list(dict.fromkeys([*asked, *((track, method) for track, method, *_ in runs)]))
    table = summarise(release, rows, runs, notes)
    columns = ["track", "method", "evidence", "networks", "seeds"]
    columns += [part for name in FIGURES for part in (name, f"{name}_sd")]
    text = table[[*columns, "behind", "p", "notes"]].to_csv(index=False, lineterminator="\n")
    markdown, latex, pages = "", "% \\usepackage{booktabs}\n", []
    for title, part in table.groupby("section", sort=False):
        below = _notes(part)
        cells = _cells(part, lambda text: text.replace("|", "\\|"), "**{}**")
        lines: list[list[str]] = [[*map(str, cells)], ["---", *["--:"] * (cells.shape[1] - 1)]]
        lines += cells.to_numpy().tolist()
        markdown += f"### {title}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)
        markdown += "\n" + "".join(f"- {note}\n" for note in below) + "\n" * bool(below)
        cells = _cells(part, lambda text: text.translate(_TEX), r"\textbf{{{}}}")
        align = "l" + "r" * (cells.shape[1] - 1)
        latex += f"% {title}\n{cells.to_latex(index=False, escape=False, column_format=align)}"
        latex += "".join(f"% {note}\n" for note in below)
        cells = _cells(part, escape, "<b>{}</b>")
        pages.append((title, cells.to_html(index=False, escape=False, border=0), below))
    template = template_environment("pc2_baseline.runs").get_template("table.html.j2")
    write_text(out / "table.tex", latex)
    write_text(out / "table.csv", text)
    write_text(out / "table.html", template.render(tables=pages, legend=LEGEND))
    write_text(out / "table.md", f"{markdown}{LEGEND}\n")
    return f"{markdown}{LEGEND}\n"


def summarise(
    release: Path,
    rows: Sequence[tuple[str, str]],
    runs: Sequence[FinishedRun],
    notes: Iterable[tuple[tuple[str, str], str]] = (),
) -> pd.DataFrame:
    """Return a line for each row: mean and deviation of its runs, and the test against the best.

    Below those of a track are the rows that papers report for its test split, and references.
    """
    results = [read_result(beside(folder, ".result.json")) for *_, folder, _ in runs]
    figures = pd.DataFrame(
        [
            {
                "track": track, "method": method, "seeds": str(seed), "networks": record.networks,
                **_scores(result), **{name: getattr(record, name) for name in MEASURED},
            }
            for (track, method, seed, _, record), result in zip(runs, results, strict=True)
        ],
        columns=["track", "method", "seeds", "networks", *FIGURES],
    ).astype(dict.fromkeys(FIGURES, float))  # fmt: skip
    own = figures.groupby(["track", "method"], sort=False)
    mean, sd = own[list(FIGURES)].mean(), own[list(FIGURES)].std().add_suffix("_sd")
    seeds = own["seeds"].agg(" ".join)
    index = pd.MultiIndex.from_tuples(rows, names=["track", "method"])
    lines = pd.concat([seeds, own["networks"].first(), mean, sd], axis=1).reindex(index)
    lines[["evidence", "behind", "p"]] = "scored", np.nan, np.nan
    said = {row: [text for of, text in notes if of == row] for row in rows}
    for row, result in zip(((track, method) for track, method, *_ in runs), results, strict=True):
        said[row] += [f"not ranked: {result.reason}"] if result.reason else []
    lines["notes"] = ["; ".join(dict.fromkeys(said[row])) for row in rows]
    parts = []
    for track in dict.fromkeys(track for track, _ in rows):
        part = lines.loc[[track]].reset_index()
        scored: dict[str, list[Result]] = {}
        for (own_track, method, *_), result in zip(runs, results, strict=True):
            if own_track == track:
                scored.setdefault(method, []).append(result)
        title = f"{release.name}, {track}"
        if scored:
            hits = np.stack([mean_hits(scored[name]) for name in part.method if name in scored])
            known = part.method.isin(list(scored))
            part.loc[known, "behind"] = 100 * (hits.mean(axis=1).max() - hits.mean(axis=1))
            part.loc[known, "p"] = p_against_first(hits)
            first = next(iter(scored.values()))[0]
            images, captions = f"{first.n_images:,}", f"{first.n_pairs:,}"
            size = f"{captions} pairs" if images == captions else (
                f"{images} images, {captions} captions")  # fmt: skip
            board = BOARD_FACTS[boards_of(first)[0]].title
            title = f"{board}: {release.resolve().name}, test split, {size}"
            part = pd.concat([part, pd.DataFrame(other_rows(first)).assign(track=track)])
        parts.append(part.assign(section=title))
    table = pd.concat(parts, ignore_index=True)
    return table.astype({"networks": "Int64"}).fillna({"seeds": "", "notes": ""})


def _scores(result: Result) -> dict[str, float]:
    recalls = (*result.i2t.values(), *result.t2i.values())
    return {**dict(zip(RECALLS, recalls, strict=True)), "rsum": result.rsum}


def mean_hits(results: Iterable[Result]) -> Float[np.ndarray, " images"]:
    """Return the hits of each image, averaged over results on the same split."""
    ranks = [result.ranks for result in results if result.ranks is not None]
    return np.asarray(np.mean([hits_per_image(*own.read(), own.owner()) for own in ranks], axis=0))


def other_rows(result: Result) -> list[dict[str, Any]]:
    """Return the rows that papers report for a published test split, and below them references."""
    board, noise = boards_of(result)[0], result.training.noise
    facts, size = BOARD_FACTS[board], (result.n_images, result.n_pairs)
    share = round(noise.mismatch, 2) if noise else None
    condition = ("web" if noise is None else noise.protocol if share else "none", share)
    published = result.release.origin in {"archive", "field"} and size == tuple(facts.test_size)
    printed = [
        row
        for row in (read_reported(board) if published else ())
        if (row.noise.protocol, row.noise.mismatch) == condition
    ]
    rows: list[dict[str, Any]] = []
    for row in sorted(printed, key=lambda row: -row.rsum):
        notes = filter(None, (f"{short_name(row.source)}, {row.table}", row.footnote))
        rows.append({
            "method": row.method, "evidence": "reported", "networks": row.ensemble,
            "notes": "; ".join(notes), "rsum": row.rsum,
            **dict(zip(RECALLS, row.recalls, strict=False)),
        })  # fmt: skip
    known = sorted(result.references.items(), key=lambda one: -one[1])
    return rows + [
        {"method": REFERENCES.get(name, name), "evidence": "reference", "rsum": rsum}
        for name, rsum in known
    ]


def _cells(part: pd.DataFrame, plain: Callable[[str], str], bold: str) -> pd.DataFrame:
    """Return the cells of a section as text, the best of a column in bold; no empty rare column."""
    names = [name for name in HEADINGS if name not in _RARE or part[name].notna().any()]
    scored = part.evidence == "scored"
    cells = {"Method": [plain(title) for title in _titles(part)]}
    for name in names:
        digits = _DIGITS.get(name, 1)
        best = part.loc[scored, name].max() if name in _BOLD else np.nan
        sds = part.get(f"{name}_sd", pd.Series(np.nan, part.index))
        column = []
        for value, sd, own in zip(part[name], sds, scored, strict=True):
            text = "" if pd.isna(value) else f"{value:,.{digits}f}"
            if name == "behind" and value == 0:
                text = "best"
            elif name == "p" and text:
                text = f"{value:.3f}" if value >= 0.001 else "< 0.001"
            elif name == "networks" and text:
                text = str(value)
            is_best = own and bool(text) and round(value, digits) == round(best, digits)
            text = bold.format(plain(text)) if is_best else plain(text)
            column.append(text if pd.isna(sd) else text + plain(f" ± {sd:,.{digits}f}"))
        cells[plain(HEADINGS[name])] = column
    counts = [str(len(seeds.split())) for seeds in part.seeds]
    cells["seeds"] = [count if own else "" for count, own in zip(counts, scored, strict=True)]
    table = pd.DataFrame(cells)
    table.loc[(part.behind == 0).to_numpy(), "p"] = ""  # of the best row with itself
    return table


def _titles(part: pd.DataFrame) -> list[str]:
    failed = part.rsum.isna() & (part.notes != "")
    kinds = part.evidence.where(part.evidence != "scored", "").mask(failed, "failed")
    return [f"{name} ({kind})" if kind else name
            for name, kind in zip(part.method, kinds, strict=True)]  # fmt: skip


def _notes(part: pd.DataFrame) -> list[str]:
    """Return the notes below a section; rows with the same note share it."""
    said = pd.Series(_titles(part), part.index).groupby(part.notes, sort=False).agg(", ".join)
    return [f"{titles}: {note}" for note, titles in said.items() if note]
